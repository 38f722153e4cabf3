"""The joining of chunks, and its bounds."""

from typing import Any, cast

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import WEBSOCKET_BUFFER_BYTES, WEBSOCKET_CHUNKED_BYTES_MAX, WEBSOCKET_CHUNKS_MAX
from quire_broker.server.budget import PublishBudget
from quire_broker.websocket.chunks import Chunks, Entry
from quire_broker.websocket.inbox import Arrived, arrived_of
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.proto import pulsar_pb2 as pb


class Consumer:
    partition = -1


class Joining:
    """The chunks of one session; entries have ascending numbers."""

    def __init__(self) -> None:
        self.budget = PublishBudget(WEBSOCKET_BUFFER_BYTES)
        self.chunks = Chunks(self.budget)
        self.consumer = cast(Any, Consumer())
        self.entry = 0

    def add(
        self, uuid: str, index: int, text: bytes, count: int = 3, total: int = 3
    ) -> tuple[bytes, list[Entry]] | None:
        """Add the next entry; return the payload and the entries of a message that is whole."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, uuid=uuid)
        metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size = count, index, total
        command = pb.CommandMessage(consumer_id=1)
        command.message_id.ledgerId, command.message_id.entryId = 1, self.entry
        self.entry += 1
        frame = MessageFrame(pb.BaseCommand(type=9, message=command), memoryview(seal(metadata, text)))
        arrived: Arrived = arrived_of(self.consumer, frame)
        assert arrived.chunk is not None and not arrived.messages and arrived.permits == 1
        found = self.chunks.add(arrived, arrived.chunk)
        return None if found is None else (found[0].messages[0].message.payload, found[1])


def test_interleaved_messages_are_joined() -> None:
    joining = Joining()
    assert [joining.add(*one) for one in (("a", 0, b"1"), ("b", 0, b"x"), ("a", 1, b"2"), ("b", 1, b"y"))] == [None] * 4
    assert joining.chunks.oldest(joining.consumer) == (1, 0)
    assert joining.add("a", 2, b"3") == (b"123", [(1, 0), (1, 2), (1, 4)])
    assert joining.chunks.oldest(joining.consumer) == (1, 1)
    assert joining.add("b", 2, b"z") == (b"xyz", [(1, 1), (1, 3), (1, 5)])
    assert joining.budget.used_bytes == 0


def test_chunks_that_were_stored_twice_are_acknowledged_with_the_message() -> None:
    joining = Joining()
    for index, text in ((0, b"1"), (1, b"2"), (1, b"2"), (0, b"1"), (1, b"2")):
        assert joining.add("a", index, text) is None
    assert joining.add("a", 2, b"3") == (b"123", [(1, number) for number in range(6)])


def test_chunks_after_a_gap_are_no_message() -> None:
    joining = Joining()
    for index in (1, 2):
        assert joining.add("a", index, b"x") is None
    for index in (0, 2, 1, 2):
        assert joining.add("a", index, b"x") is None
    assert joining.budget.used_bytes == 0


@pytest.mark.parametrize(("count", "total"), [(WEBSOCKET_CHUNKS_MAX + 1, 3), (3, WEBSOCKET_CHUNKED_BYTES_MAX + 1)])
def test_a_message_that_is_too_large_is_refused_with_its_first_chunk(count: int, total: int) -> None:
    with pytest.raises(PeerProtocolError, match=f"a message of {total} bytes in {count} chunks; .*use a Pulsar client"):
        Joining().add("a", 0, b"x", count, total)


def test_incomplete_messages_have_a_bound_also_empty_and_repeated_ones() -> None:
    part = bytes(WEBSOCKET_CHUNKED_BYTES_MAX // 100)
    for uuid, text in (("{}", part), ("{}", b""), ("same", b"")):
        joining = Joining()
        with pytest.raises(PeerProtocolError, match="incomplete messages"):
            for number in range(WEBSOCKET_CHUNKED_BYTES_MAX // 200 + 1):
                joining.add(uuid.format(number), 0, text)
        joining.chunks.close()
        assert joining.budget.used_bytes == 0


def test_the_chunks_of_a_consumer_that_is_gone_are_dropped() -> None:
    joining = Joining()
    joining.add("a", 0, b"1")
    joining.chunks.drop(joining.consumer)
    assert joining.budget.used_bytes == 0 and joining.add("a", 1, b"2") is None
