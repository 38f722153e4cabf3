"""A writer that dies between an ensemble change and its sends leaves a replica that auto-recovery must fill."""

import asyncio

from quire_bookie.client.recovery import recover_ledger
from quire_bookie.model import EntryId, LedgerState, Segment
from quire_bookie.recovery.ledger_repair import Verdict
from tests.unit.bookie.recovery.small_cluster import LEDGER, SmallCluster, run


def test_recovery_marks_a_bookie_that_joined_and_was_sent_nothing() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        segments = (Segment(EntryId(0), (a, b, c)), Segment(EntryId(2), (a, b, d)))
        held = {a: range(5), b: range(5), c: range(2)}
        metadata = await cluster.write(held, last=-1, state=LedgerState.OPEN, segments=segments)
        stored = await cluster.access.nodes.read(LEDGER)
        closed = await recover_ledger(cluster.access.handle(LEDGER, metadata), stored)
        assert closed.value.last_entry == 4
        assert await cluster.held(d, 4) == [4], "recovery sends what lies beyond the last confirmed entry"
        await asyncio.sleep(1)
        mark = await cluster.access.marks.read(LEDGER)
        assert mark is not None and mark.bookies == (d,)
        assert (await cluster.repair_marked(*mark.bookies)).verdict is Verdict.WHOLE
        assert await cluster.held(d, 4) == [2, 3, 4]

    run(scenario)


def test_recovery_marks_a_bookie_that_reports_fewer_entries_than_are_confirmed() -> None:
    """The first segment itself was changed: only the bookie's response shows that it joined later."""

    async def scenario(cluster: SmallCluster) -> None:
        a, b, _, d = cluster.bookies
        segments = (Segment(EntryId(0), (a, b, d)),)
        metadata = await cluster.write({a: range(5), b: range(5)}, last=-1, state=LedgerState.OPEN, segments=segments)
        stored = await cluster.access.nodes.read(LEDGER)
        await recover_ledger(cluster.access.handle(LEDGER, metadata), stored)
        await asyncio.sleep(1)
        mark = await cluster.access.marks.read(LEDGER)
        assert mark is not None and mark.bookies == (d,)
        assert (await cluster.repair_marked(*mark.bookies)).verdict is Verdict.WHOLE
        assert await cluster.held(d, 4) == [0, 1, 2, 3, 4]

    run(scenario)
