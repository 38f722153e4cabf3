"""Looks at the entries that a bookie's scrub found damaged, where a check would not look. Reads only."""

from collections.abc import Iterator, Sequence

from quire_bookie.errors import LedgerError
from quire_bookie.limits import CHECK_READS_AT_ONCE
from quire_bookie.metadata.damage_notes import DamageNote
from quire_bookie.model import EntryId
from quire_bookie.recovery.fragment_check import Health, LedgerCheck, ReplicaReport, judged


async def look_at_noted(
    check: LedgerCheck, reports: Sequence[ReplicaReport], notes: Sequence[DamageNote]
) -> list[ReplicaReport]:
    """The reports, where replicas that seemed whole have been read at what is noted of their bookie."""
    noted = {note.bookie: note for note in notes}
    found = []
    for report in reports:
        note = noted.get(report.bookie)
        if note is not None and report.health is Health.WHOLE:
            report = await _look(check, report, note)
        found.append(report)
    return found


async def _look(check: LedgerCheck, report: ReplicaReport, note: DamageNote) -> ReplicaReport:
    failures: dict[EntryId, LedgerError] = {}
    part: list[EntryId] = []
    for entry in _entries(report, note):
        part.append(entry)
        if len(part) == CHECK_READS_AT_ONCE:
            failures |= await check.read_all(report.bookie, part)
            part = []
    failures |= await check.read_all(report.bookie, part)
    return judged(report.fragment, report.position, failures, ()) if failures else report


def _entries(report: ReplicaReport, note: DamageNote) -> Iterator[EntryId]:
    """Those that are noted and that the replica has to hold."""
    fragment = report.fragment
    for low, high in note.ranges:
        for number in range(max(low, fragment.first), min(high, fragment.last) + 1):
            if fragment.holds(report.position, EntryId(number)):
                yield EntryId(number)
