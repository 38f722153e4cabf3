"""Opening, trimming, deleting, searching: guarantees across restarts and between owners."""

import asyncio

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.managed_ledger import LATEST, Cursor, ManagedLedger, ManagedLedgerState, Position
from quire_broker.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerMissingError,
)
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import encode_list
from tests.support.golden_etcd import dump
from tests.unit.broker.managed_ledger.world import NAME, Process, World, append, everything, numbered, run


async def _settle() -> None:
    await asyncio.sleep(2)


def _ids(ledger: ManagedLedger) -> list[int]:
    return [record.ledger_id for record in ledger.ledgers]


def _records_of_deletions(world: World) -> list[str]:
    return [key for key in world.metadata.nodes if key.startswith("/quire/")]


def test_a_new_topic_has_the_nodes_and_ledger_metadata_of_pulsar() -> None:
    async def scenario(world: World) -> None:
        world.bookies.next_id = 4
        await world.process().open()
        node = world.metadata.nodes[node_path(NAME)]
        stock = {stored.key: stored for stored in dump("pulsar-broker.txt")}
        smoke = stock["/managed-ledgers/public/default/persistent/smoke-1795249297"]
        assert node.value == smoke.value
        assert (node.version + 1, smoke.key_version) == (1, 2), "a stock broker writes an empty list first"
        metadata = world.bookies.ledger(4).metadata
        assert dict(metadata.custom) == {
            "component": b"managed-ledger",
            "pulsar/managed-ledger": NAME.encode(),
            "application": b"pulsar",
        }
        assert list(metadata.custom)[-1] == "application"
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
        assert metadata.password == b""

    run(scenario)


def test_opening_twice_gives_the_same_one_also_at_the_same_time() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        first, second = await asyncio.gather(process.open(), process.open())
        assert first is second
        assert await process.open() is first
        assert process.factory.opened == [first]
        await process.run(first.close())
        third = await process.open()
        assert third is not first
        assert third.state is ManagedLedgerState.OPEN

    run(scenario)


def test_a_missing_managed_ledger_is_created_only_on_request() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        with pytest.raises(ManagedLedgerMissingError):
            await process.open(create=False)
        factory = process.factory
        assert not await factory.exists(NAME)
        assert await factory.list("public/default/persistent") == []
        await process.open()
        await process.open("public/default/persistent/a%2Fb")
        assert await factory.exists(NAME)
        assert await factory.list("public/default/persistent") == ["public/default/persistent/a%2Fb", NAME]

    run(scenario)


def test_after_a_crash_every_stored_entry_exists_and_the_former_ledger_is_closed() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(7))
        process.client.tail().held = True
        ledger.append(b"entry-7", lambda position, error: None)
        await asyncio.sleep(0.01)
        process.kill()
        again = await world.process().open()
        assert await everything(again) == numbered(8), "stored, although the appends were not answered"
        stored = world.list_node().ledgers
        assert [record.entries for record in stored] == [8, 0]
        assert stored[0].size_bytes == sum(map(len, numbered(8)))
        assert again.last_confirmed == Position(3, 7)
        assert (await append(again, b"x"))[0] == Position(4, 0)

    run(scenario)


def test_restarts_without_appends_leave_no_empty_ledgers_behind() -> None:
    async def scenario(world: World) -> None:
        for _ in range(5):
            process = world.process()
            await process.open()
            process.kill()
        ledger = await world.process().open()
        await _settle()
        assert len(ledger.ledgers) == 1
        assert world.bookies.of_topic() == _ids(ledger)
        assert not _records_of_deletions(world)

    run(scenario)


def test_a_last_ledger_that_does_not_exist_is_dropped() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(12))
        process.kill()
        del world.bookies.ledgers[world.list_node().ledgers[-1].ledger_id]
        again = await world.process().open()
        assert await everything(again) == numbered(10)

    run(scenario, ledger_entries_max=10)


def test_opening_waits_for_the_metadata_but_not_for_ever() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        world.away(True)
        opening = asyncio.ensure_future(process.open())
        await asyncio.sleep(20)
        assert not opening.done()
        world.away(False)
        assert (await opening).state is ManagedLedgerState.OPEN
        world.away(True)
        with pytest.raises(MetadataUnavailableError):
            await process.open("public/default/persistent/other")

    run(scenario)


def test_consumed_ledgers_are_trimmed_and_deleted() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor: Cursor = await process.run(ledger.open_cursor("sub"))
        await process.run(ledger.open_cursor("slow"))
        await append(ledger, *numbered(35))
        cursor.acknowledge_cumulative(ledger.last_confirmed)
        await _settle()
        assert len(ledger.ledgers) == 4, "the slowest cursor holds them"
        ledger.cursors["slow"].acknowledge_cumulative(Position(_ids(ledger)[1], 4))
        await _settle()
        assert len(ledger.ledgers) == 3
        assert world.bookies.of_topic() == _ids(ledger)
        await process.run(ledger.delete_cursor("slow"))
        await _settle()
        assert len(ledger.ledgers) == 1
        assert world.bookies.of_topic() == _ids(ledger)
        assert [record.ledger_id for record in world.list_node().ledgers] == _ids(ledger)
        assert not _records_of_deletions(world)

    run(scenario, ledger_entries_max=10)


def test_a_client_that_subscribes_after_publishing_finds_everything() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(35))
        reader = ledger.open_reader_cursor("r", LATEST)
        await asyncio.sleep(500)
        assert await process.run(ledger.trim()) == []
        cursor = await ledger.open_cursor("late")
        assert cursor.backlog == 35
        ledger.close_reader_cursor(reader)

    run(scenario, ledger_entries_max=10)


def test_retention_trims_by_time_without_any_cursor() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await append(ledger, *numbered(15))
        await asyncio.sleep(50)
        assert len(ledger.ledgers) == 2
        await asyncio.sleep(300)
        assert len(ledger.ledgers) == 1

    run(scenario, ledger_entries_max=10, retention_s=100.0, retention_bytes=-1, rollover_age_max_s=1e6)


def test_a_reader_in_a_trimmed_ledger_continues_at_the_first_remaining_entry() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(25))
        reader = ledger.open_reader_cursor("r", Position(3, 2))
        assert (await reader.read(1))[0].data == b"entry-2"
        cursor = await process.run(ledger.open_cursor("sub", LATEST))
        assert cursor.backlog == 0
        await process.run(ledger.trim())
        assert (await reader.read(1))[0].data == b"entry-20"

    run(scenario, ledger_entries_max=10)


def test_a_deletion_that_fails_is_retried_also_by_the_next_owner() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(25))
        world.bookies.delete_failures = 1000
        await process.run(ledger.open_cursor("sub", LATEST))
        await process.run(ledger.trim())
        await asyncio.sleep(30)
        assert len(world.bookies.of_topic()) == 3
        assert len(_records_of_deletions(world)) == 2
        process.kill()
        world.bookies.delete_failures = 3
        ledger = await world.process().open()
        await asyncio.sleep(30)
        assert world.bookies.of_topic() == _ids(ledger)
        assert not _records_of_deletions(world)

    run(scenario, ledger_entries_max=10)


def test_a_trim_that_cannot_reach_the_metadata_deletes_nothing() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(25))
        await process.run(ledger.open_cursor("sub", LATEST))
        world.away(True)
        with pytest.raises(MetadataUnavailableError):
            await process.run(ledger.trim())
        world.away(False)
        assert len(world.bookies.of_topic()) == 3
        assert len(ledger.ledgers) == 3

    run(scenario, ledger_entries_max=10)


async def _full_topic(world: World) -> tuple[Process, ManagedLedger]:
    process = world.process()
    ledger = await process.open()
    cursor: Cursor = await process.run(ledger.open_cursor("sub"))
    await append(ledger, *numbered(25))
    cursor.acknowledge([Position(3, 0)])
    await process.run(cursor.flush())
    return process, ledger


def test_delete_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        process, ledger = await _full_topic(world)
        await process.run(process.factory.delete(NAME))
        assert not world.bookies.ledgers
        assert not [key for key in world.metadata.nodes if key.startswith(("/managed-ledgers", "/quire"))]
        with pytest.raises(ManagedLedgerClosedError):
            await ledger.read(Position(3, 0))
        with pytest.raises(ManagedLedgerMissingError):
            await process.run(process.factory.delete(NAME))
        again = await process.open()
        assert await everything(again) == []

    run(scenario, ledger_entries_max=10)


def test_a_delete_that_fails_on_the_way_can_be_repeated() -> None:
    async def scenario(world: World) -> None:
        process, ledger = await _full_topic(world)
        await process.run(ledger.close())
        world.bookies.delete_failures = 1000
        with pytest.raises(MetadataUnavailableError):
            await process.run(process.factory.delete(NAME))
        assert await process.factory.exists(NAME)
        world.bookies.delete_failures = 0
        await process.run(process.factory.delete(NAME))
        assert not world.bookies.ledgers

    run(scenario, ledger_entries_max=10)


def test_a_broker_that_was_stopped_deletes_nothing_of_the_next_owner() -> None:
    async def scenario(world: World) -> None:
        process, _ = await _full_topic(world)
        other = world.process()
        taken = await other.open()
        await append(taken, b"new")
        with pytest.raises(ManagedLedgerFencedError, match="another owner"):
            await process.run(process.factory.delete(NAME))
        assert await everything(taken) == [*numbered(25), b"new"]
        assert "sub" in taken.cursors

    run(scenario, ledger_entries_max=10)


@pytest.mark.parametrize("step", range(1, 12))
def test_a_takeover_at_any_step_of_a_deletion_keeps_what_comes_after_it(step: int) -> None:
    async def scenario(world: World) -> None:
        process, _ = await _full_topic(world)
        deletion = asyncio.ensure_future(process.run(process.factory.delete(NAME)))
        writes = len(world.metadata.history)
        while len(world.metadata.history) < writes + step and not deletion.done():  # noqa: ASYNC110  a test may poll
            await asyncio.sleep(0.0001)
        other = world.process()
        taken = await other.open()
        await other.run(taken.open_cursor("next"))
        await append(taken, b"new")
        await asyncio.gather(deletion, return_exceptions=True)
        await append(taken, b"newer")
        await other.run(taken.close())
        again = await world.process().open()
        assert (await everything(again))[-2:] == [b"new", b"newer"]
        assert "next" in again.cursors

    run(scenario, ledger_entries_max=10)


def test_a_deletion_waits_for_a_change_of_the_list_that_runs() -> None:
    async def scenario(world: World) -> None:
        process, ledger = await _full_topic(world)
        change = asyncio.ensure_future(process.run(ledger.set_property("index", "12")))
        await asyncio.sleep(0)
        await process.run(process.factory.delete(NAME))
        await asyncio.gather(change, return_exceptions=True)
        assert not await process.factory.exists(NAME)
        assert not world.bookies.ledgers

    run(scenario, ledger_entries_max=10)


def test_properties_are_stored_with_the_list() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await process.run(ledger.set_property("index", "12"))
        await append(ledger, *numbered(15))
        await process.run(ledger.set_property("gone", "x"))
        await process.run(ledger.set_property("gone", None))
        process.kill()
        again = await world.process().open()
        assert again.properties == {"index": "12"}

    run(scenario, ledger_entries_max=10)


def test_find_first_searches_over_ledgers() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        assert await ledger.find_first(lambda data: True) is None
        positions = await append(ledger, *[b"%04d" % number for number in range(0, 500, 10)])
        for wanted in (0, 1, 245, 250, 490):
            found = await ledger.find_first(lambda data, wanted=wanted: int(bytes(data)) >= wanted)  # type: ignore[misc]
            assert found == positions[(wanted + 9) // 10]
        assert await ledger.find_first(lambda data: int(bytes(data)) > 490) is None

    run(scenario, ledger_entries_max=7)


def test_a_tail_reader_is_served_from_the_cache_and_a_late_one_from_bookies() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await ledger.open_cursor("sub")
        await append(ledger, *numbered(20))
        assert len(await cursor.read(100)) == 20
        assert world.bookies.reads == 0
        process.factory.cache.expire(1e9)
        assert process.factory.cache.size_bytes == 0
        cursor.rewind()
        assert len(await cursor.read(100)) == 20
        assert world.bookies.reads == 1
        stats = process.factory.cache.stats
        assert (stats.hits, stats.misses) == (20, 20), "both count entries"

    run(scenario)


def test_the_same_read_at_the_same_time_is_done_once() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await append(ledger, *numbered(20))
        both = await asyncio.gather(ledger.read(Position(3, 0), 10), ledger.read(Position(3, 0), 10))
        assert both[0] == both[1]
        assert world.bookies.reads == 1

    run(scenario)


def test_a_list_that_pulsar_wrote_is_taken_over() -> None:
    """Two closed ledgers, one of them empty by its counts, and an unclean last one with a zero timestamp."""

    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(12))
        process.kill()
        node = world.list_node()
        world.metadata.write(node_path(NAME), encode_list(node), None)
        again = await world.process().open()
        assert await everything(again) == numbered(12)
        assert [record.entries for record in world.list_node().ledgers] == [10, 2, 0]

    run(scenario, ledger_entries_max=10)


def test_the_factory_closes_everything() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        one, two = await process.open(), await process.open("public/default/persistent/two")
        await append(one, b"x")
        await append(two, b"y")
        await process.run(process.factory.close())
        assert {one.state, two.state} == {ManagedLedgerState.CLOSED}
        assert {found.metadata.last_entry for found in world.bookies.ledgers.values()} == {0}
        with pytest.raises(ManagedLedgerClosedError):
            await process.open()

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_of_two_owners_that_open_at_the_same_time_one_is_fenced(seed: int) -> None:
    async def scenario(world: World) -> None:
        first = await world.process().open()
        await append(first, *numbered(5))
        opened = await asyncio.gather(*(world.process().open() for _ in range(2)), return_exceptions=True)
        lost = [outcome for outcome in opened if isinstance(outcome, ManagedLedgerFencedError)]
        won = [outcome for outcome in opened if isinstance(outcome, ManagedLedger)]
        assert (len(lost), len(won)) == (1, 1)
        await append(won[0], b"more")
        assert await everything(won[0]) == [*numbered(5), b"more"]

    run(scenario, seed=seed)
