"""Admission by name and access mode, and the order of answers."""

import asyncio

import pytest

from quire_bookie.errors import QuireError
from quire_broker.errors import PersistenceError, ProducerBusyError, ProducerFencedError, ServerError
from quire_broker.managed_ledger.position import Position
from quire_broker.topic.producers import Producer, Producers, Receipt, Refusal
from quire_broker.wire.kinds import AccessMode, Moved


class Link:
    """A connection that records its calls."""

    def __init__(self, *, living: bool = True) -> None:
        self.living = living
        self.peer = "/client"
        self.client_version = "test"
        self.answered: list[Receipt | Refusal] = []
        self.flushes = 0
        self.done: list[tuple[int, int]] = []
        self.closed: list[str] = []
        self.ready: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.asked = 0

    def answers_ready(self, producer: Producer) -> None:
        self.flushes += 1

    def publish_done(self, count: int, size_bytes: int) -> None:
        self.done.append((count, size_bytes))

    def close_producer(self, producer: Producer, moved: Moved | None = None) -> None:
        self.closed.append(producer.name)

    def producer_ready(self, producer: Producer) -> None:
        self.ready.append(producer.name)

    def producer_refused(self, producer: Producer, error: QuireError) -> None:
        self.refused.append((producer.name, type(error).__name__))

    async def alive(self) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        return self.living


class Epochs:
    """Records the epochs that are written."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.fail: QuireError | None = None

    async def __call__(self, epoch: int) -> None:
        await asyncio.sleep(0)
        if self.fail is not None:
            raise self.fail
        self.written.append(epoch)


def producers(epoch: int | None = None) -> tuple[Producers, Epochs]:
    epochs = Epochs()
    return Producers(epoch, epochs), epochs


def make(name: str, link: Link | None = None, mode: AccessMode = AccessMode.SHARED, **fields: int) -> Producer:
    return Producer(fields.pop("producer_id", 1), name, link or Link(), mode=mode, **fields)  # type: ignore[arg-type]


async def test_a_name_is_used_once_while_its_holder_is_connected() -> None:
    topic, _ = producers()
    holder = Link()
    await topic.add(make("p", holder), None)
    with pytest.raises(ProducerBusyError, match="'p' is already connected"):
        await topic.add(make("p"), None)
    assert holder.asked == 1
    await topic.add(make("q"), None)
    assert len(topic) == 2


async def test_a_dead_holder_is_replaced() -> None:
    topic, _ = producers()
    old = make("p", Link(living=False))
    await topic.add(old, None)
    new = make("p")
    await topic.add(new, None)
    assert old.closed
    assert topic.connected == [new]
    assert not topic.remove(old)
    assert topic.connected == [new], "the old one's leaving does not take the new one along"


async def test_the_successor_on_the_same_connection_replaces_at_once() -> None:
    topic, _ = producers()
    link = Link()
    await topic.add(make("p", link, epoch=0), None)
    with pytest.raises(ProducerBusyError):
        await topic.add(make("p", link, epoch=0), None)
    new = make("p", link, epoch=1)
    await topic.add(new, None)
    assert topic.connected == [new]
    assert link.asked == 0


async def test_exclusive_is_refused_while_producers_exist_and_excludes_others() -> None:
    topic, epochs = producers()
    shared = make("s")
    await topic.add(shared, None)
    with pytest.raises(ProducerFencedError):
        await topic.add(make("x", mode=AccessMode.EXCLUSIVE), None)
    topic.remove(shared)
    exclusive = make("x", mode=AccessMode.EXCLUSIVE)
    await topic.add(exclusive, None)
    assert (exclusive.topic_epoch, epochs.written) == (0, [0])
    with pytest.raises(ProducerBusyError):
        await topic.add(make("t"), None)


async def test_epochs_grow_and_an_old_one_is_fenced() -> None:
    topic, epochs = producers(epoch=4)
    first = make("x", mode=AccessMode.EXCLUSIVE)
    await topic.add(first, None)
    assert first.topic_epoch == 5
    topic.remove(first)
    with pytest.raises(ProducerFencedError, match="overtaken"):
        await topic.add(make("x", mode=AccessMode.EXCLUSIVE), 4)
    again = make("x", mode=AccessMode.EXCLUSIVE)
    await topic.add(again, 5)
    assert (again.topic_epoch, epochs.written) == (5, [5])


async def test_an_epoch_that_cannot_be_written_leaves_the_topic_free() -> None:
    topic, epochs = producers()
    epochs.fail = PersistenceError("away")
    with pytest.raises(PersistenceError):
        await topic.add(make("x", mode=AccessMode.EXCLUSIVE), None)
    epochs.fail = None
    await topic.add(make("s"), None)


async def test_waiting_producers_are_promoted_in_order() -> None:
    topic, _ = producers()
    links = [Link() for _ in range(3)]
    made = [make(f"w{n}", links[n], AccessMode.WAIT_FOR_EXCLUSIVE) for n in range(3)]
    for producer in made:
        await topic.add(producer, None)
    assert [producer.ready for producer in made] == [True, False, False]
    with pytest.raises(ProducerBusyError):
        await topic.add(make("s"), None)
    assert topic.remove(made[0])
    await topic.promote()
    assert links[1].ready == ["w1"]
    assert made[1].topic_epoch == 1
    assert not topic.remove(made[2])
    assert not topic.remove(made[1])


async def test_fencing_closes_all_other_producers() -> None:
    topic, _ = producers()
    holder, waiter = Link(), Link()
    await topic.add(make("h", holder, AccessMode.EXCLUSIVE), None)
    await topic.add(make("w", waiter, AccessMode.WAIT_FOR_EXCLUSIVE), None)
    fencing = make("f", mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    await topic.add(fencing, None)
    assert holder.closed == ["h"]
    assert waiter.refused == [("w", "ProducerFencedError")]
    assert topic.connected == [fencing]
    assert fencing.topic_epoch == 1


async def test_answers_keep_the_order_of_the_sends() -> None:
    link = Link()
    producer = make("p", link)
    producer.pushed(1, 0, 10, None)
    producer.pushed(2, 0, 10, None)
    producer.answered(10, Receipt(3, 0, -1, -1))
    producer.answered(10, Refusal(4, ServerError.CHECKSUM, "no"))
    producer.pushed(5, 0, 10, None)
    assert producer.answers == []
    producer.stored(Position(7, 0), None)
    producer.stored(Position(7, 1), None)
    assert [answer.sequence_id for answer in producer.answers] == [1, 2, 3, 4]
    producer.stored(Position(7, 2), None)
    assert [answer.sequence_id for answer in producer.answers] == [1, 2, 3, 4, 5]
    assert link.flushes == 1, "one flush for all of them"
    assert link.done == [(1, 10), (3, 30), (1, 10)]
    assert producer.pending == 0


async def test_an_answer_without_pending_sends_is_sent_at_once() -> None:
    link = Link()
    producer = make("p", link)
    producer.answered(10, Receipt(3, 0, -1, -1))
    assert [answer.sequence_id for answer in producer.answers] == [3]
    assert link.done == [(1, 10)]


async def test_a_failed_entry_is_reported_and_never_acknowledged() -> None:
    link = Link()
    producer = make("p", link)
    failures: list[QuireError] = []
    producer.on_failure = failures.append
    producer.pushed(1, 0, 10, None)
    error = PersistenceError("gone")
    producer.stored(None, error)
    assert failures == [error]
    assert producer.answers == []
    assert link.done == [(1, 10)]


async def test_a_closed_producer_is_not_answered_but_its_budget_is_freed() -> None:
    link = Link()
    producer = make("p", link)
    producer.pushed(1, 0, 10, None)
    producer.closed = True
    producer.stored(Position(1, 1), None)
    assert (producer.answers, link.done) == ([], [(1, 10)])
