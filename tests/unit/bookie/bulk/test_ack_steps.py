"""Tests the step over the ACKs of a buffer: the same tests for plain and native ones, and that both agree."""

import os
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.bulk import plain_acks
from tests.support.bulk_steps import both as steps_of
from tests.support.bulk_steps import native

FRAME_MAX = 1 << 20
SEEDS = 10
INPUTS = int(os.environ.get("QUIRE_ACK_INPUTS", "2000"))
"""Of each seed, each decoded at two positions; 50,000 for a run of a million."""

both = steps_of(plain_acks, "take_acks")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + varint(len(body)) + body


def ack(consumer: int, *ids: tuple[int, int], kind: int = 0, more: bytes = b"") -> bytes:
    """The frame of one ACK as clients encode it."""
    named = b"".join(field(0x1A, b"\x08" + varint(ledger) + b"\x10" + varint(entry)) for ledger, entry in ids)
    command = b"\x08\x0a" + field(0x52, b"\x08" + varint(consumer) + b"\x10" + varint(kind) + named + more)
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


PING = bytes.fromhex("00000009000000050812920100")


@both
def test_acks_of_one_consumer_are_one_run(steps: Any) -> None:
    data = PING + ack(3, (7, 1)) + ack(3, (7, 2), (300, 2**40)) + ack(4, (7, 3)) + PING
    end, consumer, ids = steps.take_acks(data, len(PING), FRAME_MAX)
    assert (consumer, ids) == (3, [(7, 1), (7, 2), (300, 2**40)])
    last, consumer, ids = steps.take_acks(data, end, FRAME_MAX)
    assert (consumer, ids) == (4, [(7, 3)])
    assert last == len(data) - len(PING)
    assert steps.take_acks(data, last, FRAME_MAX) == (last, -1, [])


@both
@pytest.mark.parametrize(
    "other",
    [
        ack(3, (7, 1), kind=1),
        ack(3, (7, 1), more=b"\x40\x05"),
        ack(3),
        ack(3, (2**63, 1)),
        ack(2**64 - 1, (7, 1)),
        ack(3, (7, 1))[:-1],
        ack(3, (7, 1))[:-1] + b"\xff",
        PING,
        b"",
    ],
    ids=[
        "cumulative",
        "request",
        "no-id",
        "large-ledger",
        "negative-consumer",
        "cut",
        "open-varint",
        "ping",
        "nothing",
    ],
)
def test_every_other_form_ends_the_run(steps: Any, other: bytes) -> None:
    assert steps.take_acks(other, 0, FRAME_MAX) == (0, -1, [])
    first = ack(3, (7, 0))
    assert steps.take_acks(first + other, 0, FRAME_MAX) == (len(first), 3, [(7, 0)])


@both
def test_a_message_inside_a_batch_is_left_to_the_parser(steps: Any) -> None:
    named = field(0x1A, b"\x08\x07\x10\x01" + b"\x28\x05")
    command = b"\x08\x0a" + field(0x52, b"\x08\x03\x10\x00" + named)
    data = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    assert steps.take_acks(data, 0, FRAME_MAX) == (0, -1, [])


@both
def test_a_frame_above_the_limit_is_left_to_the_decoder(steps: Any) -> None:
    data = ack(3, *((7, entry) for entry in range(100)))
    assert steps.take_acks(data, 0, len(data) - 4)[0] == len(data)
    assert steps.take_acks(data, 0, len(data) - 5) == (0, -1, [])


@both
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_was_encoded_is_decoded(steps: Any, acks: list[tuple[int, list[tuple[int, int]]]]) -> None:
    data = b"".join(ack(consumer, *ids) for consumer, ids in acks)
    position, found = 0, []
    while position < len(data):
        position, consumer, ids = steps.take_acks(data, position, FRAME_MAX)
        assert ids
        found += [(consumer, each) for each in ids]
    assert found == [(consumer, each) for consumer, ids in acks for each in ids]


@pytest.mark.skipif(native("take_acks") is None, reason="not built: `make native`")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_agree_on_damaged_frames(seed: int) -> None:
    built, chance = native("take_acks"), random.Random(seed)
    assert built is not None
    for _ in range(INPUTS):
        data = damaged(chance)
        position, limit = chance.randrange(len(data) + 2), chance.choice((30, 60, FRAME_MAX))
        for at in (0, position):
            assert built.take_acks(data, at, limit) == plain_acks.take_acks(data, at, limit), (data, at, limit)


def damaged(chance: random.Random) -> bytes:
    """Some ACKs in one buffer, of which some bytes are changed, removed or added."""
    data = bytearray(
        b"".join(
            ack(
                chance.choice((0, 3, 200, 2**50)),
                *((chance.choice((1, 7, 2**63 - 1)), chance.getrandbits(chance.choice((3, 9, 63)))) for _ in range(n)),
                kind=chance.choice((0, 0, 0, 0, 1)),
                more=chance.choice((b"", b"", b"", b"\x40\x01")),
            )
            for n in (chance.choice((1, 1, 1, 0, 2, 5)) for _ in range(chance.randint(1, 4)))
        )
    )
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at = chance.randrange(len(data))
        action = chance.randrange(4)
        if action == 0:
            data[at] = chance.choice((0, 8, 16, 26, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif action == 1:
            del data[at : at + chance.randint(1, 3)]
        elif action == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 3))
        else:
            data[at] ^= 1 << chance.randrange(8)
        if not data:
            data += b"\0"
    return bytes(data)
