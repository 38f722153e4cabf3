"""Tests the steps from stored entries to MESSAGE frames: the same tests for plain and native ones, and that both agree.

What `plain_heads` recognises is compared with the parser in tests/unit/broker/wire/test_plain_heads.py.
"""

import os
import random
from typing import Any

import pytest

from quire_bookie.bulk import plain_deliveries
from quire_bookie.bulk.plain_deliveries import Delivered
from tests.support.bulk_steps import both as steps_of
from tests.support.bulk_steps import native

SEEDS = 10
INPUTS = int(os.environ.get("QUIRE_DELIVERY_INPUTS", "500"))
"""Of each seed; 100,000 for a run of a million."""

CONSUMER, PARTITION = b"\x08\x03\x12", b"\x18" + b"\xff" * 9 + b"\x01"
FRAME = bytes.fromhex("0000001e0000001908094a15") + b"\x08\x03\x12\x0f\x08\x07\x10\x05" + PARTITION + b"\x20\x01" + b"e"
ADDED = b"\x0e\x02\x00\x00\x00\x02\x10\x05"

both = steps_of(plain_deliveries, "message_frames", "plain_heads")


@both
def test_a_frame_has_ids_and_ack_set_before_its_entry(steps: Any) -> None:
    frames, size = steps.message_frames(CONSUMER, PARTITION, [((7, 5), b"e", 0, (1,), None)], False, 100)
    assert (frames, size) == ([FRAME], 1)


@both
def test_small_entries_are_copied_and_larger_ones_are_not(steps: Any) -> None:
    deliveries = [((7, entry), bytes(10), 0, None, None) for entry in range(3)]
    (joined,), size = steps.message_frames(CONSUMER, PARTITION, deliveries, False, 10)
    parts, same = steps.message_frames(CONSUMER, PARTITION, deliveries, False, 9)
    assert size == same == 30
    assert all(part is data for part, (_, data, *_) in zip(parts[1::2], deliveries, strict=True))
    assert b"".join(parts) == joined


@both
@pytest.mark.parametrize("joined_bytes_max", [0, 100])
def test_what_a_broker_added_is_left_out_on_request(steps: Any, joined_bytes_max: int) -> None:
    for stored in (ADDED + b"message", memoryview(ADDED + b"message")):
        frames, size = steps.message_frames(
            CONSUMER, PARTITION, [((7, 5), stored, 0, None, None)], True, joined_bytes_max
        )
        assert size == 7
        assert b"".join(frames).endswith(PARTITION + b"message")
    frames, size = steps.message_frames(
        CONSUMER, PARTITION, [((7, 5), ADDED[:7], 0, None, None)], True, joined_bytes_max
    )
    assert (size, b"".join(frames)[-len(PARTITION) :]) == (0, PARTITION)


@both
def test_no_delivery_gives_no_bytes(steps: Any) -> None:
    frames, size = steps.message_frames(CONSUMER, PARTITION, [], False, 100)
    assert (b"".join(frames), size) == (b"", 0)


@both
def test_entries_without_metadata_are_left_to_the_parser(steps: Any) -> None:
    entries = [
        b"",
        b"\x0e\x01",
        b"\x0e\x02\xff\xff\xff\xff" + bytes(20),
        bytes(40),
        memoryview(b"\x0e\x01" + bytes(30)),
    ]
    assert steps.plain_heads(entries, False) == ([0] * 5, [])
    assert steps.plain_heads(entries, True) == ([0] * 5, [None] * 5)


@pytest.mark.skipif(native("message_frames") is None, reason="not built: `make native`")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_encode_the_same_frames(seed: int) -> None:
    built, chance = native("message_frames"), random.Random(seed)
    assert built is not None
    for _ in range(INPUTS):
        deliveries = [delivery(chance) for _ in range(chance.choice((1, 1, 2, 5, 20)))]
        strips, most = chance.random() < 0.5, chance.choice((0, 10, 200))
        found = built.message_frames(CONSUMER, PARTITION, deliveries, strips, most)
        wanted = plain_deliveries.message_frames(CONSUMER, PARTITION, deliveries, strips, most)
        assert found == wanted, (deliveries, strips, most)


def delivery(chance: random.Random) -> Delivered:
    """Any delivery: plain ones, and with numbers of every size, signed or not."""
    number = chance.getrandbits(chance.choice((1, 6, 7, 8, 13, 14, 15, 20, 21, 22, 62, 63)))
    ledger = chance.choice((0, 1, 127, 128, 300, 2**40, -1))
    data: bytes | memoryview = chance.choice((b"", b"", b"\x0e", b"\x0e\x02", ADDED)) + chance.randbytes(
        chance.randrange(40)
    )
    if chance.random() < 0.3:
        data = memoryview(data)
    if chance.random() < 0.6:
        return (ledger, number), data, 0, None, None
    words = tuple(chance.getrandbits(64) - (1 << 63) for _ in range(chance.choice((0, 1, 3))))
    ack_set = chance.choice((None, words, list(words)))
    epoch = chance.choice((None, 0, 5, 2**63, 2**64 - 1))
    return (ledger, number), data, chance.choice((0, 1, 127, 128, 2**31)), ack_set, epoch
