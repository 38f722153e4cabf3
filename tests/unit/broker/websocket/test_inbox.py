"""When a session stops reading brokers, and when it ends because all sessions are too slow."""

from typing import Any, cast

from quire_broker.limits import WEBSOCKET_BUFFER_BYTES, WEBSOCKET_INBOX_BYTES
from quire_broker.server.budget import PublishBudget
from quire_broker.websocket.inbox import Arrived, Inbox, Incoming, arrived_of
from quire_broker.websocket.message_ids import MessageId
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.payload import batch_of
from quire_broker.wire.proto import pulsar_pb2 as pb


class Consumer:
    partition = 4


class Watched:
    """An inbox, and what it asked of its session."""

    def __init__(self, budget: PublishBudget | None = None) -> None:
        self.budget = budget or PublishBudget(WEBSOCKET_BUFFER_BYTES)
        self.asked: list[str] = []
        note = self.asked.append
        self.inbox = Inbox(self.budget, lambda: note("hold"), lambda: note("release"), lambda: note("overflow"))

    def put(self, size_bytes: int, messages: int = 1, consumer: Any = None) -> None:
        one = Incoming(consumer, MessageId(1, 1), cast(Any, None), 0)
        made = [Incoming(one.consumer, one.message_id, one.message, number) for number in range(messages)]
        self.inbox.put(Arrived(consumer, size_bytes, messages, 0, made))


def test_a_full_inbox_stops_the_reading_until_half_of_it_is_taken() -> None:
    watched = Watched()
    for _ in range(5):
        watched.put(WEBSOCKET_INBOX_BYTES // 4)
    assert watched.asked == ["hold"]
    for _ in range(2):
        watched.inbox.take()
    assert watched.asked == ["hold"]
    watched.inbox.take()
    assert watched.asked == ["hold", "release"]


def test_the_bytes_of_an_entry_are_free_when_its_last_message_is_taken() -> None:
    watched = Watched()
    watched.put(100, messages=3)
    for left in (100, 100, 0):
        watched.inbox.take()
        assert watched.budget.used_bytes == left


def test_a_session_that_waits_for_permits_reads_on() -> None:
    watched = Watched()
    watched.inbox.stop()
    watched.put(2 * WEBSOCKET_INBOX_BYTES)
    assert watched.asked == []
    watched.inbox.is_flowing = True
    watched.put(1)
    assert watched.asked == ["hold"]
    watched.inbox.stop()
    assert watched.asked == ["hold", "release"]


def test_a_session_reads_nothing_while_all_together_are_full_unless_it_has_nothing() -> None:
    budget = PublishBudget(WEBSOCKET_BUFFER_BYTES)
    budget.take(WEBSOCKET_BUFFER_BYTES)
    watched = Watched(budget)
    watched.put(1)
    watched.put(1)
    assert watched.asked == ["hold"]
    watched.inbox.take()
    assert watched.asked == ["hold"]
    watched.inbox.take()
    assert watched.asked == ["hold", "release"]


def test_the_session_that_fills_twice_the_budget_ends() -> None:
    budget = PublishBudget(WEBSOCKET_BUFFER_BYTES)
    budget.take(2 * WEBSOCKET_BUFFER_BYTES)
    watched = Watched(budget)
    watched.put(1)
    assert watched.asked[0] == "overflow"


def test_dropped_and_closed_inboxes_return_their_bytes() -> None:
    watched = Watched()
    mine, other = cast(Any, Consumer()), cast(Any, Consumer())
    watched.put(10, 2, mine)
    watched.put(20, 1, other)
    watched.inbox.drop(mine)
    assert watched.budget.used_bytes == 20 and len(watched.inbox) == 1
    watched.inbox.close()
    watched.put(5)
    assert watched.budget.used_bytes == 0 and len(watched.inbox) == 0


def frame_of(metadata: pb.MessageMetadata, payload: bytes, ack_set: list[int] | None = None) -> MessageFrame:
    message = pb.CommandMessage(consumer_id=1, redelivery_count=2, ack_set=ack_set or [])
    message.message_id.ledgerId, message.message_id.entryId = 5, 6
    return MessageFrame(pb.BaseCommand(type=9, message=message), memoryview(seal(metadata, payload)))


def test_acknowledged_messages_of_a_batch_are_left_out() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3)
    frame = frame_of(metadata, batch_of([b"a", b"b", b"c"], key=None, properties={}), [0b101])
    arrived = arrived_of(cast(Any, Consumer()), frame)
    assert [one.message.payload for one in arrived.messages] == [b"a", b"c"]
    assert (arrived.mask, arrived.permits) == (0b101, 2)
    assert arrived.messages[1].message_id == MessageId(5, 6, 4, 2, 3) and arrived.messages[1].redeliveries == 2
