"""Entries that the client builds are those that the broker stores and other clients read."""

import pytest

from quire_broker.compression import Codec
from quire_broker.wire.entry import checksum_matches, flaw_of, peek
from quire_broker.wire.frames import FrameDecoder, SendRun
from quire_broker.wire.payload import messages_of
from quire_client.batch import PLAIN, Batch, Extra, Sent
from quire_client.message import MessageId, arrival_of
from quire_client.message import messages_of as received


def batch(*messages: tuple[bytes, Extra], first: int = 5) -> Batch:
    made = Batch(messages[0][1])
    for number, (payload, extra) in enumerate(messages, first):
        made.add(payload, number if extra.sequence_id is None else extra.sequence_id, extra, None)
    return made


def entry_of(made: Batch, codec: Codec = Codec.NONE) -> bytes:
    return b"".join(made.entry("p", 1_000, codec, b"\1"))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 2, 300])
def test_an_entry_has_the_messages_in_order(codec: Codec, count: int) -> None:
    payloads = [b"payload %d" % number * 3 for number in range(count)]
    entry = entry_of(batch(*((payload, PLAIN) for payload in payloads)), codec)
    assert flaw_of(memoryview(entry)) is None
    assert checksum_matches(entry)
    found = messages_of(entry)
    assert [each.payload for each in found] == payloads
    assert [each.sequence_id for each in found] == list(range(5, 5 + count))
    ours = received(arrival_of((1, 2), entry))
    assert [each.payload for each in ours] == payloads
    assert [each.sequence_id for each in ours] == list(range(5, 5 + count))
    assert [each.ends_entry for each in ours] == [False] * (count - 1) + [True]
    assert ours[0].schema_version == b"\1"


def test_each_message_of_a_batch_keeps_what_it_has_beside_its_payload() -> None:
    extras = [Extra("k", {"a": "1"}), PLAIN, Extra("l", event_time_ms=7, sequence_id=20), Extra(ordering_key=b"o")]
    made = batch(*((b"m", extra) for extra in extras), first=18)
    assert (made.first, made.highest) == (18, 21)
    found = received(arrival_of((1, 2), entry_of(made)))
    assert [each.key for each in found] == ["k", None, "l", None]
    assert found[0].properties == {"a": "1"}
    assert found[2].event_time_ms == 7
    assert found[2].sequence_id == 20
    assert found[3].ordering_key == b"o"
    assert peek(entry_of(made)).partition_key == "k"  # Key_Shared reads no further


def test_a_single_message_has_its_fields_in_the_metadata_of_the_entry() -> None:
    (found,) = received(arrival_of((1, 2), entry_of(batch((b"m", Extra("k", {"a": "b"}, 7, deliver_at_ms=99))))))
    assert (found.key, found.properties, found.event_time_ms) == ("k", {"a": "b"}, 7)
    assert found.id == MessageId(1, 2)
    assert found.arrival.summary.deliver_at_ms == 99


def test_messages_of_other_keys_or_times_may_not_follow() -> None:
    made = batch((b"m", Extra("k")))
    assert made.takes(Extra("l"), one_key=False)
    assert made.takes(Extra("k"), one_key=True)
    assert not made.takes(Extra("l"), one_key=True)
    assert not made.takes(PLAIN, one_key=True)
    assert not made.takes(Extra("k", deliver_at_ms=1), one_key=False)


@pytest.mark.parametrize(("count", "highest"), [(1, None), (3, 7)])
def test_the_frame_of_a_send_names_its_messages(count: int, highest: int | None) -> None:
    made = batch(*[(b"m", PLAIN)] * count)
    sent = Sent(made, *made.entry("p", 1, Codec.NONE, b""), 0.0)
    (run,) = FrameDecoder(1_000_000).feed(b"".join(sent.frame(9)))
    assert isinstance(run, SendRun)
    assert run.producer_id == 9
    (send,) = run.sends
    assert (send.sequence_id, send.num_messages, send.highest_sequence_id) == (5, count, highest)
    assert len(messages_of(send.entry)) == count
