"""Tests that ledgers with fewer copies than configured are marked, counted and raised."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.errors import NotEnoughBookiesError
from quire_bookie.metadata.drains import Drain, Wish
from quire_bookie.metadata.election import Election
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.model import LEDGER_TOKEN, BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.wanted_copies import missing_copies, wanted_mark
from quire_bookie.recovery.auditor import Auditor
from quire_bookie.recovery.ledger_repair import Verdict
from quire_bookie.recovery.narrow_check import NarrowCheck
from tests.sim.metadata import SimMetadataStore
from tests.sim.world import SimChance
from tests.unit.bookie.recovery.small_cluster import LEDGER, QUICK, SETTINGS, SmallCluster, run
from tests.unit.bookie.recovery.test_auditor import QUIET, auditing, marked

FEW = {"component": b"managed-ledger", **wanted_mark(3)}


async def stored(cluster: SmallCluster, ledger: LedgerId = LEDGER) -> LedgerMetadata:
    return (await cluster.access.nodes.read(ledger)).value


async def narrow(
    cluster: SmallCluster,
    *segments: tuple[int, Sequence[BookieId]],
    held: Mapping[BookieId, Sequence[int]],
    last: int = 9,
    ledger: LedgerId = LEDGER,
    state: LedgerState = LedgerState.CLOSED,
    custom: Mapping[str, bytes] = FEW,
) -> LedgerMetadata:
    """Create a ledger that has two copies and wants three."""
    parts = tuple(Segment(EntryId(first), tuple(bookies)) for first, bookies in segments)
    return await cluster.write(
        held, last=last, quorums=(2, 2), segments=parts, custom=custom, ledger=ledger, state=state
    )


def test_a_closed_ledger_gets_the_copies_that_it_lacks_and_then_names_their_bookies() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        held = {a: range(10), b: range(5), c: range(5, 10)}
        before = await narrow(cluster, (0, (a, b)), (5, (a, c)), (10, (b, c)), held=held)
        assert (await cluster.repair_marked()).verdict is Verdict.WHOLE
        after = await stored(cluster)
        assert (after.ensemble_size, after.write_quorum, after.ack_quorum) == (3, 3, 2)
        assert missing_copies(after) == 0
        for old, new in zip(before.segments, after.segments, strict=True):
            assert new.ensemble[:2] == old.ensemble and len(set(new.ensemble)) == 3
        assert set(range(5)) <= set(await cluster.held(after.segments[0].ensemble[2], 9))
        assert set(range(5, 10)) <= set(await cluster.held(after.segments[1].ensemble[2], 9))
        assert cluster.stats.ledgers_raised == 1

    run(scenario)


def test_without_a_further_bookie_it_stays_marked_and_is_not_whole() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b = cluster.bookies
        before = await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)})
        result = await cluster.repair_marked()
        assert result.verdict is Verdict.WAIT
        assert "it has 2 of 3 copies, and no further bookie is writable" in result.reason
        assert await stored(cluster) == before

    run(scenario, bookies=2)


def test_it_gets_as_many_copies_as_there_are_bookies() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)}, custom=FEW | wanted_mark(5))
        result = await cluster.repair_marked()
        assert result.verdict is Verdict.WAIT and "3 of 5 copies" in result.reason
        assert (await stored(cluster)).segments[0].ensemble == (a, b, c)

    run(scenario, bookies=3)


def test_a_lost_bookie_is_replaced_before_a_further_one_joins() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)})
        await cluster.lose(a)
        assert (await cluster.repair_marked(a)).verdict is Verdict.WHOLE
        assert set((await stored(cluster)).segments[0].ensemble) == {b, c, d}
        for bookie in (b, c, d):
            assert await cluster.held(bookie, 9) == list(range(10))

    run(scenario)


def test_an_entry_that_no_replica_serves_keeps_it_from_being_raised() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, _c, _d = cluster.bookies
        before = await narrow(cluster, (0, (a, b)), held={a: [0, 2, 9], b: [0, 2, 9]}, last=9)
        assert (await cluster.repair_marked()).verdict is Verdict.UNREADABLE
        assert await stored(cluster) == before

    run(scenario)


def test_a_bookie_that_dies_under_the_copy_is_not_named() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies
        before = await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)})
        cluster.world.kill_bookie(cluster.place(c).host)  # registered as long as its lease runs
        result = await cluster.repair_marked()
        assert result.verdict is Verdict.WAIT and c in result.reason
        assert await stored(cluster) == before

    run(scenario, bookies=3)


def test_a_drained_bookie_leaves_only_after_all_copies_are_elsewhere() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)})
        await cluster.access.drains.change(lambda _: (Drain(a, Wish.DECOMMISSION, 1, leaving=True),))
        seen: list[tuple[int, bool]] = []
        proper = cluster.access.nodes.update

        async def update(ledger: LedgerId, metadata: LedgerMetadata, expected: int) -> object:
            seen.append((metadata.write_quorum, a in metadata.segments[0].ensemble))
            return await proper(ledger, metadata, expected)

        cluster.access.nodes.update = update  # type: ignore[method-assign, assignment]
        assert (await cluster.repair_marked(a)).verdict is Verdict.WHOLE
        assert seen == [(3, True), (3, False)], "raised first, and then without the bookie"
        assert set((await stored(cluster)).segments[0].ensemble) == {b, c, d}

    run(scenario)


def test_an_unmarked_ledger_of_an_earlier_version_is_raised_when_that_is_configured() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, _c, _d = cluster.bookies
        custom = {"component": b"managed-ledger"}
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)}, custom=custom)
        check = NarrowCheck(cluster.access, cluster.stats)
        assert await check.check() == (1 if cluster.access.settings.unmarked_write_quorum else 0)
        assert (await cluster.repair_marked()).verdict is Verdict.WHOLE
        assert (await stored(cluster)).write_quorum == max(2, cluster.access.settings.unmarked_write_quorum)

    run(scenario)
    run(scenario, settings=replace(SETTINGS, unmarked_write_quorum=3))


def test_an_idle_open_ledger_is_closed_and_raised_once_a_bookie_is_there() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, _c, _d = cluster.bookies
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)}, state=LedgerState.OPEN)
        assert (await cluster.repair_marked()).verdict is Verdict.WAIT
        assert (await stored(cluster)).state is LedgerState.OPEN, "its writer keeps the grace period"
        await asyncio.sleep(6)
        assert (await cluster.repair_marked()).verdict is Verdict.WHOLE
        after = await stored(cluster)
        assert (after.state, after.last_entry, after.write_quorum) == (LedgerState.CLOSED, 9, 3)

    run(scenario)


def test_the_auditor_counts_narrow_ledgers_and_restores_their_marks() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _d = cluster.bookies
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)})
        await narrow(cluster, (0, (a, b)), held={}, last=-1, ledger=LedgerId(8), state=LedgerState.OPEN)
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2, ledger=LedgerId(9), custom=FEW)
        async with auditing(cluster):
            assert await marked(cluster) == {LEDGER: (), LedgerId(8): ()}
            assert cluster.stats.ledgers_below_configured_copies == 2
            mark = await cluster.access.marks.read(LEDGER)
            assert mark is not None
            await cluster.access.marks.remove(mark)  # as a Java worker does that finds two of two copies
            await asyncio.sleep(70)
            assert await marked(cluster) == {LEDGER: (), LedgerId(8): ()}
            assert (await cluster.repair_marked()).verdict is Verdict.WHOLE
            await asyncio.sleep(70)
            assert cluster.stats.ledgers_below_configured_copies == 1
        store = cluster.access.metadata
        auditor = Auditor(cluster.access, Election(store, "other"), RecoveryControls(store), cluster.stats)
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)}, ledger=LedgerId(10))
        await auditor.check_all()
        assert cluster.stats.ledgers_below_write_quorum == 1

    run(scenario, settings=QUIET)


def test_a_client_marks_a_narrow_ledger_before_it_takes_an_entry() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies
        store = SimMetadataStore(cluster.world.metadata)
        client = await LedgerClient.open(store, QUICK, clock=cluster.world.clock, chance=SimChance(5))
        whole = await client.create_ledger(fewer_bookies=True)
        assert (whole.metadata.ensemble_size, missing_copies(whole.metadata)) == (3, 0)
        assert set(whole.metadata.custom) == {LEDGER_TOKEN}
        await cluster.lose(c)
        writer = await client.create_ledger(custom={"component": b"managed-ledger"}, fewer_bookies=True)
        metadata = writer.metadata
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (2, 2, 2)
        assert set(metadata.segments[0].ensemble) == {a, b} and missing_copies(metadata) == 1
        assert await marked(cluster) == {writer.ledger_id: ()}
        striped = await client.create_ledger(ensemble_size=3, write_quorum=2, fewer_bookies=True)
        assert set(striped.metadata.custom) == {LEDGER_TOKEN}, "it has as many copies as configured"
        with pytest.raises(NotEnoughBookiesError):
            await client.create_ledger()
        with pytest.raises(NotEnoughBookiesError):
            await client.create_ledger(ack_quorum=3, fewer_bookies=True)
        await client.close()

    run(scenario, bookies=3)


def test_a_reader_that_knows_the_old_quorums_follows_a_raised_ledger() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, _c, _d = cluster.bookies
        await narrow(cluster, (0, (a, b)), held={a: range(10), b: range(10)})
        store = SimMetadataStore(cluster.world.metadata)
        client = await LedgerClient.open(store, QUICK, clock=cluster.world.clock, chance=SimChance(5))
        reader = await client.open_ledger(LEDGER, recover=False)
        assert (await cluster.repair_marked()).verdict is Verdict.WHOLE
        first, second = [bytes(one.payload) for one in await reader.read(EntryId(0), EntryId(1))]
        assert (first, second) == (b"entry 0", b"entry 1")
        await cluster.lose(a)
        await cluster.lose(b)
        assert [bytes(one.payload) for one in await reader.read(EntryId(8), EntryId(9))] == [b"entry 8", b"entry 9"]
        await client.close()

    run(scenario)
