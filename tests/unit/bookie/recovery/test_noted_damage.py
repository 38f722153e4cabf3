"""Tests that damage inside a replica, which only a scrub sees, is repaired from healthy replicas."""

from dataclasses import replace

from quire_bookie.metadata.damage_notes import DamageNotes
from quire_bookie.model import DigestType, EntryId, LedgerState
from quire_bookie.recovery.ledger_repair import Verdict
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.wire.digest import Digest
from tests.unit.bookie.recovery.small_cluster import LEDGER, SmallCluster, run


def test_noted_damage_is_checked_and_restored_in_place() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        metadata = await cluster.write({a: range(9), b: range(9), c: [0, 1, 2, 3, 5, 6, 7, 8]}, last=8)
        spoiled = replace(cluster.access.handle(LEDGER, metadata), digest=Digest(DigestType.DUMMY, b""))
        writer = ReplicaWriter(spoiled, c)
        await writer.store([cluster.entry(LEDGER, 4)])
        writer.close()
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE, "the check did not read the middle"
        assert cluster.stats.entries_copied == 0
        notes = DamageNotes(cluster.access.metadata)
        await notes.note(LEDGER, c, [(EntryId(4), EntryId(4)), (EntryId(100), EntryId(200))], 1)
        await notes.note(LEDGER, b, [(EntryId(0), EntryId(2**62))], 1)
        assert (await cluster.repair_marked(b, c)).verdict is Verdict.WHOLE
        assert await cluster.held(c, 8) == list(range(9))
        assert cluster.stats.entries_copied == 1
        assert await notes.read(LEDGER) == []

    run(scenario)


def test_confirmed_entries_of_an_open_ledger_that_are_noted_are_completed_where_they_are() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        metadata = await cluster.write(
            {a: range(9), b: range(9), c: [0, 1, 3, 4, 5, 6, 7, 8]}, last=-1, state=LedgerState.OPEN
        )
        notes = DamageNotes(cluster.access.metadata)
        await notes.note(LEDGER, c, [(EntryId(2), EntryId(2))], 1)
        result = await cluster.repair_marked()
        assert result.verdict is Verdict.WAIT, "the mark stays until the writer evidently sends to the bookie"
        assert await cluster.held(c, 8) == list(range(9)) and cluster.stats.entries_copied == 1
        stored = (await cluster.access.nodes.read(LEDGER)).value
        assert stored == metadata, "neither fenced nor changed"

    run(scenario)


def test_noted_entries_of_an_open_ledger_that_are_not_confirmed_stay_noted() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=-1, state=LedgerState.OPEN)
        notes = DamageNotes(cluster.access.metadata)
        await notes.note(LEDGER, c, [(EntryId(3), EntryId(3))], 1)  # the LAC is 2
        assert (await cluster.repair_marked()).verdict is Verdict.WAIT
        assert [note.bookie for note in await notes.read(LEDGER)] == [c]

    run(scenario)


def test_the_notes_of_a_deleted_ledger_go() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        notes = DamageNotes(cluster.access.metadata)
        await notes.note(LEDGER, cluster.bookies[0], [(EntryId(0), EntryId(1))], 1)
        assert (await cluster.repair_marked()).verdict is Verdict.DELETED
        assert await notes.read(LEDGER) == []

    run(scenario)
