"""Appends: order, rollover, failures of a ledger, unavailable metadata, fencing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from quire_bookie.errors import BookieUnavailableError, LedgerFencedError, MetadataUnavailableError
from quire_bookie.model import EntryId
from quire_broker.managed_ledger import ManagedLedgerState, Position
from quire_broker.managed_ledger.errors import (
    LedgerSwitchError,
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from quire_broker.managed_ledger.ledger_port import Payload
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from tests.unit.broker.managed_ledger.ledgers import FakeWriter
from tests.unit.broker.managed_ledger.world import (
    START_MS,
    Answers,
    Process,
    World,
    append,
    everything,
    numbered,
    run,
)


def test_appends_get_consecutive_positions_in_order_and_one_submit_a_loop_step() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        answers = Answers()
        entries = numbered(50)
        for entry in entries:
            ledger.append(entry, answers(entry))
        await asyncio.sleep(0.01)
        assert answers.order == entries
        assert [answers.stored[entry] for entry in entries] == [Position(3, at) for at in range(50)]
        assert process.client.tail().submits == 1
        assert ledger.last_confirmed == Position(3, 49)
        assert await everything(ledger) == entries

    run(scenario)


def test_an_entry_may_come_in_parts() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        done: asyncio.Future[Position | None] = asyncio.get_running_loop().create_future()
        ledger.append((b"head", memoryview(b"xbodyx")[1:5]), lambda position, error: done.set_result(position))
        await done
        assert await everything(ledger) == [b"headbody"]

    run(scenario)


def test_listeners_are_called_once_per_batch_after_the_appends_were_answered() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        heard: list[Position] = []
        remove = ledger.on_append(lambda: heard.append(ledger.last_confirmed))
        await append(ledger, *numbered(20))
        assert heard == [Position(3, 19)]
        remove()
        await append(ledger, b"more")
        assert len(heard) == 1

    run(scenario)


def test_the_entry_that_fills_a_ledger_is_its_last() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        positions = await append(ledger, *numbered(25))
        assert [position.entry_id for position in positions] == [*range(10), *range(10), *range(5)]
        assert await everything(ledger) == numbered(25)
        stored = world.list_node().ledgers
        assert [record.entries for record in stored] == [10, 10, 0]
        assert [record.closed_ms >= START_MS for record in stored] == [True, True, False]
        assert stored[0].size_bytes == sum(map(len, numbered(10)))

    run(scenario, ledger_entries_max=10)


def test_a_ledger_rolls_by_size() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        positions = await append(ledger, *[b"x" * 40] * 6)
        assert [position.entry_id for position in positions] == [0, 1, 2, 0, 1, 2]

    run(scenario, ledger_bytes_max=100)


def test_the_minimum_age_holds_back_the_other_rules() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await append(ledger, *numbered(25))
        assert len(ledger.ledgers) == 1
        await asyncio.sleep(61)
        await append(ledger, b"last")
        await asyncio.sleep(2)
        assert [record.entries for record in ledger.ledgers] == [25, 1]

    run(scenario, ledger_entries_max=10, rollover_age_min_s=60.0)


def test_an_idle_ledger_rolls_at_its_maximum_age_once() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await append(ledger, b"one")
        await asyncio.sleep(10_000)
        assert [record.entries for record in ledger.ledgers] == [1, 0]

    run(scenario, rollover_age_max_s=3600.0)


def test_a_roll_waits_until_a_whole_ensemble_is_writable() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        process.client.set_writable(2)
        await append(ledger, *numbered(30))
        assert len(ledger.ledgers) == 1
        process.client.set_writable(3)
        await asyncio.sleep(1)
        assert [record.entries for record in ledger.ledgers] == [30, 0]

    run(scenario, ledger_entries_max=10)


def test_a_degraded_ledger_rolls_once_a_whole_ensemble_is_writable() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        process.client.tail().is_beyond_repair = True
        process.client.set_writable(2)
        await asyncio.sleep(60)
        assert len(ledger.ledgers) == 1
        process.client.set_writable(3)
        await asyncio.sleep(1)
        assert [record.entries for record in ledger.ledgers] == [1, 0]

    run(scenario, rollover_age_min_s=600.0)


def test_with_fewer_bookies_a_smaller_ledger_is_made_and_replaced_later() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        metadata = process.client.tail().metadata
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (2, 2, 2)
        process.client.set_writable(3)
        await asyncio.sleep(15)
        await append(ledger, b"two")
        assert process.client.tail().metadata.ensemble_size == 3
        assert await everything(ledger) == [b"one", b"two"]

    run(scenario, bookies=2)


def test_an_empty_ledger_on_fewer_bookies_is_replaced_too_and_its_readers_continue() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        cursor = await process.run(ledger.open_cursor("sub"))
        before = process.client.tail().ledger_id
        process.client.set_writable(3)
        await asyncio.sleep(15)
        assert process.client.tail().metadata.ensemble_size == 3
        assert before not in world.bookies.ledgers
        await append(ledger, *numbered(3))
        assert await everything(ledger) == numbered(3)
        assert cursor.backlog == 3

    run(scenario, bookies=2)


def test_without_enough_bookies_it_opens_for_readers_and_appends_fail_in_time() -> None:
    async def scenario(world: World) -> None:
        first = world.process()
        ledger = await first.open()
        await append(ledger, *numbered(3))
        await first.run(ledger.close())
        second = world.process()
        second.client.set_writable(1)
        ledger = await second.open()
        assert await everything(ledger) == numbered(3)
        with pytest.raises(LedgerSwitchError):
            await append(ledger, b"x")
        second.client.set_writable(3)
        await asyncio.sleep(10)
        await append(ledger, b"y")
        assert await everything(ledger) == [*numbered(3), b"y"]
        assert [record.entries for record in world.list_node().ledgers] == [3, 0]

    run(scenario)


def test_rules_of_placement_that_allow_no_ledger_are_an_obstacle_until_it_can_be_created() -> None:
    async def scenario(world: World) -> None:
        world.bookies.forbidden = "no 3 of the 3 registered bookies satisfy: distinct machines"
        process = world.process()
        ledger = await process.open()

        async def obstacle() -> str:
            return ledger.obstacle()

        for _ in range(3):
            assert await process.run(obstacle()) == world.bookies.forbidden
            await asyncio.sleep(10)
        world.bookies.forbidden = ""
        await asyncio.sleep(120)
        assert await process.run(obstacle()) == ""
        await append(ledger, b"x")
        assert await everything(ledger) == [b"x"]
        world.bookies.forbidden = "again"
        assert await process.run(obstacle()) == ""  # it has a ledger

    run(scenario)


def test_too_few_bookies_are_no_obstacle_because_appends_wait_for_them() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        process.client.set_writable(0)
        ledger = await process.open()

        async def obstacle() -> str:
            return ledger.obstacle()

        assert await process.run(obstacle()) == ""

    run(scenario)


def test_a_failed_ledger_is_closed_and_its_pending_appends_go_to_the_next_in_order() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(5))
        tail = process.client.tail()
        tail.held = True
        answers = Answers()
        for entry in numbered(20, 5):
            ledger.append(entry, answers(entry))
        await asyncio.sleep(0.01)
        tail.confirm(9)
        tail.fail(BookieUnavailableError("two bookies are gone"))
        for entry in numbered(3, 25):
            ledger.append(entry, answers(entry))
        await asyncio.sleep(2)
        assert answers.order == numbered(23, 5)
        assert not answers.failed
        assert answers.stored[b"entry-9"] == Position(3, 9)
        assert answers.stored[b"entry-10"].entry_id == 0
        assert await everything(ledger) == numbered(28)
        assert world.list_node().ledgers[0].entries == 10
        assert ledger.append_stats.switches == 1

    run(scenario)


def test_an_empty_ledger_that_fails_leaves_the_list_and_is_deleted() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        process.client.tail().fail(BookieUnavailableError("gone"))
        await append(ledger, b"one")
        await asyncio.sleep(1)
        assert [record.ledger_id for record in ledger.ledgers] == [4]
        assert world.bookies.of_topic() == [4]

    run(scenario)


def test_entries_of_a_ledger_that_another_client_recovered_are_confirmed() -> None:
    """Auto-recovery closed it: stored entries are confirmed and not appended twice."""

    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        tail = process.client.tail()
        tail.held = True
        answers = Answers()
        for entry in numbered(6):
            ledger.append(entry, answers(entry))
        await asyncio.sleep(0.01)
        await process.client.open_ledger(tail.ledger_id, recover=True)
        for entry in numbered(2, 6):
            ledger.append(entry, answers(entry))
        await asyncio.sleep(2)
        assert ledger.state is ManagedLedgerState.OPEN
        assert answers.order == numbered(8)
        assert [answers.stored[entry].ledger_id for entry in numbered(8)] == [3] * 6 + [4] * 2
        assert await everything(ledger) == numbered(8)

    run(scenario)


def test_another_owner_fences_this_one_and_loses_nothing() -> None:
    async def scenario(world: World) -> None:
        old, new = world.process(), world.process()
        first = await old.open()
        fenced: list[BaseException] = []
        first.on_fenced = fenced.append
        await append(first, *numbered(5))
        second = await new.open()
        answers = Answers()
        first.append(b"stale", answers(b"stale"))
        await asyncio.sleep(5)
        assert isinstance(answers.failed[b"stale"], ManagedLedgerFencedError)
        assert first.state is ManagedLedgerState.FENCED
        assert len(fenced) == 1
        await append(second, *numbered(5, 5))
        assert await everything(second) == numbered(10)
        with pytest.raises(ManagedLedgerFencedError):
            await first.read(Position(3, 0))
        await asyncio.sleep(5)
        listed = {record.ledger_id for record in world.list_node().ledgers}
        assert set(world.bookies.of_topic()) == listed, "the ledger the old owner made is deleted"

    run(scenario)


def test_appends_fail_when_no_ledger_can_be_made_and_succeed_again_later() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        process.client.set_writable(1)
        process.client.tail().fail(BookieUnavailableError("gone"))
        with pytest.raises(LedgerSwitchError):
            await append(ledger, b"two")
        process.client.set_writable(3)
        await asyncio.sleep(10)
        await append(ledger, b"three")
        assert await everything(ledger) == [b"one", b"three"]

    run(scenario)


def test_a_switch_survives_lost_metadata_responses() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        world.metadata.unknown_chance = 0.5
        positions = [(await append(ledger, entry))[0] for entry in numbered(40)]
        assert ledger.state is ManagedLedgerState.OPEN
        assert positions == sorted(positions)
        assert await everything(ledger) == numbered(40)

    for seed in range(5):
        run(scenario, seed=seed, ledger_entries_max=4)


def test_an_oversized_entry_fails_alone() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        answers = Answers()
        for entry in (b"a", b"x" * 5_000_001, b"b"):
            ledger.append(entry, answers(entry))
        await asyncio.sleep(0.1)
        assert list(answers.failed) == [b"x" * 5_000_001]
        assert await everything(ledger) == [b"a", b"b"]
        assert len(ledger.ledgers) == 1

    run(scenario)


def test_terminate_stores_pending_appends_and_refuses_later_ones() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        answers = Answers()
        for entry in numbered(3):
            ledger.append(entry, answers(entry))
        assert await ledger.terminate() == Position(3, 2)
        assert await ledger.terminate() == Position(3, 2)
        assert list(answers.stored) == numbered(3)
        ledger.append(b"late", answers(b"late"))
        assert isinstance(answers.failed[b"late"], ManagedLedgerTerminatedError)
        # as Pulsar's broker leaves it: the id and a zero timestamp beside the terminated position
        assert world.list_node().ledgers == (LedgerRecord(3),)
        assert world.list_node().terminated == Position(3, 2)
        await process.run(ledger.close())
        again = await world.process().open()
        assert again.state is ManagedLedgerState.TERMINATED
        assert again.last_confirmed == Position(3, 2)
        assert await everything(again) == numbered(3)
        with pytest.raises(ManagedLedgerTerminatedError):
            await append(again, b"later")

    run(scenario)


def test_close_stores_pending_appends_and_closes_the_ledger() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        answers = Answers()
        for entry in numbered(3):
            ledger.append(entry, answers(entry))
        await process.run(ledger.close())
        assert list(answers.stored) == numbered(3)
        assert world.bookies.ledger(3).metadata.last_entry == EntryId(2)
        ledger.append(b"late", answers(b"late"))
        assert isinstance(answers.failed[b"late"], ManagedLedgerClosedError)

    run(scenario)


def test_close_does_not_wait_for_ever_for_bookies() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        process.client.tail().held = True
        answers = Answers()
        ledger.append(b"one", answers(b"one"))
        await process.run(ledger.close())
        assert isinstance(answers.failed[b"one"], ManagedLedgerClosedError)
        again = await world.process().open()
        assert await everything(again) == [b"one"], "it was stored after all, and recovery finds it"

    run(scenario)


def test_roll_makes_a_new_ledger_or_raises_the_reason() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await ledger.roll()
        assert len(ledger.ledgers) == 1, "an empty ledger is not rolled"
        await append(ledger, b"one")
        await ledger.roll()
        assert [record.entries for record in ledger.ledgers] == [1, 0]
        await append(ledger, b"two")
        world.away(True)
        with pytest.raises(MetadataUnavailableError):
            await ledger.roll()
        await append(ledger, b"three")
        assert [record.entries for record in ledger.ledgers] == [1, 2]

    run(scenario)


def test_a_ledger_closed_below_its_acknowledged_entries_fences_the_handle() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, *numbered(5))
        tail = process.client.tail()
        world.bookies.ledger(tail.ledger_id).entries.clear()  # a loss that quorums must prevent
        await process.client.open_ledger(tail.ledger_id, recover=True)
        tail.fail(LedgerFencedError("fenced"))
        await asyncio.sleep(1)
        assert ledger.state is ManagedLedgerState.FENCED

    run(scenario)


def test_a_ledger_that_another_client_deleted_fences_the_handle() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        del world.bookies.ledgers[3]
        process.client.writers[0].fail(BookieUnavailableError("gone"))
        await asyncio.sleep(1)
        assert ledger.state is ManagedLedgerState.FENCED

    run(scenario)


def _failing_ledgers(process: Process, lifetime_s: float) -> None:
    """Make every ledger created from now on fail `lifetime_s` after its first entry."""
    plain = process.client.create_ledger

    async def create(**options: Any) -> FakeWriter:
        writer = await plain(**options)
        submit = writer.submit

        def submit_once(payloads: Sequence[Payload]) -> EntryId:
            first = submit(payloads)
            error = BookieUnavailableError("a flapping bookie")
            asyncio.get_running_loop().call_later(lifetime_s, writer.fail, error)
            return first

        writer.submit = submit_once  # type: ignore[method-assign]
        writer.held = True
        return writer

    process.client.create_ledger = create  # type: ignore[method-assign]


def test_ledgers_that_fail_at_once_are_created_ever_more_slowly_and_appends_fail() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        _failing_ledgers(process, 0.001)
        process.client.tail().held = True
        answers = Answers()
        ledger.append(b"x", answers(b"x"))
        await asyncio.sleep(0.01)
        process.client.tail().fail(BookieUnavailableError("gone"))
        await asyncio.sleep(26)
        assert isinstance(answers.failed[b"x"], LedgerSwitchError), "not resubmitted for ever"
        assert len(world.bookies.created) < 20

    run(scenario)


def test_appends_continue_in_the_open_ledger_while_a_successor_is_slow_to_be_created() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        plain = process.client.create_ledger

        async def create(**options: Any) -> FakeWriter:
            await asyncio.sleep(30)
            return await plain(**options)

        process.client.create_ledger = create  # type: ignore[method-assign]
        await append(ledger, *numbered(10))
        answers = Answers()
        for entry in numbered(20, 10):
            ledger.append(entry, answers(entry))
            await asyncio.sleep(0.5)
        await asyncio.sleep(2)
        assert answers.order == numbered(20, 10)
        assert not answers.failed
        assert {position.ledger_id for position in answers.stored.values()} == {3}
        await asyncio.sleep(30)
        assert len(await append(ledger, *numbered(5, 30))) == 5
        assert [record.entries for record in ledger.ledgers] == [30, 5]
        assert await everything(ledger) == numbered(35)

    run(scenario, ledger_entries_max=10)


def test_appends_that_came_while_a_termination_failed_are_stored() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await append(ledger, b"one")
        world.metadata.away = True
        terminating = asyncio.ensure_future(process.run(ledger.terminate()))
        await asyncio.sleep(0.0001)
        answers = Answers()
        ledger.append(b"two", answers(b"two"))
        assert not terminating.done()
        with pytest.raises(MetadataUnavailableError):
            await terminating
        world.metadata.away = False
        await asyncio.sleep(15)
        assert list(answers.stored) == [b"two"]
        assert await everything(ledger) == [b"one", b"two"]

    run(scenario)


def test_a_switch_that_breaks_fences_instead_of_keeping_appends_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await append(ledger, b"one")

        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(LedgerRecord, "closed", broken)
        with pytest.raises(ManagedLedgerFencedError):
            await ledger.roll()
        with pytest.raises(ManagedLedgerFencedError):
            await append(ledger, b"two")
        assert ledger.state is ManagedLedgerState.FENCED

    run(scenario)
