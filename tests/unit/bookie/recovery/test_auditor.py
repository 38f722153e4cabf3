"""Tests the auditor: which ledgers it marks, the delay, giving up on missing bookies, and leadership."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.election import Election, current_leader
from quire_bookie.metadata.layout import cookie_path, ledger_path
from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.metadata.recovery_controls import CheckKind, RecoveryControls
from quire_bookie.model import LedgerId, LedgerState
from quire_bookie.recovery.auditor import Auditor
from quire_bookie.recovery.process import _run_until_cancelled
from tests.unit.bookie.recovery.small_cluster import LEDGER, SETTINGS, SmallCluster, run

QUIET = replace(SETTINGS, check_interval_s=0, audit_interval_s=0, lost_bookie_delay_s=60)


@contextlib.asynccontextmanager
async def auditing(cluster: SmallCluster) -> AsyncIterator[Auditor]:
    store = cluster.access.metadata
    auditor = Auditor(cluster.access, Election(store, "test"), RecoveryControls(store), cluster.stats)
    task = asyncio.ensure_future(auditor.run())
    try:
        await asyncio.sleep(1)
        yield auditor
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def marked(cluster: SmallCluster) -> dict[LedgerId, tuple[str, ...]]:
    return {mark.ledger: mark.bookies async for page in cluster.access.marks.marks() for mark in page}


async def two_ledgers(cluster: SmallCluster) -> None:
    a, b, c, _d = cluster.bookies
    await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2)
    await cluster.write({}, last=-1, ledger=LedgerId(2**40), state=LedgerState.OPEN)
    cluster.world.metadata.write(ledger_path(LedgerId(9)), b"no metadata", None)


def test_the_ledgers_of_a_lost_bookie_are_marked_after_the_delay() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster)
        async with auditing(cluster) as auditor:
            assert auditor.leads
            assert await current_leader(cluster.access.metadata) == "test"
            await cluster.lose(c)
            await asyncio.sleep(50)
            assert await marked(cluster) == {}
            await asyncio.sleep(20)
            assert await marked(cluster) == {LEDGER: (c,), LedgerId(2**40): (c,)}
        assert cluster.stats.ledgers_unreadable > 0, "an undecodable ledger is skipped and counted"

    run(scenario, settings=QUIET)


def test_a_loss_outlives_the_removal_of_an_older_mark_of_the_same_bookie() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster)
        await cluster.access.marks.mark(LEDGER, [c])
        seen = await cluster.access.marks.read(LEDGER)
        assert seen is not None
        async with auditing(cluster):
            await cluster.lose(c)
            await asyncio.sleep(70)
        assert not await cluster.access.marks.remove(seen), (
            "the worker that found the replica whole checked before the loss"
        )

    run(scenario, settings=QUIET)


def test_a_bookie_that_comes_back_in_time_is_forgiven() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        await two_ledgers(cluster)
        host = cluster.place(cluster.bookies[2]).host
        async with auditing(cluster):
            cluster.world.kill_bookie(host)
            await asyncio.sleep(30)
            await cluster.world.start_bookie(host)
            await asyncio.sleep(120)
            assert await marked(cluster) == {}

    run(scenario, settings=QUIET)


def test_giving_up_missing_bookies_marks_at_once() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster)
        async with auditing(cluster):
            await cluster.lose(c)
            controls = RecoveryControls(cluster.access.metadata)
            assert await controls.lost_bookie_delay_s() == 60
            await controls.set_lost_bookie_delay_s(60)
            await asyncio.sleep(2)
            assert set(await marked(cluster)) == {LEDGER, LedgerId(2**40)}

    run(scenario, settings=QUIET)


def test_a_changed_delay_applies_and_gives_up_no_bookie() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster)
        async with auditing(cluster):
            await cluster.lose(c)
            controls = RecoveryControls(cluster.access.metadata)
            await controls.set_lost_bookie_delay_s(600)
            await asyncio.sleep(90)
            assert await marked(cluster) == {}, "a longer delay does not give up the absent bookies"
            await controls.set_lost_bookie_delay_s(100)
            await asyncio.sleep(20)
            assert set(await marked(cluster)) == {LEDGER, LedgerId(2**40)}

    run(scenario, settings=QUIET)


def test_giving_up_finds_a_new_ledger_of_a_bookie_without_a_cookie() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        async with auditing(cluster):
            await cluster.write({}, last=-1, state=LedgerState.OPEN)
            cluster.world.metadata.remove(cookie_path(c))
            await cluster.lose(c)
            await RecoveryControls(cluster.access.metadata).set_lost_bookie_delay_s(60)
            await asyncio.sleep(2)
            assert await marked(cluster) == {LEDGER: (c,)}

    run(scenario, settings=QUIET)


def test_nothing_is_marked_while_it_is_switched_off() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster)
        controls = RecoveryControls(cluster.access.metadata)
        await controls.disable()
        async with auditing(cluster):
            await cluster.lose(c)
            await asyncio.sleep(100)
            assert await marked(cluster) == {}
            await controls.enable()
            await asyncio.sleep(80)
            assert set(await marked(cluster)) == {LEDGER, LedgerId(2**40)}

    run(scenario, settings=QUIET)


def test_a_check_of_all_ledgers_marks_missing_entries_but_not_unknown_replicas() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _d = cluster.bookies
        await cluster.write({a: range(9), b: range(9), c: [0, 1, 2, 8]}, last=8)
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2, ledger=LedgerId(8))
        async with auditing(cluster):
            await asyncio.sleep(5)
            assert await marked(cluster) == {LEDGER: (c,)}
            controls = RecoveryControls(cluster.access.metadata)
            assert await controls.last_check_ms(CheckKind.ALL_LEDGERS) is not None
            cluster.world.kill_bookie(cluster.place(b).host)
            checks = cluster.stats.checks
            await asyncio.sleep(8)
        assert checks == 1, "not before the interval is over"
        assert cluster.stats.ledgers_checked == 2

    run(scenario, settings=replace(QUIET, check_interval_s=3600.0))


def test_a_last_check_in_the_future_delays_the_next_by_one_interval() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        await cluster.write({}, last=-1)
        controls = RecoveryControls(cluster.access.metadata)
        await controls.ensure_layout()
        await controls.set_last_check_ms(CheckKind.ALL_LEDGERS, cluster.access.clock.now_ms() + 86_400_000)
        async with auditing(cluster):
            await asyncio.sleep(50)
            assert cluster.stats.checks == 0
            await asyncio.sleep(20)
            assert cluster.stats.checks == 1
            await asyncio.sleep(60)
            assert cluster.stats.checks == 2

    run(scenario, settings=replace(QUIET, check_interval_s=60.0))


def test_silence_during_a_check_is_counted_and_not_marked() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2)
        cluster.world.kill_bookie(cluster.place(b).host)
        async with auditing(cluster):
            await asyncio.sleep(4)
            assert await marked(cluster) == {}
        assert cluster.stats.replicas_unknown >= 1

    run(scenario, settings=replace(QUIET, check_interval_s=3600.0))


def test_the_next_auditor_keeps_the_delay() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster)
        async with auditing(cluster) as auditor:
            await cluster.lose(c)
            await asyncio.sleep(30)
            cluster.access.metadata.expire()  # type: ignore[attr-defined]
            await asyncio.sleep(20)
            assert auditor.leads and cluster.stats.elections_won == 2
            await asyncio.sleep(15)
            assert set(await marked(cluster)) == {LEDGER, LedgerId(2**40)}

    run(scenario, settings=QUIET)


def test_a_check_of_all_ledgers_counts_those_with_too_few_copies() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2, ledger=LedgerId(1))
        await cluster.write({a: range(3), b: range(3), c: range(2)}, last=2, ledger=LedgerId(2))
        await cluster.write({a: range(3), b: range(1), c: range(2)}, last=2, ledger=LedgerId(3))
        await cluster.write({a: range(2), b: range(2), c: range(2)}, last=2, ledger=LedgerId(4))
        store = cluster.access.metadata
        auditor = Auditor(cluster.access, Election(store, "test"), RecoveryControls(store), cluster.stats)
        for _again in range(2):
            assert await auditor.check_all() == 3
            stats = cluster.stats
            counted = stats.ledgers_without_copy, stats.ledgers_below_ack_quorum, stats.ledgers_below_write_quorum
            assert counted == (1, 2, 3)
        assert stats.marks_made == 3, "eight ledgers are checked at a time, and the count includes all"

    run(scenario, settings=QUIET)


def test_the_placement_is_checked_at_its_interval() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        places = {bookie: {"rack": "/one"} for bookie in cluster.bookies}
        cluster.world.metadata.write(RACK_MAP, json.dumps({"default": places}).encode(), None)
        await cluster.write({}, last=-1)
        async with auditing(cluster):
            await asyncio.sleep(20)
            assert (cluster.stats.placement_checks, cluster.stats.ledgers_misplaced) == (1, 1)
            await asyncio.sleep(30)
            assert cluster.stats.placement_checks == 2
            assert await RecoveryControls(cluster.access.metadata).last_check_ms(CheckKind.PLACEMENT) is not None

    run(scenario, settings=replace(QUIET, placement_check_interval_s=30))


class LostOnce(Election):
    """Cannot check once whether it still leads.

    Records how often its candidate's task was cancelled when it stands again.
    """

    def __init__(self, *words: object) -> None:
        super().__init__(*words)  # type: ignore[arg-type]
        self.stood: list[int] = []
        self.lost = False

    async def win(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.stood.append(task.cancelling())
        await super().win()

    async def still_leads(self) -> bool:
        if not self.lost:
            self.lost = True
            raise MetadataUnavailableError("away, for this test")
        return await super().still_leads()


def test_an_auditor_that_lost_the_election_stands_again_in_a_task_that_is_not_cancelled() -> None:
    """Before 3.11.3 Python takes a timeout in a task so marked for a cancellation, and then there is no auditor."""

    async def scenario(cluster: SmallCluster) -> None:
        store = cluster.access.metadata
        election = LostOnce(store, "test")
        auditor = Auditor(cluster.access, election, RecoveryControls(store), cluster.stats)
        task = asyncio.ensure_future(auditor.run())
        await asyncio.sleep(60)
        assert election.lost and auditor.leads
        assert election.stood == [0, 0]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario, settings=QUIET)


async def _ends() -> None:
    await asyncio.sleep(1)


async def _is_cancelled_by_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("part", "why"), [(_ends, "ended unexpectedly"), (_is_cancelled_by_itself, "cancelled unexpectedly")]
)
async def test_a_part_that_ends_unexpectedly_ends_auto_recovery(
    part: Callable[[], Coroutine[Any, Any, None]], why: str
) -> None:
    with pytest.raises(RuntimeError, match=f"auditor: {why}"):
        await _run_until_cancelled(part, "auditor")


class SlowToEnd(Auditor):
    """One part of the term takes a second to end, and another part fails."""

    async def _lead(self) -> None:
        async def slow() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)

        async def fails() -> None:
            await asyncio.sleep(10)
            raise MetadataUnavailableError("away, for this test")

        async with asyncio.TaskGroup() as group:
            group.create_task(slow())
            group.create_task(fails())


def test_a_stop_while_a_term_fails_is_heard() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        store = cluster.access.metadata
        auditor = SlowToEnd(cluster.access, Election(store, "test"), RecoveryControls(store), cluster.stats)
        task = asyncio.ensure_future(auditor.run())
        await asyncio.sleep(1)
        assert auditor.leads
        await asyncio.sleep(9.4)
        task.cancel()
        await asyncio.sleep(5)
        assert task.cancelled()

    run(scenario, settings=QUIET)
