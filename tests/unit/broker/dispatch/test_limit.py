"""Rates of delivery, on the loop's clock: of one dispatcher of each type, and of several that share a limit."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quire_broker.dispatch.delivery import KeyShared
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.limit import PAUSE_S, DispatchLimit
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.dispatch.single_active import SingleActiveDispatcher
from quire_broker.managed_ledger.position import Position
from quire_broker.policies.rates import DispatchRate
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.kinds import KeySharedMode
from tests.sim.loop import SimLoop, simulate
from tests.unit.broker.dispatch.doubles import LEDGER, Clock, Link, MemoryCursor, MemoryLedger, consumer

Make = Callable[[MemoryCursor, MemoryLedger], Dispatcher]
SETTINGS = DispatchSettings()
MAKERS: dict[str, Make] = {
    "shared": lambda cursor, ledger: SharedDispatcher(cursor, ledger, SETTINGS, Clock()),
    "key_shared": lambda cursor, ledger: KeySharedDispatcher(
        cursor, ledger, SETTINGS, Clock(), KeyShared(KeySharedMode.AUTO_SPLIT, (), False)
    ),
    "single_active": lambda cursor, ledger: SingleActiveDispatcher(
        cursor, cursor, ledger, SETTINGS, Clock(), topic="t"
    ),
}


class Stage:
    """Dispatchers of one ledger with a consumer each."""

    def __init__(self, entries: int, **metadata: Any) -> None:
        self.ledger = MemoryLedger()
        for _ in range(entries):
            self.ledger.publish(**metadata)
        self.running: list[asyncio.Task[None]] = []
        self.dispatchers: list[Dispatcher] = []

    def start(self, make: Make, *limits: DispatchLimit) -> Link:
        """Return what the consumer of one more dispatcher gets."""
        cursor, link = MemoryCursor(self.ledger, f"s{len(self.running)}"), Link()
        dispatcher = make(cursor, self.ledger)
        dispatcher.ration.limits = limits
        self.ledger.on_append(dispatcher.appended)
        dispatcher.add(consumer(len(self.running), link, 1_000_000))
        self.running.append(asyncio.get_running_loop().create_task(dispatcher.run()))
        self.dispatchers.append(dispatcher)
        return link

    async def end(self) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.retire()
        await asyncio.gather(*self.running)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("rate", [DispatchRate(10), DispatchRate(100, 0, 10), DispatchRate(0, 1)])
def test_as_many_messages_are_delivered_as_the_rate_permits_and_a_burst_of_a_period(
    kind: str, rate: DispatchRate
) -> None:
    async def scenario(loop: SimLoop) -> int:
        stage = Stage(5000)
        size = len(stage.ledger.entries[-1])
        used = DispatchRate(0, 10 * size) if rate.size_bytes else rate
        link = stage.start(MAKERS[kind], DispatchLimit(used))
        await asyncio.sleep(100)
        await stage.end()
        assert [one.position for _, one in link.deliveries] == [
            Position(LEDGER, n) for n in range(len(link.deliveries))
        ]
        return len(link.deliveries)

    assert 10 * 100 - 10 <= simulate(scenario, seed=1) <= 10 * (100 + rate.period_s) + 20


@pytest.mark.parametrize("kind", MAKERS)
def test_a_batch_counts_its_messages(kind: str) -> None:
    async def scenario(loop: SimLoop) -> int:
        stage = Stage(500, num_messages_in_batch=20)
        link = stage.start(MAKERS[kind], DispatchLimit(DispatchRate(10)))
        await asyncio.sleep(100)
        await stage.end()
        return len(link.deliveries)

    assert 40 <= simulate(scenario, seed=1) <= 55


def test_dispatchers_that_share_a_limit_share_its_rate_and_none_starves() -> None:
    async def scenario(loop: SimLoop) -> list[int]:
        stage, shared = Stage(5000), DispatchLimit(DispatchRate(100))
        links = [stage.start(make, shared) for make in MAKERS.values()]
        await asyncio.sleep(100)
        await stage.end()
        return [len(link.deliveries) for link in links]

    found = simulate(scenario, seed=1)
    assert 100 * 100 - 100 <= sum(found) <= 100 * 101 + 30
    assert min(found) > 1000


def test_the_lowest_of_several_limits_applies_and_waits_are_counted_by_limit() -> None:
    async def scenario(loop: SimLoop) -> tuple[int, list[int]]:
        stage = Stage(5000)
        limits = (DispatchLimit(), DispatchLimit(DispatchRate(10)), DispatchLimit(DispatchRate(1000, 10**9)))
        link = stage.start(MAKERS["shared"], *limits)
        await asyncio.sleep(100)
        await stage.end()
        return len(link.deliveries), stage.dispatchers[0].ration.times

    delivered, times = simulate(scenario, seed=1)
    assert delivered <= 10 * 101 + 2
    assert times[2] > 0 and sum(times) == times[2]


def test_a_changed_limit_applies_as_soon_as_the_dispatcher_is_woken() -> None:
    async def scenario(loop: SimLoop) -> tuple[int, int]:
        stage, limit = Stage(100), DispatchLimit(DispatchRate(1, 0, 10_000))
        link = stage.start(MAKERS["shared"], limit)
        await asyncio.sleep(1000)
        before = len(link.deliveries)
        limit.use(DispatchRate())
        stage.dispatchers[0].wake()
        await asyncio.sleep(1)
        await stage.end()
        return before, len(link.deliveries)

    assert simulate(scenario, seed=1) == (1, 100)


def test_an_idle_subscription_with_a_limit_has_no_timer() -> None:
    async def scenario(loop: SimLoop) -> int:
        stage = Stage(15)
        stage.start(MAKERS["shared"], DispatchLimit(DispatchRate(10)))
        await asyncio.sleep(100)
        reads = stage.dispatchers[0].stats.reads
        await asyncio.sleep(3000)
        more = stage.dispatchers[0].stats.reads - reads
        await stage.end()
        return more

    assert simulate(scenario, seed=1) == 0


def test_a_rate_that_replaces_another_begins_without_a_burst() -> None:
    async def scenario(loop: SimLoop) -> list[bool]:
        limit = DispatchLimit(DispatchRate(10))
        found = [limit.room()[0] > 0]
        limit.use(DispatchRate(20))
        found.append(limit.room()[0] > 0)
        await asyncio.sleep(1 + PAUSE_S)
        return [*found, limit.room()[0] >= 20]

    assert simulate(scenario, seed=1) == [True, False, True]
