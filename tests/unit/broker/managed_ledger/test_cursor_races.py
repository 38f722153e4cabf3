"""Cursors beside trimming, seeks, failures, cancellations and former owners."""

import asyncio

import pytest

from quire_bookie.errors import BookieUnavailableError, MetadataUnavailableError
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger import EARLIEST, Position
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError
from quire_broker.managed_ledger.stored_passwords import AcceptStored
from tests.unit.broker.managed_ledger.cursors_at_work import crash, read_numbers, with_cursor
from tests.unit.broker.managed_ledger.ledgers import FakeReader
from tests.unit.broker.managed_ledger.world import World, append, numbered, run


@pytest.mark.parametrize("steps", range(24))
def test_entries_before_a_seek_back_are_not_trimmed_until_consumed_again(steps: int) -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 21)
        cursor.acknowledge_cumulative(ledger.last_confirmed)
        await process.run(cursor.flush())
        await asyncio.sleep(steps * 0.0005)  # somewhere in the trimming that this began
        await process.run(cursor.reset(EARLIEST))
        brought = await read_numbers(cursor)
        await asyncio.sleep(10)
        cursor.rewind()
        assert await read_numbers(cursor) == brought
        assert cursor.backlog == len(brought)

    run(scenario, seed=steps, ledger_entries_max=10)


@pytest.mark.parametrize("steps", range(8))
def test_a_new_cursor_keeps_the_entries_that_are_there_when_it_is_made(steps: int) -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 21)
        opening = asyncio.ensure_future(process.run(ledger.open_cursor("new")))
        await asyncio.sleep(steps * 0.0005)
        cursor.acknowledge_cumulative(ledger.last_confirmed)
        newcomer = await opening
        assert await read_numbers(newcomer) == list(range(21))
        await asyncio.sleep(10)
        newcomer.rewind()
        assert await read_numbers(newcomer) == list(range(21))

    run(scenario, seed=steps, ledger_entries_max=10)


def test_a_read_that_a_close_ends_says_so_and_is_not_taken_for_a_cancelled_reader() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 5)
        memory = ledger._reader._memory
        memory.hold(memory.bytes_max)
        ledger._reader._cache.drop_ledger(3)
        readers = [asyncio.ensure_future(process.run(cursor.read(5))) for _ in range(2)]
        await asyncio.sleep(1)
        readers[0].cancel()
        await process.run(ledger.close())
        with pytest.raises(asyncio.CancelledError):
            await readers[0]
        with pytest.raises(ManagedLedgerClosedError, match="closed while its ledger 3 was read"):
            await readers[1]
        memory.let_go(memory.bytes_max)
        assert memory.used_bytes == 0

    run(scenario)


def test_a_deletion_that_fails_leaves_a_cursor_that_works() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 5)
        world.away(True)
        with pytest.raises(MetadataUnavailableError):
            await process.run(ledger.delete_cursor("sub"))
        world.away(False)
        assert await read_numbers(cursor) == list(range(5))
        cursor.acknowledge([Position(3, 0)])
        await process.run(cursor.flush())
        await process.run(ledger.delete_cursor("sub"))
        assert not ledger.cursors

    run(scenario)


def test_failing_cursor_ledgers_do_not_cost_a_new_one_for_every_snapshot() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 500)
        before = len(world.bookies.created)
        for entry in range(500):
            cursor.acknowledge([Position(3, entry)])
            await process.run(cursor.flush())
            process.client.writers[-1].fail(BookieUnavailableError("gone"))
            await asyncio.sleep(0.01)
        assert len(world.bookies.created) - before <= 2
        assert (await crash(world, process)).cursors["sub"].mark_delete == Position(3, 499)

    run(scenario)


def test_a_cursor_ledger_that_a_former_owner_replaced_meanwhile_is_found() -> None:
    async def scenario(world: World) -> None:
        former, _, cursor = await with_cursor(world, 5)
        cursor.acknowledge([Position(3, 0)])
        await former.run(cursor.flush())
        named = world.cursor_node("sub").ledger_id
        process = world.process()
        plain = process.client.open_ledger

        async def open_late(
            ledger: LedgerId, *, password: bytes = b"", recover: bool, **rest: AcceptStored
        ) -> FakeReader:
            if ledger == named and ledger in world.bookies.ledgers:
                for entry in range(1, 4):
                    cursor.acknowledge([Position(3, entry)])
                    await former.run(cursor.flush())
                await asyncio.sleep(1)
            return await plain(ledger, password=password, recover=recover, **rest)

        process.client.open_ledger = open_late  # type: ignore[method-assign]
        assert (await process.open()).cursors["sub"].mark_delete == Position(3, 3)
        assert named not in world.bookies.ledgers

    run(scenario, cursor_ledger_entries_max=2)


def test_after_a_failed_seek_the_valid_state_is_saved_again() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 5)
        cursor.acknowledge([Position(3, 0), Position(3, 1)])
        await process.run(cursor.flush())
        assert cursor.store is not None
        saved = cursor.store.stats.snapshots
        process.client.writers[-1].fail(BookieUnavailableError("gone"))
        world.away(True)
        with pytest.raises(MetadataUnavailableError):
            await process.run(cursor.reset(EARLIEST))
        assert cursor.mark_delete == Position(3, 1)
        world.away(False)
        await asyncio.sleep(15)
        assert cursor.store.stats.snapshots + cursor.store.stats.node_writes > saved + 2, "the seek may be stored"

    run(scenario)


def test_a_cursor_whose_creation_was_cancelled_can_be_opened_again() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(5))
        for _ in range(20):
            opening = asyncio.ensure_future(process.run(ledger.open_cursor("sub")))
            while "sub" not in "".join(world.metadata.nodes):  # noqa: ASYNC110  virtual time
                await asyncio.sleep(0.0001)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            assert await read_numbers(await process.run(ledger.open_cursor("sub"))) == list(range(5))
            await process.run(ledger.delete_cursor("sub"))

    run(scenario)


def test_acknowledgments_during_a_save_are_saved_by_the_next_one() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 5)
        cursor.acknowledge([Position(3, 0)])
        await process.run(cursor.flush())
        process.client.writers[-1].held = True
        cursor.acknowledge([Position(3, 1)])
        saving = asyncio.ensure_future(process.run(cursor.flush()))
        await asyncio.sleep(0.1)
        cursor.acknowledge([Position(3, 2)])
        process.client.writers[-1].release()
        await saving
        await asyncio.sleep(3)
        assert (await crash(world, process)).cursors["sub"].mark_delete == Position(3, 2)

    run(scenario)


def test_a_closed_cursor_does_not_report_later_acknowledgments_as_saved() -> None:
    """Found by a seed of the simulator: acknowledgments that arrived during the close were reported as saved."""

    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 5)
        await process.run(cursor.close())
        with pytest.raises(ManagedLedgerClosedError):
            await process.run(cursor.flush())

    run(scenario)
