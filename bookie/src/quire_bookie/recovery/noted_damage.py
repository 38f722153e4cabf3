"""Checks the entries that a bookie reported as damaged, which a normal check does not read. Only reads."""

from collections.abc import Iterator, Sequence

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.lac_read import read_lac
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError, QuorumError
from quire_bookie.limits import CHECK_READS_AT_ONCE
from quire_bookie.metadata.damage_notes import DamageNote
from quire_bookie.model import EntryId, LedgerMetadata
from quire_bookie.recovery.fragment_check import Health, LedgerCheck, ReplicaReport, open_tail, replica_report


async def check_noted(
    check: LedgerCheck, reports: Sequence[ReplicaReport], notes: Sequence[DamageNote]
) -> list[ReplicaReport]:
    """Return the reports after reading the noted entries of each replica that seemed whole."""
    noted = {note.bookie: note for note in notes}
    found = []
    for report in reports:
        note = noted.get(report.bookie)
        if note is not None and report.health is Health.WHOLE:
            report = await _read_noted(check, report, note)
        found.append(report)
    return found


@dataclass(frozen=True, slots=True)
class NotedTail:
    """The noted entries of the last segment of an open ledger. `bad`: replicas that lack some confirmed entries.

    `settled`: every noted entry is confirmed and was found intact.
    """

    bad: tuple[ReplicaReport, ...]
    settled: bool


async def check_noted_tail(
    check: LedgerCheck, handle: LedgerHandle, metadata: LedgerMetadata, notes: Sequence[DamageNote]
) -> NotedTail:
    """Read the noted entries of an open ledger's last segment up to its LAC: confirmed entries never change."""
    segment = metadata.segments[-1]
    noted = [note for note in notes if note.bookie in segment.ensemble and _reaches(note, segment.first_entry)]
    if not noted:
        return NotedTail((), True)
    try:
        lac = (await read_lac(handle.read_way, metadata)).lac
    except (QuorumError, LedgerError):
        return NotedTail((), False)  # it is checked again
    if lac < segment.first_entry:
        return NotedTail((), False)
    fragment = open_tail(metadata, lac)
    positions = [segment.ensemble.index(note.bookie) for note in noted]
    whole = [ReplicaReport(fragment, position, Health.WHOLE) for position in positions]
    reports = await check_noted(check, whole, noted)
    bad = tuple(report for report in reports if report.health is Health.LACKING)
    confirmed = not any(_reaches(note, EntryId(lac + 1)) for note in noted)
    return NotedTail(bad, confirmed and all(report.health is Health.WHOLE for report in reports))


def _reaches(note: DamageNote, entry: EntryId) -> bool:
    """Return whether the entry or a later one is noted."""
    return any(high >= entry for _, high in note.ranges)


async def _read_noted(check: LedgerCheck, report: ReplicaReport, note: DamageNote) -> ReplicaReport:
    failures: dict[EntryId, LedgerError] = {}
    part: list[EntryId] = []
    for entry in _entries(report, note):
        part.append(entry)
        if len(part) == CHECK_READS_AT_ONCE:
            failures |= await check.read_all(report.bookie, part)
            part = []
    failures |= await check.read_all(report.bookie, part)
    return replica_report(report.fragment, report.position, failures, ()) if failures else report


def _entries(report: ReplicaReport, note: DamageNote) -> Iterator[EntryId]:
    """Yield the noted entries that the replica must hold."""
    fragment = report.fragment
    for low, high in note.ranges:
        for number in range(max(low, fragment.first), min(high, fragment.last) + 1):
            if fragment.holds(report.position, EntryId(number)):
                yield EntryId(number)
