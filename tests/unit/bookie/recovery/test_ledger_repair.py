"""Tests repairs against real bookies: the effects on replicas and metadata."""

import asyncio
import json
from dataclasses import replace

import pytest

from quire_bookie.errors import BookieUnavailableError
from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.metadata.under_replication import Mark
from quire_bookie.model import LEDGER_TOKEN, BookieId, EntryId, LedgerId, LedgerState, Segment
from quire_bookie.quorum.bookie_groups import BookieGroups
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.ledger_repair import Verdict
from tests.unit.bookie.recovery.small_cluster import LEDGER, SmallCluster, run


async def ensemble(cluster: SmallCluster) -> tuple[BookieId, ...]:
    return (await cluster.access.nodes.read(LEDGER)).value.segments[0].ensemble


def test_holes_are_filled_where_they_are() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write({a: range(30), b: range(30), c: [*range(5), *range(9, 20)]}, last=29)
        before = await cluster.access.nodes.read(LEDGER)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert await cluster.held(c, 29) == list(range(30))
        assert await cluster.access.nodes.read(LEDGER) == before, "no metadata had to change"
        assert (cluster.stats.entries_copied, cluster.stats.replicas_restored) == (14, 1)

    run(scenario)


def test_a_lost_bookie_is_replaced_by_one_that_holds_everything() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(30)), last=29)
        await cluster.lose(b)
        assert (await cluster.repair_marked(b)).verdict is Verdict.WHOLE
        assert await ensemble(cluster) == (a, d, c)
        assert await cluster.held(d, 29) == list(range(30))

    run(scenario)


@pytest.mark.parametrize("custom", [{LEDGER_TOKEN: b"newer"}, {}], ids=["ours", "stock"])
def test_a_replica_at_a_bookie_with_another_ledger_moves_and_is_never_read(custom: dict[str, bytes]) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.hold_another({c: range(30)})
        await cluster.write({a: range(10), b: range(30)}, last=29, custom=custom)
        reports = {report.bookie: report.health for report in await cluster.check()}
        assert reports == {a: Health.LACKING, b: Health.WHOLE, c: Health.FOREIGN}
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert await ensemble(cluster) == (a, b, d)
        assert await cluster.held(a, 29) == await cluster.held(d, 29) == list(range(30))
        assert cluster.access.pool.health.foreign_answers > 0

    run(scenario)


def test_no_copy_goes_to_a_bookie_with_another_ledger() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.hold_another({d: [7]})
        await cluster.write(dict.fromkeys((a, b, c), range(5)), last=4, custom={LEDGER_TOKEN: b"newer"})
        await cluster.lose(c)
        result = await cluster.repair_marked(c)
        assert result.verdict is Verdict.WAIT and "holds another ledger with the id 7" in result.reason
        assert await ensemble(cluster) == (a, b, c)
        assert await cluster.held(d, 8) == [7]

    run(scenario)


def test_striped_replicas_get_their_own_entries_only() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        held = {a: [0, 2, 3, 5, 6], b: [0, 1, 3, 4, 6], c: [1, 2, 4, 5]}
        await cluster.write(held, last=6, quorums=(2, 2))
        await cluster.lose(c)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert await ensemble(cluster) == (a, b, d)
        assert await cluster.held(d, 6) == [1, 2, 4, 5]

    run(scenario)


def test_without_a_bookie_to_take_it_nothing_changes() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(5)), last=4)
        await cluster.lose(b)
        result = await cluster.repair_marked(b)
        assert result.verdict is Verdict.WAIT and "no writable bookie" in result.reason
        assert await ensemble(cluster) == (a, b, c)

    run(scenario, bookies=3)


def test_an_entry_that_no_replica_has_keeps_the_ensemble_unchanged() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write({a: [0, 1, 3], b: [0, 1, 3], c: [0, 1, 2, 3]}, last=3)
        await cluster.lose(c)
        result = await cluster.repair_marked(a, b, c)
        assert result.verdict is Verdict.UNREADABLE
        assert "the first is 2" in result.reason
        assert await ensemble(cluster) == (a, b, c), "the missing bookie may have held the only copy"

    run(scenario)


def test_a_silent_bookie_is_not_replaced() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(5)), last=4)
        cluster.world.kill_bookie(cluster.place(c).host)  # registered as long as its lease runs
        result = await cluster.repair_marked(c)
        assert result.verdict is Verdict.WAIT and c in result.reason
        assert await ensemble(cluster) == (a, b, c)
        assert await cluster.held(d, 4) == []

    run(scenario)


def test_limbo_ends_only_when_every_fragment_is_restored() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        segments = (Segment(EntryId(0), (a, b, c)), Segment(EntryId(10), (a, c, d)))
        held = {a: range(20), b: range(10), d: range(10, 20), c: [0, 9, 10, 19]}
        await cluster.write(held, last=19, segments=segments)
        place = cluster.place(c)
        assert place.node is not None and place.running is not None
        await cluster.world.loop.run_on(place.node, place.running.storage.enter_limbo([LedgerId(100)]))
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert await cluster.held(c, 19) == list(range(20)), "also the fragment whose ends were there"
        assert cluster.limbo_ended == [(c, LEDGER)]

    run(scenario)


def test_limbo_stays_while_an_entry_cannot_be_restored() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write({a: [0, 1, 3], b: [0, 1, 3], c: [0, 1]}, last=3)
        place = cluster.place(c)
        assert place.node is not None and place.running is not None
        await cluster.world.loop.run_on(place.node, place.running.storage.enter_limbo([LedgerId(100)]))
        assert (await cluster.repair_marked(c)).verdict is Verdict.UNREADABLE
        assert cluster.limbo_ended == []
        assert await cluster.held(c, 3) == [0, 1, 3], "restorable entries are restored"

    run(scenario)


def test_limbo_that_cannot_be_ended_keeps_the_mark() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        place = cluster.place(c)
        assert place.node is not None and place.running is not None
        await cluster.world.loop.run_on(place.node, place.running.storage.enter_limbo([LedgerId(100)]))

        async def refuse(bookie: BookieId, ledger: LedgerId) -> None:
            raise BookieUnavailableError("no HTTP port")

        cluster.repair._end_limbo = refuse
        result = await cluster.repair_marked(c)
        assert result.verdict is Verdict.WAIT and "no HTTP port" in result.reason

    run(scenario)


def test_a_ledger_that_is_deleted_meanwhile_is_left_alone() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        await cluster.access.nodes.delete(LEDGER)
        assert (await cluster.repair_marked(c)).verdict is Verdict.DELETED

    run(scenario)


def test_the_closed_part_of_an_open_ledger_is_repaired_and_its_writer_is_left_alone() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        segments = (Segment(EntryId(0), (a, b, c)), Segment(EntryId(10), (a, b, d)))
        held = {a: range(12), b: range(12), c: range(8), d: range(10, 12)}
        await cluster.write(held, last=11, segments=segments, state=LedgerState.OPEN)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert await cluster.held(c, 11) == list(range(10))
        assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN

    run(scenario)


def test_the_mark_of_an_open_ledger_goes_once_its_writer_sends_to_the_marked_bookie_again() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        metadata = await cluster.write(dict.fromkeys((a, b, c), range(6)), last=5, state=LedgerState.OPEN)
        # Nothing is missing, but the writer may send the next entries only to the other bookies.
        assert (await cluster.repair_marked(c)).verdict is Verdict.WAIT
        await cluster.send({a: range(6, 9), b: range(6, 9)}, metadata)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WAIT
        await cluster.send({c: range(6, 9)}, metadata)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN

    run(scenario)


@pytest.mark.parametrize("first", [0, 4])
def test_the_mark_of_an_open_ledger_goes_while_its_last_segment_is_empty(first: int) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        segments = (Segment(EntryId(0), (a, b, d)), Segment(EntryId(first), (a, b, c)))[-2 if first else -1 :]
        held: dict[BookieId, range] = dict.fromkeys((a, b, d), range(first)) if first else {}
        await cluster.write(held, last=first - 1, segments=segments, state=LedgerState.OPEN)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN

    run(scenario)


@pytest.mark.parametrize("trouble", ["one entry", "silent", "limbo"])
def test_a_segment_that_may_have_an_entry_does_not_count_as_empty(trouble: str) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, _b, c, _d = cluster.bookies
        # Not confirmed, but its writer may go on without the marked bookie.
        held = {a: range(1)} if trouble == "one entry" else {}
        await cluster.write(held, last=-1, state=LedgerState.OPEN)
        if trouble == "silent":
            cluster.world.kill_bookie(cluster.place(c).host)  # registered as long as its lease runs
        elif trouble == "limbo":
            place = cluster.place(c)
            assert place.node is not None and place.running is not None
            await cluster.world.loop.run_on(place.node, place.running.storage.enter_limbo([LedgerId(1000)]))
        assert (await cluster.repair_marked(c)).verdict is Verdict.WAIT

    run(scenario)


def test_a_renewed_mark_is_not_treated_as_an_old_one() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        metadata = await cluster.write(dict.fromkeys((a, b, c), range(6)), last=5, state=LedgerState.OPEN)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WAIT
        await cluster.send(dict.fromkeys((a, b, c), range(6, 9)), metadata)
        assert (await cluster.repair_marked(c, version=1)).verdict is Verdict.WAIT

    run(scenario)


def test_a_missing_entry_keeps_the_mark_even_if_later_entries_arrive() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        held = {a: range(6), b: range(6), c: [0, 1, 2, 4, 5]}
        metadata = await cluster.write(held, last=5, state=LedgerState.OPEN)
        for last in (9, 12, 15):
            assert (await cluster.repair_marked(c)).verdict is Verdict.WAIT
            await cluster.send(dict.fromkeys((a, b, c), range(last - 3, last)), metadata)
            await asyncio.sleep(1)

    run(scenario)


def test_an_open_ledger_is_taken_over_after_the_grace_period() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(6)), last=5, state=LedgerState.OPEN)
        await cluster.lose(c)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WAIT
        assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN
        await asyncio.sleep(6)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        metadata = (await cluster.access.nodes.read(LEDGER)).value
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 5)
        assert metadata.segments[-1].ensemble == (a, b, d) or metadata.segments[0].ensemble == (a, b, d)
        assert await cluster.held(d, 5) == list(range(6))

    run(scenario)


def test_no_ledger_is_fenced_if_no_bookie_can_take_the_replica() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(6)), last=5, state=LedgerState.OPEN)
        await cluster.lose(c)
        for _ in range(4):
            result = await cluster.repair_marked(c)
            assert result.verdict is Verdict.WAIT
            await asyncio.sleep(6)
        assert "would not help" in result.reason
        assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN

    run(scenario, bookies=3)


FAST = BookieGroups(frozenset({"fast"}))


async def group(cluster: SmallCluster, *fast: BookieId) -> None:
    """Put these bookies, and no others, into the group `fast`."""
    places = {bookie: {"rack": "/default-rack"} for bookie in fast}
    cluster.world.metadata.write(RACK_MAP, json.dumps({"fast": places}).encode(), None)
    await cluster.settle()


def test_a_replica_stays_in_the_groups_of_its_ledger() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d, e = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(30)), last=29, custom=FAST.custom())
        await group(cluster, a, b, c)
        await cluster.lose(b)
        result = await cluster.repair_marked(b)
        assert result.verdict is Verdict.WAIT and "no writable bookie" in result.reason
        await group(cluster, a, b, c, e)
        assert (await cluster.repair_marked(b)).verdict is Verdict.WHOLE
        assert await ensemble(cluster) == (a, e, c), f"{d} is in another group"

    run(scenario, bookies=5)


def test_no_ledger_is_fenced_if_no_bookie_of_its_groups_can_take_the_replica() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(6)), last=5, state=LedgerState.OPEN, custom=FAST.custom())
        await group(cluster, a, b, c)
        await cluster.lose(c)
        for _ in range(4):
            result = await cluster.repair_marked(c)
            assert result.verdict is Verdict.WAIT
            await asyncio.sleep(6)
        assert "would not help" in result.reason
        assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN
        await group(cluster, a, b, c, d)
        await asyncio.sleep(6)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE

    run(scenario)


def test_without_the_lock_the_metadata_stays() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        await cluster.lose(c)
        result = await cluster.repair.repair(Mark(LEDGER, (c,), None, 0))
        assert result.verdict is Verdict.WAIT
        assert await ensemble(cluster) == (a, b, c)

    run(scenario)


def test_a_change_of_the_writer_is_not_overwritten() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        metadata = await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        await cluster.lose(c)
        original = cluster.access.is_same_cluster

        async def another_was_faster() -> bool:
            stored = await cluster.access.nodes.read(LEDGER)
            if stored.value.segments[0].ensemble == (a, b, c):
                theirs = replace(metadata, segments=(Segment(EntryId(0), (a, b, d)),))
                await cluster.access.nodes.update(LEDGER, theirs, stored.version)
            return await original()

        cluster.access.is_same_cluster = another_was_faster  # type: ignore[method-assign]
        await cluster.repair_marked(c)
        found = (await cluster.access.nodes.read(LEDGER)).value.segments[0].ensemble
        assert found == (a, b, d) and len(set(found)) == 3

    run(scenario)
