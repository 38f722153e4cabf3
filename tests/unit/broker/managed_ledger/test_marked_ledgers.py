"""Tests which open ledgers a broker ends because a replica is marked as missing, when, and how often."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from quire_bookie.metadata.under_replication import Mark, UnderReplication
from quire_bookie.model import BookieId, LedgerId, LedgerState
from quire_broker.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.cursors.cursor_state import NO_CURSOR_LEDGER
from quire_broker.managed_ledger.marked_ledgers import MarkedLedgers
from quire_broker.settings.managed_ledger import ManagedLedgerSettings, MarkedLedgerSettings
from tests.sim.metadata import SimMetadataStore
from tests.unit.broker.managed_ledger.world import (
    Process,
    VirtualClock,
    World,
    append,
    everything,
    numbered,
    run,
)

SETTINGS = MarkedLedgerSettings(idle_s=5.0, rollovers_s=50)
BOOKIE = BookieId("bookie-1")


@contextlib.asynccontextmanager
async def watching(process: Process, settings: MarkedLedgerSettings = SETTINGS) -> AsyncIterator[MarkedLedgers]:
    """The broker of `process` follows the marks."""
    marked = MarkedLedgers(process.factory, process.client, process.store, settings, VirtualClock())
    tasks = [asyncio.ensure_future(marked.follow()), asyncio.ensure_future(marked.run())]
    try:
        yield marked
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in ended if isinstance(one, Exception)] == []


def marks_of(world: World) -> UnderReplication:
    return UnderReplication(SimMetadataStore(world.metadata), VirtualClock())


async def mark(world: World, ledger: int) -> Mark:
    """Mark a ledger, as auto-recovery does when it misses a bookie."""
    marks = marks_of(world)
    await marks.mark(LedgerId(ledger), [BOOKIE])
    found = await marks.read(LedgerId(ledger))
    assert found is not None
    return found


async def version(world: World, ledger: int) -> int | None:
    found = await marks_of(world).read(LedgerId(ledger))
    return None if found is None else found.version


def tail(ledger: ManagedLedger) -> int:
    return ledger.ledgers[-1].ledger_id


def test_an_idle_marked_ledger_is_closed_its_mark_renewed_and_the_next_entry_is_in_its_successor() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(3))
        old = tail(ledger)
        async with watching(process) as marked:
            await mark(world, old)
            await asyncio.sleep(4)
            assert tail(ledger) == old, "its writer has some time to go on"
            await asyncio.sleep(4)
            assert world.bookies.ledger(old).metadata.state is LedgerState.CLOSED
            assert await version(world, old) == 1, "workers look at it at once"
            assert (marked.marked, marked.ended) == ([], 1)
        assert tail(ledger) != old
        await append(ledger, *numbered(2, 3))
        assert await everything(ledger) == numbered(5)
        assert world.bookies.ledger(tail(ledger)).entries == numbered(2, 3)

    run(scenario)


def test_a_ledger_that_is_written_stays_until_it_rests() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(1))
        old = tail(ledger)
        async with watching(process):
            await mark(world, old)
            for number in range(1, 11):
                await asyncio.sleep(3)
                await append(ledger, *numbered(1, number))
                assert tail(ledger) == old
            await asyncio.sleep(8)
            assert tail(ledger) != old
        assert await everything(ledger) == numbered(11)

    run(scenario)


def test_appends_during_the_change_wait_and_keep_their_order() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(2))
        old = tail(ledger)
        async with watching(process):
            await mark(world, old)
            sent = 2
            while tail(ledger) == old:
                await asyncio.sleep(0.001 if ledger.must_stay else 0.02)
                if ledger.must_stay:  # it is changing to the successor
                    await append(ledger, *numbered(3, sent))
                    sent += 3
        assert sent > 2
        assert await everything(ledger) == numbered(sent)

    run(scenario)


def test_an_empty_ledger_and_one_with_entries_in_flight_are_left_alone() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        empty, held = await process.open("a/b/persistent/empty"), await process.open("a/b/persistent/held")
        await append(held, *numbered(1))
        writer = process.client.writers[-1]
        assert writer.ledger_id == tail(held)
        writer.held = True
        held.append(b"entry-1", lambda *_: None)
        async with watching(process) as marked:
            before = [tail(empty), tail(held)]
            for one in before:
                await mark(world, one)
            await asyncio.sleep(30)
            assert [tail(empty), tail(held)] == before
            writer.release()
            await asyncio.sleep(10)
            assert tail(empty) == before[0] and tail(held) != before[1]
            assert marked.marked == [before[0]]
        assert await everything(held) == numbered(2)

    run(scenario)


def test_nothing_ends_while_too_few_bookies_take_a_successor() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(1))
        old = tail(ledger)
        async with watching(process):
            process.client.set_writable(2)
            await mark(world, old)
            await asyncio.sleep(60)
            assert tail(ledger) == old
            process.client.set_writable(3)
            await asyncio.sleep(8)
            assert tail(ledger) != old
        assert await everything(ledger) == numbered(1)

    run(scenario)


def test_an_idle_cursor_leaves_its_marked_ledger_and_keeps_what_is_acknowledged() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await ledger.open_cursor("sub")
        positions = await append(ledger, *numbered(6))
        cursor.acknowledge([positions[0], positions[3]])
        await cursor.flush()
        old = world.cursor_node("sub").ledger_id
        assert old != NO_CURSOR_LEDGER
        async with watching(process) as marked:
            await mark(world, old)
            await asyncio.sleep(10)
            node = world.cursor_node("sub")
            assert node.ledger_id == NO_CURSOR_LEDGER
            assert node.state.mark_delete == positions[0] and positions[3] in node.state.ranges
            assert old not in world.bookies.ledgers, "nothing refers to it"
            assert marked.ended == 1 and await version(world, old) == 1
            cursor.acknowledge([positions[1]])
            await cursor.flush()
            assert world.cursor_node("sub").ledger_id not in (NO_CURSOR_LEDGER, old)
        process.kill()
        again = await (await world.process().open()).open_cursor("sub")
        assert again.mark_delete == positions[1] and again.is_acknowledged(positions[3])

    run(scenario)


def test_a_state_that_is_too_large_for_the_node_moves_to_another_ledger() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await ledger.open_cursor("sub")
        positions = await append(ledger, *numbered(40))
        cursor.acknowledge(positions[1::2])
        await cursor.flush()
        old = world.cursor_node("sub").ledger_id
        async with watching(process):
            await mark(world, old)
            await asyncio.sleep(10)
            new = world.cursor_node("sub").ledger_id
            assert new not in (NO_CURSOR_LEDGER, old) and old not in world.bookies.ledgers
        process.kill()
        again = await (await world.process().open()).open_cursor("sub")
        assert [one for one in positions if again.is_acknowledged(one)] == positions[1::2]

    run(scenario, settings=ManagedLedgerSettings(unacked_ranges_in_node_max=5))


def test_marks_from_before_the_watch_and_in_lost_events_are_found() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(1))
        first = tail(ledger)
        await mark(world, first)
        async with watching(process) as marked:
            await asyncio.sleep(8)
            second = tail(ledger)
            assert second != first
            await append(ledger, *numbered(1, 1))
            watches, world.metadata.watches = world.metadata.watches, []
            await mark(world, second)
            await asyncio.sleep(20)
            assert marked.marked == []
            world.metadata.watches = watches
            process.store.lose_events()
            await asyncio.sleep(10)
            assert tail(ledger) != second
            assert marked.marked == []
        assert await everything(ledger) == numbered(2)

    run(scenario)


def test_a_removed_mark_and_the_marks_of_others_cost_nothing() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(1))
        async with watching(process) as marked:
            await mark(world, 4711)
            found = await mark(world, tail(ledger))
            await asyncio.sleep(2)
            assert marked.marked == [tail(ledger)]
            assert await marks_of(world).remove(found)
            await asyncio.sleep(2)
            assert marked.marked == []
            await asyncio.sleep(20)
            assert marked.ended == 0
        assert await version(world, 4711) == 0

    run(scenario)


def test_a_marked_ledger_that_ends_for_another_reason_is_looked_at_at_once() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(1))
        old = tail(ledger)
        async with watching(process) as marked:
            await mark(world, old)
            await asyncio.sleep(1)
            await ledger.close()
            await asyncio.sleep(2)
            assert await version(world, old) == 1
            assert (marked.marked, marked.ended) == ([], 0)

    run(scenario)


def test_many_marks_end_their_ledgers_at_the_configured_rate() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledgers = [await process.open(f"a/b/persistent/t{number}") for number in range(60)]
        for one in ledgers:
            await append(one, *numbered(1))
        async with watching(process, MarkedLedgerSettings(idle_s=5.0, rollovers_s=4)) as marked:
            for one in ledgers:
                await mark(world, tail(one))
            await asyncio.sleep(10)
            assert 8 <= marked.ended <= 24
            await asyncio.sleep(12)
            assert marked.ended == 60 and marked.marked == []

    run(scenario)


def test_an_unavailable_store_delays_the_end_and_breaks_nothing() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await ledger.open_cursor("sub")
        await append(ledger, *numbered(2))
        cursor.acknowledge([ledger.first_position()])
        await cursor.flush()
        old, of_cursor = tail(ledger), world.cursor_node("sub").ledger_id
        async with watching(process) as marked:
            for one in (old, of_cursor):
                await mark(world, one)
            await asyncio.sleep(1)
            world.away(True)
            await asyncio.sleep(60)
            world.away(False)
            await asyncio.sleep(40)
            assert tail(ledger) != old and world.cursor_node("sub").ledger_id == NO_CURSOR_LEDGER
            assert (marked.marked, marked.ended) == ([], 2)
        await append(ledger, *numbered(1, 2))
        assert await everything(ledger) == numbered(3)

    run(scenario)


def test_an_idle_time_of_zero_turns_it_off() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(1))
        old = tail(ledger)
        async with watching(process, MarkedLedgerSettings(idle_s=0.0)) as marked:
            await mark(world, old)
            await asyncio.sleep(1000)
            assert (marked.marked, tail(ledger)) == ([], old)

    run(scenario)
