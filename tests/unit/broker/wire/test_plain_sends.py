"""Tests the native steps over SENDs and receipts: they agree with the general ones, whatever the bytes are."""

import os
import random
from typing import Any

import pytest

from quire_bookie.bulk import plain_sends
from quire_bookie.errors import PeerProtocolError
from quire_broker.wire import frames
from quire_broker.wire.entry import broker_metadata, flaw_of, seal
from quire_broker.wire.frames import FrameDecoder, SendRun
from quire_broker.wire.hot import encode_send
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.bulk_steps import native
from tests.unit.broker.wire.test_plain_heads import damaged, metadata

FRAME_MAX = 1 << 16
SEEDS = 10
INPUTS = int(os.environ.get("QUIRE_SEND_INPUTS", "300"))
"""Buffers of each seed; 10,000 for a run of about a million SENDs."""

pytestmark = pytest.mark.skipif(native("take_sends") is None, reason="not built: `make native`")


def send(producer: int, sequence: int, entry: bytes, **fields: Any) -> bytes:
    """The frame of a SEND with further fields."""
    command = pb.CommandSend(producer_id=producer, sequence_id=sequence, **fields)
    body = pb.BaseCommand(type=6, send=command).SerializeToString()
    return (len(body) + 4 + len(entry)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + entry


def decoded(monkeypatch: pytest.MonkeyPatch, step: Any, data: bytes, limit: int) -> Any:
    """What the decoder makes of the bytes with one of the two steps, or its error."""
    monkeypatch.setattr(frames, "take_sends", step)
    decoder = FrameDecoder(limit)
    try:
        found = decoder.feed(data)
    except PeerProtocolError as error:
        return str(error)
    shown = [
        (frame.producer_id, [(*each[:5], bytes(each.entry)) for each in frame.sends])
        if isinstance(frame, SendRun)
        else frame
        for frame in found
    ]
    return shown, decoder.held_bytes, decoder.announced_bytes


def taken(data: bytes, position: int = 0) -> tuple[int, int, list[plain_sends.Sent]]:
    built = native("take_sends")
    assert built is not None
    found: tuple[int, int, list[plain_sends.Sent]] = built.take_sends(data, position, FRAME_MAX)
    return found


ENTRY = seal(metadata(), b"payload")


def test_sends_of_one_producer_are_taken_together() -> None:
    first = encode_send(3, 7, ENTRY) + encode_send(3, 300, ENTRY, messages=5)
    data = first + send(3, 2**63 - 1, ENTRY, highest_sequence_id=9)
    end, producer, sends = taken(data + encode_send(4, 8, ENTRY))
    assert (end, producer) == (len(data), 3)
    entries = [bytes(each[5]) for each in sends]
    assert [each[:5] for each in sends] == [
        (7, None, 1, False, False),
        (300, None, 5, False, False),
        (2**63 - 1, 9, 1, False, False),
    ]
    assert entries == [ENTRY] * 3 and all(each[6] for each in sends)


@pytest.mark.parametrize(
    "other",
    [
        send(3, 1, ENTRY, is_chunk=True),
        send(3, 1, ENTRY, txnid_least_bits=1),
        send(3, 1, ENTRY, num_messages=0),
        send(3, 1, ENTRY, num_messages=16_384),
        encode_send(3, -1, ENTRY),
        encode_send(3, 1, ENTRY)[:-1],
        encode_send(3, 1, bytes(FRAME_MAX)),
        bytes.fromhex("00000009000000050812920100"),
    ],
)
def test_every_other_send_is_left_to_the_decoder(other: bytes) -> None:
    plain = encode_send(3, 0, ENTRY)
    assert taken(other) == (0, -1, [])
    assert taken(plain + other)[:2] == (len(plain), 3)


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY[:-1],
        ENTRY[:2] + bytes(4) + ENTRY[6:],
        ENTRY[6:],
        b"",
        broker_metadata(7, 8) + ENTRY,
        seal(metadata(num_messages_in_batch=1 << 21), b""),
        seal(metadata(producer_name=""), b"")[:-1],
    ],
)
def test_an_entry_with_a_flaw_is_not_sound(entry: bytes) -> None:
    (found,) = taken(encode_send(3, 0, entry))[2]
    assert not found[6]


def test_a_send_that_is_not_plain_stays_in_a_run_of_its_own_producer() -> None:
    data = send(-6, 1, ENTRY) + send(4, 1, ENTRY) + send(-6, 2, ENTRY)
    runs = [frame for frame in FrameDecoder(FRAME_MAX).feed(data) if isinstance(frame, SendRun)]
    assert [(run.producer_id, [each.sequence_id for each in run.sends]) for run in runs] == [
        (2**64 - 6, [1]),
        (4, [1]),
        (2**64 - 6, [2]),
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_decode_any_bytes_alike(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    built, chance, sound = native("take_sends"), random.Random(seed), 0
    assert built is not None
    for _ in range(INPUTS):
        data = buffer(chance)
        limit = chance.choice((FRAME_MAX, 120))
        assert decoded(monkeypatch, built.take_sends, data, limit) == decoded(
            monkeypatch, plain_sends.take_sends, data, limit
        ), (data, limit)
        for each in taken(data)[2]:
            if each[6]:
                sound += 1
                assert flaw_of(each[5]) is None, bytes(each[5])
    assert sound > INPUTS // 20


def number(chance: random.Random) -> int:
    """One of any size; sometimes negative."""
    return chance.getrandbits(chance.choice((1, 7, 14, 21, 40, 63))) - chance.choice((0, 0, 0, 2**63))


def buffer(chance: random.Random) -> bytes:
    """Some SENDs, of which some bytes may be changed, removed or added, and the last one may be incomplete."""
    parts = []
    for index in range(chance.randint(1, 8)):
        entry = ENTRY if chance.random() < 0.5 else damaged(chance)
        if chance.random() < 0.5:
            entry = seal(metadata(sequence_id=index), chance.randbytes(5))
        fields: dict[str, Any] = {}
        if chance.random() < 0.3:
            fields["num_messages"] = chance.choice((-1, 0, 1, 2, 128, 16_383, 16_384, 1 << 21))
        if chance.random() < 0.3:
            fields["highest_sequence_id"] = number(chance)
        if chance.random() < 0.1:
            fields["is_chunk"] = True
        raw = bytearray(send(chance.choice((1, 1, 1, 200, -6)), number(chance), entry, **fields))
        if chance.random() < 0.2:
            at = chance.randrange(4, min(len(raw), 30))
            raw[at] = chance.choice((0, 8, 16, 0x18, 0x30, 0x7F, 0x80, 0xFF, raw[at] ^ 1 << chance.randrange(8)))
        parts.append(bytes(raw))
    whole = b"".join(parts)
    return whole[: chance.randrange(len(whole))] if chance.random() < 0.3 else whole


@pytest.mark.parametrize("seed", range(SEEDS))
def test_receipts_are_the_same(seed: int) -> None:
    built, chance = native("encode_receipts"), random.Random(seed)
    assert built is not None

    for _ in range(INPUTS):
        receipts = [
            (number(chance), number(chance), number(chance), number(chance)) for _ in range(chance.randrange(4))
        ]
        producer = chance.getrandbits(64)
        assert built.encode_receipts(producer, receipts) == plain_sends.encode_receipts(producer, receipts)
