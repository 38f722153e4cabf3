"""Periodic work: an idle managed ledger is not called, and due work still happens on time."""

import asyncio
import math
from typing import Any

from quire_broker.managed_ledger import EARLIEST, LATEST, ManagedLedger
from quire_broker.managed_ledger.upkeep import PER_STEP, Upkeep
from quire_broker.settings.managed_ledger import UNLIMITED
from tests.unit.broker.managed_ledger.world import Process, World, append, run

IDLE_S = 600.0


class Called:
    """Managed ledgers by name, reduced to the times that they return."""

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    def __init__(self) -> None:
        self.order: list[str] = []
        self.due: dict[str, float | None] = {}
        self.named: dict[str, Any] = {}

    def __call__(self, ledger: Any) -> float | None:
        self.order.append(ledger.name)
        return self.due.get(ledger.name, 0.0)


def _upkeep(called: Called, *names: str) -> Upkeep:
    upkeep = Upkeep(called, interval_s=1.0)
    for name in names:
        called.named[name] = Called.Named(name)
        upkeep.add(called.named[name])
    return upkeep


async def test_one_that_rests_is_called_again_at_its_time_or_after_an_event() -> None:
    called = Called()
    upkeep, now_s = _upkeep(called, "a", "b", "c"), asyncio.get_running_loop().time()
    called.due = {"a": math.inf, "b": now_s + 60}
    upkeep.round()
    upkeep.round()
    assert called.order == ["a", "b", "c", "c"]
    assert upkeep.awake == 1
    upkeep.wake(called.named["a"])
    upkeep.round()
    assert called.order[4:] == ["c", "a"]
    upkeep.round(everyone=True)
    assert sorted(called.order[6:]) == ["a", "b", "c"]


async def test_one_that_ended_is_not_called_again() -> None:
    called = Called()
    upkeep = _upkeep(called, "a")
    called.due = {"a": None}
    upkeep.round()
    upkeep.wake(called.named["a"])
    upkeep.round(everyone=True)
    assert called.order == ["a"]
    assert upkeep.awake == 0


async def test_a_step_of_the_loop_calls_only_a_few() -> None:
    called = Called()
    upkeep = _upkeep(called, *(f"{number}" for number in range(2 * PER_STEP + 1)))
    upkeep.round()
    assert len(called.order) == PER_STEP
    upkeep.round()
    assert len(called.order) == PER_STEP, "the first round is not over"
    await asyncio.sleep(0)
    assert len(called.order) == 2 * PER_STEP
    await asyncio.sleep(0)
    assert called.order == [f"{number}" for number in range(2 * PER_STEP + 1)]


async def test_outdated_times_of_one_that_wakes_often_are_dropped() -> None:
    called = Called()
    upkeep = _upkeep(called, "a")
    for number in range(10 * PER_STEP):
        called.due["a"] = asyncio.get_running_loop().time() + 100 + number
        upkeep.wake(called.named["a"])
        upkeep.round()
    assert len(upkeep._heap) <= 2 * PER_STEP


def _awake(process: Process) -> int:
    return process.factory._upkeep.awake


async def _idle(process: Process, ledger: ManagedLedger) -> None:
    await append(ledger, b"one")
    assert _awake(process) == 1
    await asyncio.sleep(IDLE_S)
    assert _awake(process) == 0


def test_an_idle_ledger_rests_and_an_append_wakes_it() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await _idle(process, ledger)
        await append(ledger, b"two")
        assert _awake(process) == 1

    run(scenario)


def test_a_ledger_rests_soon_after_an_append_and_a_writer_that_cannot_be_repaired_gives_it_a_successor() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        await asyncio.sleep(2)
        assert _awake(process) == 0
        writer = process.client.tail()
        writer.is_beyond_repair = True
        assert writer.on_beyond_repair is not None
        writer.on_beyond_repair()
        assert _awake(process) == 1
        await asyncio.sleep(12)
        assert ledger.ledgers[-1].ledger_id > writer.ledger_id
        await asyncio.sleep(2)
        assert _awake(process) == 0

    run(scenario)


def test_an_idle_ledger_rolls_at_its_greatest_age_and_its_consumed_data_go() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await process.run(ledger.open_cursor("s", EARLIEST))
        cursor.acknowledge(await append(ledger, b"one"))
        [first] = [record.ledger_id for record in ledger.ledgers]
        await asyncio.sleep(3590)
        assert _awake(process) == 0
        assert [record.ledger_id for record in ledger.ledgers] == [first]
        await asyncio.sleep(30)
        assert first not in [record.ledger_id for record in ledger.ledgers]
        await asyncio.sleep(IDLE_S)
        assert _awake(process) == 0
        assert not ledger.entries

    run(scenario, rollover_age_max_s=3600.0)


def test_an_idle_ledger_is_trimmed_when_its_retention_ends() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        await process.run(ledger.roll())
        await asyncio.sleep(2 * 3600 - 10)
        assert _awake(process) == 0
        assert ledger.entries == 1
        await asyncio.sleep(150)
        assert ledger.entries == 0

    run(scenario, retention_s=2 * 3600.0, retention_bytes=UNLIMITED)


def test_a_ledger_without_enough_bookies_gets_its_successor_when_they_return_though_it_rests() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        await process.run(asyncio.sleep(0))
        process.client.set_writable(2)
        ledger = await process.open()
        await _idle(process, ledger)
        before = ledger.ledgers[-1].ledger_id
        process.client.set_writable(3)
        await asyncio.sleep(2)
        assert ledger.ledgers[-1].ledger_id > before

    run(scenario)


def test_a_new_cursor_or_a_seek_lets_consumed_ledgers_of_an_idle_topic_go() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        await process.run(ledger.roll())
        await append(ledger, b"two")
        await asyncio.sleep(IDLE_S)
        assert ledger.entries == 2
        cursor = await process.run(ledger.open_cursor("s", EARLIEST))
        await asyncio.sleep(IDLE_S)
        assert ledger.entries == 2
        await process.run(cursor.reset(LATEST))
        await asyncio.sleep(IDLE_S)
        assert ledger.entries == 1

    run(scenario)


def test_a_ledger_that_is_about_to_close_is_trimmed_by_its_next_owner() -> None:
    """A cursor that passes ledgers with its last save would let the close wait for a write of the list."""

    async def scenario(world: World) -> None:
        process, following = world.process(), world.process()
        ledger = await process.open()
        cursor = await process.run(ledger.open_cursor("s", EARLIEST))
        await append(ledger, b"one")
        await process.run(ledger.roll())
        [last] = await append(ledger, b"two")
        await process.run(ledger.drain())
        listed = world.list_node()
        cursor.acknowledge_cumulative(last)
        await process.run(ledger.close())
        assert world.list_node() == listed
        opened = await following.open()
        await asyncio.sleep(IDLE_S)
        assert opened.entries == 0

    run(scenario)
