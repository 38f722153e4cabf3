"""Tests draining: replicas move first, bookies leave one by one, drains are resumed, cancelled and finished."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from quire_bookie.errors import BookieUnavailableError, MetadataError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.drains import DRAINS, Drains, Progress, Wish
from quire_bookie.metadata.layout import cookie_path, ledger_path
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerState, Segment
from quire_bookie.recovery.drainage import Drainage
from quire_bookie.recovery.ledger_repair import Verdict
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.recovery.replication_worker import ReplicationWorkers
from tests.unit.bookie.recovery.small_cluster import LEDGER, SmallCluster, run

OTHER = LedgerId(8)


class Draining:
    """The part of the auditor that drains bookies, optionally with replication workers."""

    def __init__(self, cluster: SmallCluster) -> None:
        self.cluster = cluster
        self.told: list[tuple[BookieId, bool]] = []
        self.deaf = False
        store = cluster.access.metadata
        self.drains = Drains(store)
        self.work = Drainage(cluster.access, RecoveryControls(store), self.tell, cluster.stats)

    async def tell(self, bookie: BookieId, on: bool) -> None:
        """Make a bookie read-only or writable, as its admin HTTP does in production."""
        if self.deaf:
            raise BookieUnavailableError(f"bookie {bookie} has no HTTP port")
        place = self.cluster.place(bookie)
        assert place.node is not None and place.running is not None
        await self.cluster.world.loop.run_on(place.node, place.running.set_read_only(on))
        self.told.append((bookie, on))

    async def wish(self, bookie: BookieId, wish: Wish = Wish.DRAIN) -> None:
        await self.drains.wish(bookie, wish, self.cluster.world.clock.now_ms())

    async def progress(self, bookie: BookieId) -> Progress:
        found = await self.drains.progress_of(bookie)
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def draining(cluster: SmallCluster) -> AsyncIterator[Draining]:
    made = Draining(cluster)
    workers = ReplicationWorkers(
        cluster.access, cluster.repair, cluster.locks, RecoveryControls(cluster.access.metadata), cluster.stats
    )
    tasks = [asyncio.ensure_future(made.work.run()), asyncio.ensure_future(workers.run())]
    try:
        yield made
        assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def named(cluster: SmallCluster, *ledgers: LedgerId) -> set[BookieId]:
    """Return the bookies that these ledgers name."""
    found: set[BookieId] = set()
    for ledger in ledgers:
        metadata = (await cluster.access.nodes.read(ledger)).value
        found.update(bookie for segment in metadata.segments for bookie in segment.ensemble)
    return found


async def two_ledgers(cluster: SmallCluster, ensemble: Sequence[BookieId]) -> None:
    await cluster.write(dict.fromkeys(ensemble, range(9)), last=8)
    await cluster.write(
        dict.fromkeys(ensemble, range(4)), last=3, ledger=OTHER, segments=(Segment(EntryId(0), tuple(ensemble)),)
    )


def test_a_decommissioned_bookie_is_emptied_then_forgotten_once_it_stops() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        async with draining(cluster) as work:
            await work.wish(c, Wish.DECOMMISSION)
            await asyncio.sleep(60)
            assert work.told == [(c, True)]
            assert await named(cluster, LEDGER, OTHER) == {a, b, d}
            assert await cluster.held(d, 8) == list(range(9))
            assert await cluster.held(d, 3, OTHER) == list(range(4))
            assert cluster.stats.bytes_read_back > 0
            seen = await work.progress(c)
            assert (seen.state, seen.ledgers_left, seen.ledgers_first, seen.blocked_by) == ("emptied", 0, 2, ())
            assert await Cookies(cluster.access.metadata).read(c) is not None, "it runs: its cookie stays"
            await cluster.lose(c)
            await asyncio.sleep(30)
            assert await Cookies(cluster.access.metadata).read(c) is None
            assert await work.drains.read() == ()
            assert await work.drains.progress_of(c) is None

    run(scenario)


def test_a_drained_bookie_stays_known_and_read_only_until_the_drain_is_cancelled() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        async with draining(cluster) as work:
            await work.wish(c)
            await asyncio.sleep(60)
            assert (await work.progress(c)).state == "emptied"
            await work.tell(c, False)  # another client interferes
            await asyncio.sleep(20)
            assert c in cluster.access.registry.read_only
            await work.wish(c, Wish.CANCEL)
            await asyncio.sleep(20)
            assert c in cluster.access.registry.writable
            assert await work.drains.read() == ()
            assert c not in await named(cluster, LEDGER, OTHER), "copied replicas stay where they are"
        assert cookie_path(c) in cluster.world.metadata.nodes

    run(scenario)


@pytest.mark.parametrize("way_out", ["returns", "cookie deleted", "decommissioned"])
def test_a_cancelled_drain_of_a_bookie_that_is_away_ends_when_it_returns_or_is_given_up(way_out: str) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        store = cluster.access.metadata
        async with draining(cluster) as work:
            await work.wish(c)
            await asyncio.sleep(60)
            host = cluster.place(c).host
            await cluster.world.stop_bookie(host)
            await cluster.settle()
            await work.wish(c, Wish.CANCEL)
            await asyncio.sleep(20)
            seen = await work.progress(c)
            assert seen.state == "cancelling" and "decommission it if it does not come back" in " ".join(
                seen.blocked_by
            )
            if way_out == "returns":
                await cluster.world.start_bookie(host)
            elif way_out == "cookie deleted":
                await Cookies(store).delete(c)
            else:
                await work.wish(c, Wish.DECOMMISSION)
            await asyncio.sleep(60)
            assert await work.drains.read() == () and await work.drains.progress_of(c) is None
            assert (await Cookies(store).read(c) is not None) is (way_out == "returns")
            assert (c in cluster.access.registry.writable) is (way_out == "returns")

    run(scenario)


def test_a_bookie_that_was_read_only_before_stays_so_after_a_cancelled_drain() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        async with draining(cluster) as work:
            await work.tell(c, True)
            await cluster.settle()
            await work.wish(c)
            await asyncio.sleep(20)
            await work.wish(c, Wish.CANCEL)
            await asyncio.sleep(20)
            assert work.told == [(c, True)]
            assert await work.drains.read() == ()

    run(scenario)


def test_two_drains_at_once_never_leave_fewer_than_the_ensemble() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        async with draining(cluster) as work:
            await asyncio.gather(work.wish(b), work.wish(c))
            for _ in range(40):
                await asyncio.sleep(1)
                assert len(cluster.access.registry.writable) >= 3
            first, second = await work.drains.read()
            assert first.leaving and not second.leaving
            assert (await work.progress(first.bookie)).state == "emptied"
            waiting = await work.progress(second.bookie)
            assert waiting.state == "waiting"
            assert any(
                "2 other bookies are writable, fewer than the ensemble of 3" in why for why in waiting.blocked_by
            )
            await work.wish(first.bookie, Wish.CANCEL)
            await asyncio.sleep(60)
            assert (await work.progress(second.bookie)).state == "emptied", "enough bookies were writable again"
            assert await named(cluster, LEDGER, OTHER) == {a, d, first.bookie}

    run(scenario)


def test_another_auditor_continues_after_a_crash() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        for seconds in (0.003, 0.02, 0.1, 0.5, 3.0, 11.0, 12.0, 25.0):
            with contextlib.suppress(AssertionError):
                async with draining(cluster) as work:
                    await work.wish(c, Wish.DECOMMISSION)
                    await asyncio.sleep(seconds)
                    raise AssertionError("it dies here")
            await asyncio.sleep(1)
        async with draining(cluster) as work:
            await asyncio.sleep(60)
            assert (await work.progress(c)).state == "emptied"
        assert c not in await named(cluster, LEDGER, OTHER)

    run(scenario)


def test_a_dead_bookie_is_decommissioned_from_the_other_replicas_without_the_delay() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        await RecoveryControls(cluster.access.metadata).set_lost_bookie_delay_s(10_000)
        await cluster.lose(c)
        async with draining(cluster) as work:
            await work.wish(c, Wish.DECOMMISSION)
            await asyncio.sleep(60)
            assert await named(cluster, LEDGER, OTHER) == {a, b, d}
            assert await Cookies(cluster.access.metadata).read(c) is None
            assert await work.drains.read() == ()

    run(scenario)


def test_a_loss_has_to_be_accepted_and_stays_on_the_list() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write({key: [0, 1, 3] for key in (a, b, c)}, last=3)
        notes = UnrecoverableLedgers(cluster.access.metadata)
        async with draining(cluster) as work:
            await work.wish(c, Wish.DECOMMISSION)
            await asyncio.sleep(60)
            assert c in await named(cluster, LEDGER)
            assert any("--accept-loss" in why for why in (await work.progress(c)).blocked_by)
            await notes.accept(LEDGER, cluster.world.clock.now_ms())
            await asyncio.sleep(60)
            assert await named(cluster, LEDGER) == {a, b, d}
            assert await cluster.held(d, 3) == [0, 1, 3]
            assert (await work.progress(c)).state == "emptied"
            note = await notes.read(LEDGER)
            assert note is not None and note.accepted_ms is not None and "the first is 2" in note.reason
            assert await cluster.access.marks.read(LEDGER) is not None, "the drain is still tried"

    run(scenario)


def test_an_accepted_loss_does_not_apply_while_the_leaving_bookie_does_not_answer() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write({a: [0, 1, 3], b: [0, 1, 3], c: [0, 1, 2, 3]}, last=3)
        notes = UnrecoverableLedgers(cluster.access.metadata)
        await notes.note(LEDGER, "no replica holds entry 2", 1)
        await notes.accept(LEDGER, 2)
        drains = Drains(cluster.access.metadata)
        await drains.wish(c, Wish.DECOMMISSION, 1)
        await drains.change(lambda found: tuple(replace(one, leaving=True) for one in found))
        cluster.world.loop.network.partition(cluster.place(c).host, "outside")
        result = await cluster.repair_marked(c)
        assert result.verdict is not Verdict.WHOLE
        assert c in await named(cluster, LEDGER)
        cluster.world.loop.network.heal()
        await asyncio.sleep(5)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert c not in await named(cluster, LEDGER)
        assert await cluster.held(a, 3) == [0, 1, 2, 3]

    run(scenario)


def test_an_accepted_loss_does_not_apply_while_the_leaving_bookie_is_briefly_away() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write({a: [0, 1, 3], b: [0, 1, 3], c: [0, 1, 2, 3]}, last=3)
        await RecoveryControls(cluster.access.metadata).set_lost_bookie_delay_s(60)
        notes = UnrecoverableLedgers(cluster.access.metadata)
        await notes.note(LEDGER, "no replica held another entry", 1)
        await notes.accept(LEDGER, 2)
        drains = Drains(cluster.access.metadata)
        await drains.wish(c, Wish.DECOMMISSION, 1)
        await drains.change(lambda found: tuple(replace(one, leaving=True) for one in found))
        host = cluster.place(c).host
        await cluster.world.stop_bookie(host)
        await cluster.settle()
        assert (await cluster.repair_marked(c)).verdict is Verdict.UNREADABLE
        assert c in await named(cluster, LEDGER)
        await cluster.world.start_bookie(host)
        await asyncio.sleep(5)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        assert c not in await named(cluster, LEDGER)
        assert await cluster.held(a, 3) == [0, 1, 2, 3]

    run(scenario)


def test_a_walk_that_began_while_it_was_writable_does_not_count() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        d = cluster.bookies[3]
        made = Draining(cluster)

        async def tell(bookie: BookieId, on: bool) -> None:
            await made.tell(bookie, on)
            await cluster.settle()

        work = Drainage(cluster.access, RecoveryControls(cluster.access.metadata), tell, cluster.stats)
        await made.wish(d)
        for state in ("leaving", "leaving", "emptied"):
            await work.run_pass()
            assert d in cluster.access.registry.read_only
            assert (await made.progress(d)).state == state

    run(scenario)


def test_a_bookie_that_seems_writable_is_given_back_as_well() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        d = cluster.bookies[3]
        made = Draining(cluster)
        await made.wish(d)
        cancelled = {"wish": Wish.CANCEL, "leaving": True, "made_read_only": True}
        await made.drains.change(lambda found: tuple(replace(one, **cancelled) for one in found))  # type: ignore[arg-type]
        await made.work.run_pass()
        assert made.told == [(d, False)], "the read-only request may take effect a moment later"
        assert await made.drains.read() == ()
        await made.wish(d)
        await made.drains.change(lambda found: tuple(replace(one, **cancelled) for one in found))  # type: ignore[arg-type]
        made.deaf = True
        await made.work.run_pass()
        assert await made.drains.read() == (), "a bookie without HTTP port was never made read-only"

    run(scenario)


def test_metadata_of_others_that_cannot_be_read_does_not_hold_up_a_decommission() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster, cluster.bookies[:3])
        cluster.world.metadata.write(ledger_path(LedgerId(9)), b"no metadata", None)
        await cluster.lose(c)
        async with draining(cluster) as work:
            await work.wish(c, Wish.DECOMMISSION)
            await asyncio.sleep(60)
            assert await Cookies(cluster.access.metadata).read(c) is None
            assert await work.drains.read() == ()

    run(scenario)


def test_segments_without_entries_name_others_without_a_copy() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write({}, last=-1)
        segments = (Segment(EntryId(0), (a, b, d)), Segment(EntryId(2), (a, b, c)))
        await cluster.write(dict.fromkeys((a, b, d), range(2)), last=1, ledger=OTHER, segments=segments)
        async with draining(cluster) as work:
            await work.wish(c)
            await asyncio.sleep(60)
            assert (await work.progress(c)).state == "emptied"
        assert await named(cluster, LEDGER, OTHER) == {a, b, d}
        assert cluster.stats.entries_copied == 0

    run(scenario)


def test_an_idle_open_ledger_is_closed_after_the_grace_period() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=-1, state=LedgerState.OPEN)
        await cluster.write({}, last=-1, ledger=OTHER, state=LedgerState.OPEN)
        async with draining(cluster) as work:
            await work.wish(c)
            await asyncio.sleep(4)
            assert (await cluster.access.nodes.read(LEDGER)).value.state is LedgerState.OPEN
            assert any("2 ledgers are open on it" in why for why in (await work.progress(c)).blocked_by)
            await asyncio.sleep(80)
            assert (await work.progress(c)).state == "emptied"
        assert await named(cluster, LEDGER, OTHER) == {a, b, d}
        assert await cluster.held(d, 2) == [0, 1, 2]

    run(scenario)


def test_a_drain_of_a_bookie_without_http_port_names_the_remedy() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        await two_ledgers(cluster, cluster.bookies[:3])
        async with draining(cluster) as work:
            work.deaf = True
            await work.wish(c)
            await asyncio.sleep(60)
            seen = await work.progress(c)
            assert (seen.state, seen.ledgers_left) == ("leaving", 0), "it may get new ledgers at any time"
            assert any("quire bookie read-only" in why for why in seen.blocked_by)
            work.deaf = False
            await asyncio.sleep(40)
            assert (await work.progress(c)).state == "emptied"

    run(scenario)


def test_metadata_that_cannot_be_read_blocks_a_drain_and_scribble_stops_all() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        c = cluster.bookies[2]
        cluster.world.metadata.write(ledger_path(LedgerId(9)), b"no metadata but " + c.encode(), None)
        async with draining(cluster) as work:
            await work.wish(c)
            await asyncio.sleep(40)
            seen = await work.progress(c)
            assert seen.state == "leaving" and any("cannot be read" in why for why in seen.blocked_by)
            cluster.world.metadata.write(DRAINS, b"scribble", None)
            await asyncio.sleep(30)
            assert (await cluster.access.drains.progress_of(c)) is not None
            with pytest.raises(MetadataError):
                await work.wish(c, Wish.CANCEL)

    run(scenario)


def test_a_copy_that_cannot_be_read_back_does_not_take_the_place() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await two_ledgers(cluster, (a, b, c))
        drains = Drains(cluster.access.metadata)
        await drains.wish(c, Wish.DRAIN, 1)
        await drains.change(lambda found: tuple(replace(one, leaving=True) for one in found))

        async def store_nothing(_: ReplicaWriter, __: object) -> None:
            return

        with pytest.MonkeyPatch.context() as lying:
            lying.setattr(ReplicaWriter, "store_run", store_nothing)
            result = await cluster.repair_marked(c)
        assert result.verdict is Verdict.WAIT and f"copies on {d} could not be read back" in result.reason
        assert c in await named(cluster, LEDGER)
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE

    run(scenario)
