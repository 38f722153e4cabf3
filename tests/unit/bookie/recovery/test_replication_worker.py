"""Tests workers and marks: which marks are removed, which stay, and when a ledger is tried again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from quire_bookie.limits import CHECK_READS_AT_ONCE, FRAME_BYTES_MAX
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.under_replication import ReplicationLocks, lock_path
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import EntryId, LedgerId, LedgerState
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.recovery.replication_worker import Attempts, ReplicationWorkers, patience_s
from tests.sim.metadata import SimMetadataStore
from tests.unit.bookie.recovery.small_cluster import LEDGER, SETTINGS, SmallCluster, run


@contextlib.asynccontextmanager
async def working(cluster: SmallCluster) -> AsyncIterator[ReplicationWorkers]:
    controls = RecoveryControls(cluster.access.metadata)
    workers = ReplicationWorkers(cluster.access, cluster.repair, cluster.locks, controls, cluster.stats)
    task = asyncio.ensure_future(workers.run())
    try:
        yield workers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_marked_ledger_is_repaired_and_its_mark_removed() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(9)), last=8)
        await cluster.lose(c)
        async with working(cluster):
            await cluster.access.marks.mark(LEDGER, [c])
            await asyncio.sleep(5)
            assert await cluster.access.marks.read(LEDGER) is None
            assert await cluster.held(d, 8) == list(range(9))
        assert cluster.stats.ledgers_repaired == 1
        assert lock_path(LEDGER) not in cluster.world.metadata.nodes

    run(scenario)


def test_the_mark_of_a_deleted_ledger_goes_with_its_note() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        notes = UnrecoverableLedgers(cluster.access.metadata)
        await notes.note(LEDGER, "gone", 1)
        await cluster.access.marks.mark(LEDGER, [cluster.bookies[0]])
        async with working(cluster):
            await asyncio.sleep(3)
        assert await cluster.access.marks.read(LEDGER) is None
        assert [page async for page in notes.pages()] == []

    run(scenario)


def test_an_unrecoverable_ledger_is_noted_until_its_entries_are_back() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        metadata = await cluster.write({key: [0, 1, 3] for key in (a, b, c)}, last=3)
        notes = UnrecoverableLedgers(cluster.access.metadata)
        await cluster.access.marks.mark(LEDGER, [c])
        async with working(cluster):
            await asyncio.sleep(3)
            (page,) = [page async for page in notes.pages()]
            assert page[0].ledger == LEDGER and "the first is 2" in page[0].reason
            assert await cluster.access.marks.read(LEDGER) is not None
            writer = ReplicaWriter(cluster.access.handle(LEDGER, metadata), a)
            await writer.store([cluster.entry(LEDGER, 2)])
            writer.close()
            await asyncio.sleep(20)
            assert await cluster.access.marks.read(LEDGER) is None
            assert [page async for page in notes.pages()] == []
            assert await cluster.held(b, 3) == [0, 1, 2, 3]

    run(scenario)


def test_no_worker_repairs_while_auto_recovery_is_off() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _d = cluster.bookies
        await cluster.write({a: range(4), b: range(4), c: range(2)}, last=3)
        controls = RecoveryControls(cluster.access.metadata)
        await controls.disable()
        await cluster.access.marks.mark(LEDGER, [c])
        async with working(cluster):
            await asyncio.sleep(10)
            assert await cluster.held(c, 3) == [0, 1]
            await controls.enable()
            await asyncio.sleep(3)
            assert await cluster.held(c, 3) == [0, 1, 2, 3]

    run(scenario)


def test_a_ledger_that_another_process_has_is_left_to_it() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _d = cluster.bookies
        await cluster.write({a: range(4), b: range(4), c: range(2)}, last=3)
        theirs = ReplicationLocks(SimMetadataStore(cluster.world.metadata), "java")
        assert await theirs.acquire(LEDGER)
        await cluster.access.marks.mark(LEDGER, [c])
        async with working(cluster):
            await asyncio.sleep(10)
            assert await cluster.held(c, 3) == [0, 1]
            await theirs.release(LEDGER)
            await asyncio.sleep(5)
            assert await cluster.held(c, 3) == [0, 1, 2, 3]

    run(scenario)


def test_a_mark_made_during_the_work_stays_and_is_worked_on() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write({a: range(4), b: range(4), c: range(2)}, last=3)
        repair = cluster.repair.repair
        looks = 0

        async def repair_and_mark(mark: object) -> object:
            nonlocal looks
            looks += 1
            result = await repair(mark)  # type: ignore[arg-type]
            if looks == 1:
                await cluster.access.marks.mark(LEDGER, [c])
            return result

        cluster.repair.repair = repair_and_mark  # type: ignore[method-assign, assignment]
        await cluster.access.marks.mark(LEDGER, [c])
        async with working(cluster):
            await asyncio.sleep(5)
        assert looks == 2
        assert await cluster.access.marks.read(LEDGER) is None

    run(scenario)


def test_workers_wait_for_an_unreachable_metadata_store() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write({a: range(4), b: range(4), c: range(2)}, last=3)
        await cluster.access.marks.mark(LEDGER, [c])
        cluster.world.metadata.away = True
        async with working(cluster):
            await asyncio.sleep(5)
            cluster.world.metadata.away = False
            await asyncio.sleep(10)
            assert await cluster.held(c, 3) == [0, 1, 2, 3]

    run(scenario)


def test_waits_double_up_to_a_bound_and_a_change_of_bookies_hurries() -> None:
    attempts = Attempts((10.0, 35.0))
    ledger = LedgerId(1)
    assert attempts.is_due(ledger, 0.0)
    waits = []
    now_s = 0.0
    for _ in range(4):
        attempts.failed(ledger, now_s)
        wait_s = attempts.next_due_s(now_s)
        assert wait_s is not None and not attempts.is_due(ledger, now_s + wait_s - 0.1)
        waits.append(wait_s)
        now_s += wait_s
        assert attempts.is_due(ledger, now_s)
    assert waits == [10.0, 20.0, 35.0, 35.0]
    attempts.failed(ledger, now_s)
    attempts.retry_soon(now_s + 3)
    assert attempts.next_due_s(now_s) == 10.0, "never sooner than the first wait"
    attempts.retry_soon(now_s + 20)
    assert attempts.is_due(ledger, now_s + 20)
    attempts.settled(ledger)
    assert attempts.next_due_s(now_s) is None


def test_a_change_of_one_ledger_hurries_that_one_and_not_right_after_a_failure() -> None:
    attempts = Attempts((10.0, 35.0))
    first, second, failed = LedgerId(1), LedgerId(2), LedgerId(3)
    for ledger in (first, second):
        attempts.waits(ledger, 0.0, 30.0)
    attempts.failed(failed, 0.0)
    attempts.failed(failed, 0.0)
    for ledger in (first, failed, LedgerId(4)):
        attempts.changed(ledger, 1.0)
    assert [attempts.is_due(ledger, 1.0) for ledger in (first, second, failed, LedgerId(4))] == [
        True,
        False,
        False,
        True,
    ]
    assert attempts.is_due(failed, 10.0)


def test_an_open_ledger_that_its_writer_closes_and_marks_again_is_looked_at_at_once() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        metadata = await cluster.write(dict.fromkeys((a, b, c), range(6)), last=5, state=LedgerState.OPEN)
        marks = cluster.access.marks
        await marks.mark(LEDGER, [c])
        async with working(cluster):
            await asyncio.sleep(100)  # an idle ledger is looked at less often each time
            assert await marks.read(LEDGER) is not None
            stored = await cluster.access.nodes.read(LEDGER)
            closed = replace(metadata, state=LedgerState.CLOSED, last_entry=EntryId(5))
            await cluster.access.nodes.update(LEDGER, closed, stored.version)
            await marks.renew(LEDGER)
            await asyncio.sleep(1)
            assert await marks.read(LEDGER) is None

    run(scenario, settings=replace(SETTINGS, retry_s=(1.0, 1000.0)))


def test_a_briefly_absent_bookie_is_waited_for() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        await RecoveryControls(cluster.access.metadata).set_lost_bookie_delay_s(60)
        host = cluster.place(c).host
        async with working(cluster):
            await cluster.access.marks.mark(LEDGER, [c])
            await cluster.world.stop_bookie(host)
            await cluster.settle()
            await cluster.access.marks.mark(LEDGER, [c])
            await asyncio.sleep(30)
            assert cluster.stats.replicas_replaced == cluster.stats.repairs_failed == 0
            await cluster.world.start_bookie(host)
            await asyncio.sleep(5)
            assert await cluster.access.marks.read(LEDGER) is None, "it came back with all its entries"
            await cluster.lose(c)
            await cluster.access.marks.mark(LEDGER, [c])
            await asyncio.sleep(50)
            assert await cluster.held(d, 3) == []
            await asyncio.sleep(20)
            assert await cluster.held(d, 3) == [0, 1, 2, 3], "by now it is lost"
            assert await cluster.access.marks.read(LEDGER) is None

    run(scenario)


def test_giving_up_ends_the_wait_for_a_missing_bookie() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        controls = RecoveryControls(cluster.access.metadata)
        await controls.set_lost_bookie_delay_s(6000)
        async with working(cluster):
            await cluster.lose(c)
            await cluster.access.marks.mark(LEDGER, [c])
            await asyncio.sleep(30)
            assert await cluster.held(d, 3) == []
            await controls.set_lost_bookie_delay_s(7000)
            await asyncio.sleep(30)
            assert await cluster.held(d, 3) == [], "a longer delay does not declare them lost"
            await controls.set_lost_bookie_delay_s(7000)
            await asyncio.sleep(5)
            assert await cluster.held(d, 3) == [0, 1, 2, 3]

    run(scenario)


def test_waiting_for_a_bookie_is_no_failure_and_ends_with_a_change() -> None:
    attempts = Attempts((10.0, 3600.0))
    ledger = LedgerId(1)
    attempts.waits(ledger, 0.0, 600.0)
    assert not attempts.is_due(ledger, 599.0) and attempts.is_due(ledger, 600.0)
    attempts.retry_soon(1.0)
    assert attempts.is_due(ledger, 1.0)
    assert attempts.failed(ledger, 1.0) == 1


# ---- repairs that make no progress
STALLED_S = 60
OTHER = LedgerId(8)


async def limbo_that_does_not_end(cluster: SmallCluster) -> None:
    """A closed ledger that is whole, at a bookie that does not answer the request to end its limbo."""
    held = dict.fromkeys(cluster.bookies[:3], range(4))
    await cluster.write(held, last=3)
    place = cluster.place(cluster.bookies[2])
    assert place.node is not None and place.running is not None
    await cluster.world.loop.run_on(place.node, place.running.storage.enter_limbo([LEDGER]))
    cluster.held_up[LEDGER] = asyncio.Event()


def test_a_repair_without_progress_is_given_up_and_the_next_ledger_repaired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await limbo_that_does_not_end(cluster)
        await cluster.write({a: range(9), b: range(9)}, last=8, ledger=OTHER)
        async with working(cluster) as workers:
            await cluster.access.marks.mark(LEDGER, [c])
            assert await cluster.limbo_asked.get() == LEDGER
            await cluster.access.marks.mark(OTHER, [c])
            await asyncio.sleep(STALLED_S / 2)
            assert workers.busy == {LEDGER}
            assert await cluster.access.marks.read(OTHER) is not None, "the only worker waits"
            await asyncio.sleep(STALLED_S)
            assert await cluster.access.marks.read(OTHER) is None
            assert await cluster.held(c, 8, OTHER) == list(range(9))
            assert cluster.stats.repairs_stalled == cluster.stats.repairs_failed == 1
            cluster.held_up[LEDGER].set()
            await asyncio.sleep(STALLED_S)
            assert await cluster.access.marks.read(LEDGER) is None
        assert lock_path(LEDGER) not in cluster.world.metadata.nodes

    run(scenario, settings=replace(SETTINGS, stalled_repair_s=STALLED_S))
    (warning,) = [record.getMessage() for record in caplog.records if "giving up" in record.getMessage()]
    assert f"ledger {LEDGER}" in warning and "for 60 s while ending its limbo at" in warning


def test_a_repair_that_advances_is_not_given_up_however_long_it_takes() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(400)), last=399)
        await cluster.lose(c)
        loop = cluster.world.loop
        loop.network.delay_s = (0.4, 0.5)
        began_s = loop.time()
        await cluster.access.marks.mark(LEDGER, [c])
        async with working(cluster):
            while await cluster.access.marks.read(LEDGER) is not None:  # noqa: ASYNC110  the state is in the store
                await asyncio.sleep(1)
        assert loop.time() - began_s > 4 * slow.stalled_repair_s
        assert cluster.stats.repairs_stalled == 0 and await cluster.held(d, 399) == list(range(400))

    slow = replace(SETTINGS, stalled_repair_s=5, batch_bytes=100)
    run(scenario, settings=slow)


def test_the_patience_with_a_repair_includes_its_waits_for_the_rates() -> None:
    settings = replace(SETTINGS, stalled_repair_s=60)
    assert patience_s(settings) == 60
    assert patience_s(replace(settings, stalled_repair_s=0)) is None
    assert patience_s(replace(settings, rate_bytes_s=FRAME_BYTES_MAX // 10, workers=3)) == pytest.approx(60 + 30)
    assert patience_s(replace(settings, operations_s=CHECK_READS_AT_ONCE / 5)) == pytest.approx(60 + 5)


def test_a_worker_that_ends_during_a_repair_ends_the_repair_and_releases_the_lock() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        await limbo_that_does_not_end(cluster)
        async with working(cluster):
            await cluster.access.marks.mark(LEDGER, [cluster.bookies[2]])
            await cluster.limbo_asked.get()
            assert lock_path(LEDGER) in cluster.world.metadata.nodes
        assert lock_path(LEDGER) not in cluster.world.metadata.nodes
        cluster.held_up[LEDGER].set()
        await asyncio.sleep(1)
        assert cluster.limbo_ended == []

    run(scenario)


def test_a_repair_that_something_else_cancels_does_not_end_its_worker() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        await limbo_that_does_not_end(cluster)
        async with working(cluster):
            await cluster.access.marks.mark(LEDGER, [cluster.bookies[2]])
            await cluster.limbo_asked.get()
            (repair,) = [one for one in asyncio.all_tasks() if one.get_name() == f"repair of ledger {LEDGER}"]
            repair.cancel()
            cluster.held_up[LEDGER].set()
            await asyncio.sleep(20)
            assert await cluster.access.marks.read(LEDGER) is None
        assert cluster.stats.repairs_failed == 1

    run(scenario)
