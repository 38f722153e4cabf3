"""Cursors: acknowledging, reading, saving, recovery after a crash."""

import asyncio

import pytest

from quire_bookie.errors import BookieUnavailableError, MetadataUnavailableError, QuorumError
from quire_broker.managed_ledger import EARLIEST, LATEST, Cursor, Position
from quire_broker.managed_ledger.errors import CursorMissingError, CursorStateError, InvalidPositionError
from tests.unit.broker.managed_ledger.cursors_at_work import crash, read_numbers, with_cursor
from tests.unit.broker.managed_ledger.world import START_MS, World, append, numbered, run


def test_single_acknowledgments_move_the_mark_only_over_acknowledged_entries() -> None:
    async def scenario(world: World) -> None:
        _, _, cursor = await with_cursor(world, 10)
        assert cursor.backlog == 10
        cursor.acknowledge([Position(3, 1), Position(3, 2), Position(3, 4)])
        assert cursor.mark_delete == Position(3, -1)
        assert cursor.backlog == 7
        assert cursor.is_acknowledged(Position(3, 2))
        assert not cursor.is_acknowledged(Position(3, 0))
        cursor.acknowledge([Position(3, 0)])
        assert cursor.mark_delete == Position(3, 2)
        cursor.acknowledge([Position(3, 0), Position(3, 3)])
        assert cursor.mark_delete == Position(3, 4)
        assert cursor.backlog == 5

    run(scenario)


def test_the_mark_moves_over_the_end_of_a_ledger() -> None:
    async def scenario(world: World) -> None:
        _, ledger, cursor = await with_cursor(world, 10)
        first, second, *_ = [record.ledger_id for record in ledger.ledgers]
        cursor.acknowledge([Position(second, 0), Position(second, 1)])
        cursor.acknowledge([Position(first, entry) for entry in range(4)])
        assert cursor.mark_delete == Position(second, 1)
        assert cursor.backlog == 4

    run(scenario, ledger_entries_max=4)


def test_acknowledging_an_entry_that_does_not_exist_is_refused_or_ignored() -> None:
    async def scenario(world: World) -> None:
        _, _, cursor = await with_cursor(world, 5)
        with pytest.raises(InvalidPositionError):
            cursor.acknowledge([Position(3, 0), Position(3, 5)])
        assert cursor.mark_delete == Position(3, -1), "nothing of a refused call is acknowledged"
        with pytest.raises(InvalidPositionError):
            cursor.acknowledge_cumulative(Position(9, 0))
        cursor.acknowledge([Position(1, 3)])
        cursor.acknowledge_cumulative(Position(2, 7))
        assert cursor.mark_delete == Position(3, -1)
        assert cursor.backlog == 5

    run(scenario)


def test_parts_of_batches_beyond_the_bound_of_a_cursor_are_not_noted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 50)
        size, one_left = 8000, [-2] + [-1] * 124  # a mask of 1,000 bytes

        def noted() -> list[int]:
            return [entry for entry in range(50) if cursor.ack_set(Position(3, entry)) is not None]

        for entry in range(50):
            assert not cursor.acknowledge_batch(Position(3, entry), one_left, size)
        assert noted() == [0, 1, 2, 3, 4, 5, 6, 7]
        cursor.acknowledge_batch(Position(3, 3), [-3] + [-1] * 124, size)
        assert cursor.ack_set(Position(3, 3)) == (-4, *[-1] * 124), "a batch that has its place goes on"
        cursor.acknowledge([Position(3, 2), Position(3, 4)])
        for entry in range(20, 50):
            cursor.acknowledge_batch(Position(3, entry), one_left, size)
        assert noted() == [0, 1, 3, 5, 6, 7, 20, 21], "the place of acknowledged batches is free again"
        cursor.acknowledge_cumulative(Position(3, 20))
        cursor.acknowledge_cumulative(Position(3, 30), one_left)
        assert noted() == [30]
        for entry in range(31, 50):
            cursor.acknowledge_batch(Position(3, entry), one_left, size)
        assert noted() == list(range(30, 38))
        assert caplog.text.count("batchIndexAcksMaxMbPerSubscription") == 1
        await process.run(cursor.reset(Position(3, 10)))
        for entry in range(10, 50):
            cursor.acknowledge_batch(Position(3, entry), one_left, size)
        assert noted() == list(range(10, 18))
        await process.run(cursor.flush())
        cursor = (await crash(world, process)).cursors["sub"]
        cursor.acknowledge_batch(Position(3, 40), one_left, size)
        assert noted() == list(range(10, 18)), "stored batches count"

    run(scenario, batch_masks_bytes_max=10_000)


def test_a_cumulative_acknowledgment_takes_everything_before_it_and_never_goes_back() -> None:
    async def scenario(world: World) -> None:
        _, _, cursor = await with_cursor(world, 10)
        cursor.acknowledge([Position(3, 7), Position(3, 2)])
        cursor.acknowledge_cumulative(Position(3, 6))
        assert cursor.mark_delete == Position(3, 7)
        cursor.acknowledge_cumulative(Position(3, 3))
        assert cursor.mark_delete == Position(3, 7)
        assert await read_numbers(cursor) == [8, 9]

    run(scenario)


def test_a_batch_is_acknowledged_when_all_its_messages_are() -> None:
    async def scenario(world: World) -> None:
        _, _, cursor = await with_cursor(world, 2)
        position = Position(3, 0)
        assert not cursor.acknowledge_batch(position, [0b10110], 5)
        assert not cursor.acknowledge_batch(position, [0b01111], 5)
        assert cursor.ack_set(position) == (0b00110,)
        assert cursor.backlog == 2
        assert cursor.acknowledge_batch(position, [0b11001], 5)
        assert cursor.mark_delete == position
        assert cursor.ack_set(position) is None
        assert cursor.acknowledge_batch(position, [0b11111], 5), "it stays acknowledged"

    run(scenario)


def test_a_cumulative_acknowledgment_into_a_batch_leaves_the_rest_of_it() -> None:
    async def scenario(world: World) -> None:
        _, _, cursor = await with_cursor(world, 5)
        cursor.acknowledge_cumulative(Position(3, 2), [0b100])
        assert cursor.mark_delete == Position(3, 1)
        assert cursor.ack_set(Position(3, 2)) == (0b100,)
        cursor.acknowledge_cumulative(Position(3, 2), [0])
        assert cursor.mark_delete == Position(3, 2)

    run(scenario)


def test_reads_skip_acknowledged_entries_and_end_at_the_tail() -> None:
    async def scenario(world: World) -> None:
        _, ledger, cursor = await with_cursor(world, 12)
        ids = [record.ledger_id for record in ledger.ledgers]
        cursor.acknowledge([Position(ids[0], 1), Position(ids[0], 4), Position(ids[1], 0)])
        seen: list[int] = []
        while cursor.has_more:
            seen += await read_numbers(cursor, 3)
        assert seen == [0, 2, 3, 6, 7, 8, 9, 10, 11]
        assert await read_numbers(cursor) == []
        await append(ledger, *numbered(1, 12))
        assert await read_numbers(cursor) == [12]
        cursor.rewind()
        assert await read_numbers(cursor, 1) == [0]
        cursor.set_read_position(Position(ids[1], 3))
        assert await read_numbers(cursor, 1) == [8]
        cursor.set_read_position(EARLIEST)
        assert await read_numbers(cursor, 1) == [0]

    run(scenario, ledger_entries_max=5)


def test_a_read_is_bounded_by_bytes_but_gives_at_least_one_entry() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await ledger.open_cursor("sub")
        await append(ledger, *[b"%d" % number * 100 for number in range(5)])
        assert len(await cursor.read(10, 250)) == 2
        assert len(await cursor.read(10, 1)) == 1

    run(scenario)


def test_a_rewind_during_a_read_wins() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 10)
        await process.run(ledger.close())
        ledger = await world.process().open()
        cursor = await ledger.open_cursor("sub")
        assert await read_numbers(cursor, 5) == [0, 1, 2, 3, 4]
        reading = asyncio.ensure_future(read_numbers(cursor, 5))
        await asyncio.sleep(0)
        cursor.rewind()
        assert await reading == [0, 1, 2, 3, 4]
        assert cursor.read_position == Position(3, 5)

    run(scenario)


def test_where_a_new_cursor_starts() -> None:
    async def scenario(world: World) -> None:
        _, ledger, _ = await with_cursor(world, 10)
        latest = await ledger.open_cursor("latest", LATEST)
        assert latest.mark_delete == Position(3, 9)
        third = await ledger.open_cursor("third", Position(3, 3))
        assert await read_numbers(third, 1) == [3]
        beyond = await ledger.open_cursor("beyond", Position(99, 0))
        assert beyond.mark_delete == Position(3, 9)
        reader = ledger.open_reader_cursor("r", Position(3, 4))
        assert not reader.durable
        assert await read_numbers(reader, 1) == [4]
        assert await ledger.open_cursor("third", EARLIEST) is third
        assert set(ledger.cursors) == {"sub", "latest", "third", "beyond"}

    run(scenario)


def test_a_new_cursor_is_stored_as_pulsar_stores_it() -> None:
    async def scenario(world: World) -> None:
        _, ledger, _ = await with_cursor(world, 0)
        await ledger.open_cursor("a/b c*~", properties={"k": "v"})
        node = world.cursor_node("a%2Fb+c*%7E")
        assert node.ledger_id == -1
        assert node.state.mark_delete == Position(3, -1)
        assert node.cursor_properties == {"k": "v"}
        assert node.last_active_ms >= START_MS

    run(scenario)


def test_the_last_use_of_a_cursor_survives_an_orderly_end_and_counts_as_now_after_a_crash() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 10)
        used_ms = cursor.last_active_ms
        await asyncio.sleep(1000)
        await ledger.close()
        ledger = await process.open()
        cursor = await ledger.open_cursor("sub")
        assert cursor.last_active_ms == used_ms
        cursor.touch()
        assert cursor.last_active_ms >= used_ms + 1_000_000
        cursor.acknowledge([Position(3, 0)])
        await asyncio.sleep(1000)
        assert world.cursor_node("sub").ledger_id >= 0
        ledger = await crash(world, process)
        assert ledger.cursors["sub"].last_active_ms >= used_ms + 2_000_000, "it may have been used until the crash"

    run(scenario)


def test_a_hundred_acknowledgments_are_saved_at_once_and_fewer_after_a_second() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 200)
        cursor.acknowledge([Position(3, entry) for entry in range(100)])
        await asyncio.sleep(0.1)
        assert cursor.store is not None
        assert cursor.store.stats.snapshots == 1
        cursor.acknowledge([Position(3, 100), Position(3, 150)])
        await asyncio.sleep(0.8)
        assert cursor.store.stats.snapshots == 1
        await asyncio.sleep(0.5)
        assert cursor.store.stats.snapshots == 2
        ledger = await crash(world, process)
        again = ledger.cursors["sub"]
        assert again.mark_delete == Position(3, 100)
        assert again.is_acknowledged(Position(3, 150))
        assert again.backlog == 98
        assert world.cursor_node("sub").ledger_id >= 0

    run(scenario)


def test_an_acknowledgment_during_a_slow_save_is_saved_after_it() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 10)
        cursor.acknowledge([Position(3, 1)])
        await process.run(cursor.flush())
        writer = process.client.writers[-1]
        writer.held = True
        cursor.acknowledge([Position(3, 3)])
        await asyncio.sleep(1.5)
        cursor.acknowledge([Position(3, 5)])
        await asyncio.sleep(2)
        writer.release()
        await asyncio.sleep(2)
        again = (await crash(world, process)).cursors["sub"]
        assert [entry for entry in range(10) if again.is_acknowledged(Position(3, entry))] == [1, 3, 5]

    run(scenario)


def test_many_holes_survive_a_crash_at_default_settings() -> None:
    count = 24_000

    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, count)
        places = [(record.ledger_id, entry) for record in ledger.ledgers for entry in range(record.entries)]
        cursor.acknowledge([Position(*place) for place in places[::2]])
        await process.run(cursor.flush())
        again = (await crash(world, process)).cursors["sub"]
        assert again.backlog == count // 2
        world.bookies.reads = 0
        found: list[int] = []
        while numbers := await read_numbers(again, 1000):
            found += numbers
        assert found == list(range(1, count, 2))
        assert world.bookies.reads < 40, "entries between two holes take no read of their own"

    run(scenario, ledger_entries_max=10_000)


def test_a_long_range_of_acknowledged_entries_is_not_read() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 1000)
        cursor.acknowledge([Position(3, entry) for entry in [2, *range(5, 900)]])
        await process.run(cursor.flush())
        again = (await crash(world, process)).cursors["sub"]
        assert await read_numbers(again) == [0, 1, 3, 4]
        assert await read_numbers(again, 50) == list(range(900, 950))

    run(scenario)


def test_flushed_acknowledgments_survive_a_crash_with_batches_and_properties() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 20)
        cursor.acknowledge([Position(3, 3)])
        cursor.acknowledge_batch(Position(3, 5), [0b10], 2)
        cursor.set_properties({"producer": 17})
        await process.run(cursor.flush())
        ledger = await crash(world, process)
        again = ledger.cursors["sub"]
        assert again.is_acknowledged(Position(3, 3))
        assert again.ack_set(Position(3, 5)) == (0b10,)
        assert again.properties == {"producer": 17}
        assert again.read_position == Position(3, 0)

    run(scenario)


def test_a_clean_close_leaves_everything_in_the_node_and_no_cursor_ledger() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 20)
        cursor.acknowledge([Position(3, 0), Position(3, 4)])
        await process.run(cursor.flush())
        assert len(world.bookies.of_topic(cursor=True)) == 1
        cursor.acknowledge([Position(3, 1)])
        await process.run(ledger.close())
        node = world.cursor_node("sub")
        assert node.ledger_id == -1
        assert node.state.mark_delete == Position(3, 1)
        assert [tuple(known) for known in node.state.ranges] == [(3, 4, 4)]
        assert world.bookies.of_topic(cursor=True) == []
        assert not [key for key in world.metadata.nodes if key.startswith("/quire/")]

    run(scenario)


def test_a_state_too_large_for_the_node_stays_in_the_cursor_ledger() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 60)
        cursor.acknowledge([Position(3, entry) for entry in range(1, 60, 2)])
        await process.run(ledger.close())
        assert world.cursor_node("sub").ledger_id >= 0
        ledger = await world.process().open()
        assert ledger.cursors["sub"].backlog == 30

    run(scenario, unacked_ranges_in_node_max=10)


def test_beyond_the_bound_the_highest_ranges_are_delivered_again_and_the_mark_does_not_move() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 60)
        cursor.acknowledge([Position(3, entry) for entry in range(1, 60, 2)])
        assert cursor.mark_delete == Position(3, -1)
        await process.run(cursor.flush())
        assert cursor.mark_delete == Position(3, -1)
        ledger = await crash(world, process)
        again = ledger.cursors["sub"]
        assert again.mark_delete == Position(3, -1)
        assert [entry for entry in range(60) if again.is_acknowledged(Position(3, entry))] == [1, 3, 5, 7, 9]

    run(scenario, unacked_ranges_max=5, unacked_ranges_in_node_max=5)


def test_a_failed_cursor_ledger_is_replaced() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 20)
        cursor.acknowledge([Position(3, 0)])
        await process.run(cursor.flush())
        old = world.cursor_node("sub").ledger_id
        await asyncio.sleep(11)
        process.client.writers[-1].fail(BookieUnavailableError("gone"))
        cursor.acknowledge([Position(3, 1)])
        await process.run(cursor.flush())
        assert world.cursor_node("sub").ledger_id not in (old, -1)
        await asyncio.sleep(1)
        assert old not in world.bookies.ledgers
        ledger = await crash(world, process)
        assert ledger.cursors["sub"].mark_delete == Position(3, 1)

    run(scenario)


def test_a_cursor_ledger_on_fewer_bookies_is_replaced_when_they_are_back() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 20)
        process.client.set_writable(2)
        cursor.acknowledge([Position(3, 0)])
        await process.run(cursor.flush())
        old = world.cursor_node("sub").ledger_id
        assert world.bookies.ledgers[old].metadata.write_quorum == 2
        cursor.acknowledge([Position(3, 1)])
        await process.run(cursor.flush())
        assert world.cursor_node("sub").ledger_id == old, "no more bookies than before"
        process.client.set_writable(3)
        cursor.acknowledge([Position(3, 2)])
        await process.run(cursor.flush())
        new = world.cursor_node("sub").ledger_id
        assert new != old and world.bookies.ledgers[new].metadata.write_quorum == 3
        await asyncio.sleep(1)
        assert old not in world.bookies.ledgers

    run(scenario)


def test_without_any_ledger_the_node_takes_the_state() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 20)
        process.client.set_writable(0)
        cursor.acknowledge([Position(3, 0), Position(3, 5)])
        await process.run(cursor.flush())
        node = world.cursor_node("sub")
        assert node.ledger_id == -1
        assert node.state.mark_delete == Position(3, 0)
        assert len(node.state.ranges) == 1

    run(scenario)


def test_an_open_cursor_ledger_is_written_while_the_metadata_is_unavailable() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 20)
        cursor.acknowledge([Position(3, 0)])
        await process.run(cursor.flush())
        world.away(True)
        cursor.acknowledge([Position(3, 1)])
        await process.run(cursor.flush())
        world.away(False)
        ledger = await crash(world, process)
        assert ledger.cursors["sub"].mark_delete == Position(3, 1)

    run(scenario)


def test_while_the_metadata_is_away_a_new_cursor_waits() -> None:
    async def scenario(world: World) -> None:
        process, ledger, _ = await with_cursor(world, 5)
        world.away(True)
        opening = world.loop.run_on(process.node, ledger.open_cursor("new"))
        await asyncio.sleep(10)
        assert not opening.done()
        world.away(False)
        assert (await opening).name == "new"
        world.away(True)
        with pytest.raises(MetadataUnavailableError):
            await process.run(ledger.open_cursor("newer"))

    run(scenario)


def test_a_cursor_ledger_rolls_and_the_old_one_is_deleted() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 20)
        for entry in range(10):
            cursor.acknowledge([Position(3, entry)])
            await process.run(cursor.flush())
        await asyncio.sleep(1)
        assert len(world.bookies.of_topic(cursor=True)) == 1
        assert cursor.store is not None
        assert cursor.store.stats.node_writes == 1 + 4
        ledger = await crash(world, process)
        assert ledger.cursors["sub"].mark_delete == Position(3, 9)

    run(scenario, cursor_ledger_entries_max=3)


async def _saved_twice_then_crashed(world: World) -> int:
    process, _, cursor = await with_cursor(world, 20)
    for entry in (0, 1):
        cursor.acknowledge([Position(3, entry)])
        await process.run(cursor.flush())
    process.kill()
    return world.cursor_node("sub").ledger_id


def test_a_damaged_last_snapshot_falls_back_to_the_one_before() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await _saved_twice_then_crashed(world)
        world.bookies.ledgers[ledger_id].entries[-1] = b"\xff\xff\xff"
        ledger = await world.process().open()
        assert ledger.cursors["sub"].mark_delete == Position(3, 0)

    run(scenario)


def test_a_vanished_cursor_ledger_falls_back_to_the_node_and_never_to_the_latest() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await _saved_twice_then_crashed(world)
        del world.bookies.ledgers[ledger_id]
        ledger = await world.process().open()
        assert ledger.cursors["sub"].mark_delete == Position(3, 0), "the snapshot of when the ledger was made"

    run(scenario)


def test_an_empty_cursor_ledger_is_not_an_error() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await _saved_twice_then_crashed(world)
        world.bookies.ledgers[ledger_id].entries.clear()
        ledger = await world.process().open()
        assert ledger.cursors["sub"].mark_delete == Position(3, 0)

    run(scenario)


def test_a_state_that_cannot_be_read_now_refuses_the_open_until_it_can() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await _saved_twice_then_crashed(world)
        world.bookies.broken_reads[ledger_id] = QuorumError("too few answers")
        process = world.process()
        with pytest.raises(CursorStateError, match="sub"):
            await process.open()
        world.bookies.broken_reads.clear()
        ledger = await process.open()
        assert ledger.cursors["sub"].mark_delete == Position(3, 1)

    run(scenario)


def test_seek_back_is_durable_when_it_returns_and_forgets_acknowledgments() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 20)
        cursor.acknowledge([*[Position(3, entry) for entry in range(10)], Position(3, 15)])
        cursor.set_properties({"a": 1})
        await process.run(cursor.reset(Position(3, 4)))
        assert await read_numbers(cursor, 2) == [4, 5]
        ledger = await crash(world, process)
        again = ledger.cursors["sub"]
        assert again.mark_delete == Position(3, 3)
        assert again.backlog == 16
        assert again.properties == {}

    run(scenario)


def test_seek_understands_both_ends_and_keeps_the_properties_of_compaction() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 5)
        await process.run(cursor.reset(LATEST))
        assert (cursor.backlog, cursor.has_more) == (0, False)
        await process.run(cursor.reset(EARLIEST))
        assert cursor.backlog == 5
        compaction: Cursor = await process.run(ledger.open_cursor("__compaction"))
        compaction.set_properties({"CompactedTopicLedger": 7})
        await process.run(compaction.reset(Position(3, 2)))
        assert compaction.properties == {"CompactedTopicLedger": 7}

    run(scenario)


def test_a_deleted_cursor_is_gone_with_its_ledger() -> None:
    async def scenario(world: World) -> None:
        process, ledger, cursor = await with_cursor(world, 5)
        cursor.acknowledge([Position(3, 0)])
        await process.run(cursor.flush())
        await process.run(ledger.delete_cursor("sub"))
        await asyncio.sleep(1)
        assert world.bookies.of_topic(cursor=True) == []
        with pytest.raises(CursorMissingError):
            await ledger.delete_cursor("sub")
        ledger = await crash(world, process)
        assert ledger.cursors == {}

    run(scenario)


def test_the_subscriptions_properties_can_be_replaced() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 5)
        await process.run(cursor.set_cursor_properties({"x": "y"}))
        ledger = await crash(world, process)
        assert ledger.cursors["sub"].cursor_properties == {"x": "y"}

    run(scenario)


def test_saving_survives_lost_metadata_answers() -> None:
    async def scenario(world: World) -> None:
        process, _, cursor = await with_cursor(world, 30)
        world.metadata.unknown_chance = 0.5
        for entry in range(30):
            cursor.acknowledge([Position(3, entry)])
            await process.run(cursor.flush())
        world.metadata.unknown_chance = 0
        ledger = await crash(world, process)
        assert ledger.cursors["sub"].mark_delete == Position(3, 29)

    for seed in range(3):
        run(scenario, seed=seed, cursor_ledger_entries_max=2)
