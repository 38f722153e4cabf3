"""Dispatchers at the tail: what they get without their task, what their task does, and how long a turn may be."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_broker.dispatch.delivery import Delivery, KeyShared
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.dispatch.entry_filters import SubscriptionFilters
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.dispatch.single_active import SingleActiveDispatcher
from quire_broker.dispatch.tail_turns import ENTRIES_AT_ONCE, TailTurns
from quire_broker.policies.rates import DispatchRate
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.kinds import KeySharedMode
from tests.unit.broker.dispatch.doubles import Clock, Link, MemoryCursor, MemoryLedger, consumer, settle

SETTINGS = DispatchSettings()
Make = Callable[[MemoryCursor, MemoryLedger], Dispatcher]
MAKERS: dict[str, Make] = {
    "shared": lambda cursor, ledger: SharedDispatcher(cursor, ledger, SETTINGS, Clock()),
    "key_shared": lambda cursor, ledger: KeySharedDispatcher(
        cursor, ledger, SETTINGS, Clock(), KeyShared(KeySharedMode.AUTO_SPLIT, (), False)
    ),
    "single_active": lambda cursor, ledger: SingleActiveDispatcher(
        cursor, cursor, ledger, SETTINGS, Clock(), topic="t"
    ),
}
KINDS = pytest.mark.parametrize("kind", MAKERS)


class Stage:
    """Subscriptions of one topic that have read everything."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.ledger = ledger
        self.turns = TailTurns()
        self.dispatchers: list[Dispatcher] = []
        self.links: list[Link] = []
        self.running: list[asyncio.Task[None]] = []

    async def subscribe(self, kind: str, permits: int = 1000) -> tuple[Dispatcher, Link]:
        number = len(self.links)
        dispatcher, link = MAKERS[kind](MemoryCursor(self.ledger, f"s{number}"), self.ledger), Link()
        dispatcher.turns = self.turns
        self.ledger.on_append(dispatcher.appended)
        dispatcher.add(consumer(number, link, permits))
        self.running.append(asyncio.get_running_loop().create_task(dispatcher.run()))
        self.dispatchers.append(dispatcher)
        self.links.append(link)
        await settle()
        return dispatcher, link

    async def end(self) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.retire()
        await asyncio.gather(*self.running)


@KINDS
async def test_appended_entries_in_the_cache_arrive_in_the_next_turn_without_an_awaited_read(kind: str) -> None:
    stage = Stage(MemoryLedger())
    _, link = await stage.subscribe(kind)
    before = stage.ledger.reads
    stage.ledger.publish()
    stage.ledger.publish()
    assert not link.entries(), "a publisher does not wait for deliveries"
    await asyncio.sleep(0)
    assert link.entries() == [0, 1]
    assert stage.ledger.reads == before
    stage.ledger.publish()
    await asyncio.sleep(0)
    assert link.entries() == [0, 1, 2]
    await stage.end()


@KINDS
async def test_entries_that_are_not_in_the_cache_are_read_by_the_task(kind: str) -> None:
    stage = Stage(MemoryLedger())
    _, link = await stage.subscribe(kind)
    stage.ledger.cached = False
    stage.ledger.publish()
    await settle()
    assert link.entries() == [0]
    stage.ledger.cached = True
    stage.ledger.publish()
    await settle()
    assert link.entries() == [0, 1]
    await stage.end()


@KINDS
async def test_nothing_is_delivered_beyond_the_permits_and_to_a_full_socket(kind: str) -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe(kind, permits=2)
    for _ in range(5):
        stage.ledger.publish()
    await settle()
    assert link.entries() == [0, 1]
    link.writable = False
    dispatcher.consumers[0].flow(10)
    dispatcher.wake()
    stage.ledger.publish()
    await settle()
    assert link.entries() == [0, 1]
    link.drained()
    await settle()
    assert link.entries() == [0, 1, 2, 3, 4, 5]
    await stage.end()


@KINDS
async def test_nothing_is_delivered_while_the_cursor_is_being_moved(kind: str) -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe(kind)
    async with dispatcher.step_lock:
        stage.ledger.publish()
        await settle()
        assert not link.entries()
    await settle()
    assert link.entries() == [0]
    await stage.end()


@KINDS
async def test_a_rate_is_kept(kind: str) -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe(kind)
    dispatcher.ration.limits = (DispatchLimit(DispatchRate(1, 0, 3600)),)
    for _ in range(20):
        stage.ledger.publish()
        await settle()
    assert len(link.entries()) == 1
    await stage.end()


@KINDS
async def test_a_rate_that_subscriptions_share_is_kept_from_when_it_is_set_until_it_is_removed(kind: str) -> None:
    stage, group = Stage(MemoryLedger()), DispatchLimit()
    for _ in range(2):
        dispatcher, _ = await stage.subscribe(kind)
        dispatcher.ration.limits = (DispatchLimit(), group)
    stage.ledger.publish()
    await asyncio.sleep(0)
    assert [link.entries() for link in stage.links] == [[0], [0]]
    assert group.charged == (0, 0), "nothing is counted without a rate"
    group.use(DispatchRate(1, 0, 3600))
    for _ in range(20):
        stage.ledger.publish()
        await settle()
    assert sum(len(link.entries()) for link in stage.links) == 3
    assert group.charged == (1, len(stage.ledger.entries[1]))
    group.use(DispatchRate())
    for dispatcher in stage.dispatchers:
        dispatcher.wake()
    await settle()
    assert [link.entries() for link in stage.links] == [list(range(21))] * 2
    await stage.end()


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
@pytest.mark.parametrize("pauses", [True, False])
async def test_nothing_new_is_delivered_while_further_acks_could_not_be_saved(kind: str, *, pauses: bool) -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe(kind)
    dispatcher.settings = replace(SETTINGS, pause_on_acks=pauses)
    cursor = stage.ledger.cursors["s0"]
    stage.ledger.publish()
    await asyncio.sleep(0)
    assert link.entries() == [0]
    cursor.keeps_all_acks = False
    stage.ledger.publish()
    await settle()
    assert link.entries() == ([0] if pauses else [0, 1])
    cursor.keeps_all_acks = True
    dispatcher.acknowledged(dispatcher.consumers[0], [link.deliveries[0][1].position])
    await settle()
    assert link.entries() == [0, 1]
    await stage.end()


@KINDS
async def test_filters_are_asked_in_a_step_of_the_task_whose_time_they_take(kind: str) -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe(kind)
    dispatcher.filters = SubscriptionFilters("t", "s", dict, filters=(lambda entry: entry.metadata.sequence_id > 0,))
    stage.ledger.publish()
    stage.ledger.publish()
    await asyncio.sleep(0)
    assert not link.entries()
    await settle()
    assert link.entries() == [1]
    await stage.end()


@KINDS
async def test_a_retired_dispatcher_delivers_nothing(kind: str) -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe(kind)
    stage.ledger.publish()
    dispatcher.retire()
    await settle()
    assert not link.entries()
    assert stage.running[0].done()


@KINDS
async def test_a_delivery_that_fails_is_repeated_by_the_task(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(MemoryLedger())
    _, link = await stage.subscribe(kind)
    deliver, failures = link.deliver, [OSError("once")]

    def once(consumer_id: int, deliveries: list[Delivery], messages: int) -> None:
        if failures:
            raise failures.pop()
        deliver(consumer_id, deliveries, messages)

    link.deliver = once  # type: ignore[method-assign, assignment]
    stage.ledger.publish()
    await settle()
    assert "could not deliver at the tail" in caplog.text
    if kind == "single_active":
        assert link.entries() == [0]
    await stage.end()


async def test_a_delayed_message_takes_the_path_of_the_task_and_those_behind_it_too() -> None:
    stage = Stage(MemoryLedger())
    dispatcher, link = await stage.subscribe("shared")
    assert isinstance(dispatcher, SharedDispatcher)
    stage.ledger.publish(deliver_at_time=2_000_000)
    await settle()
    stage.ledger.publish()
    await settle()
    assert link.entries() == [1]
    assert len(dispatcher.delayed) == 1
    await stage.end()


async def test_a_turn_serves_some_dispatchers_and_the_next_one_the_others() -> None:
    stage = Stage(MemoryLedger())
    for _ in range(ENTRIES_AT_ONCE):
        await stage.subscribe("single_active")
    stage.ledger.publish()
    await asyncio.sleep(0)
    served = sum(bool(link.entries()) for link in stage.links)
    assert served == ENTRIES_AT_ONCE // 2
    await asyncio.sleep(0)
    assert all(link.entries() == [0] for link in stage.links)
    await stage.end()


async def test_all_subscriptions_get_everything_in_order_while_appends_go_on() -> None:
    stage = Stage(MemoryLedger())
    for number in range(30):
        await stage.subscribe(list(MAKERS)[number % 3])
    for number in range(200):
        stage.ledger.cached = number % 7 > 0
        stage.ledger.publish()
        if number % 3 == 0:
            await asyncio.sleep(0)
    await settle()
    assert all(link.entries() == list(range(200)) for link in stage.links)
    await stage.end()
