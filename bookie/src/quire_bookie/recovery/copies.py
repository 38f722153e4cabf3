"""Counts the whole copies of the entry of a ledger that has the fewest, from the reports of a check. Pure.

A replica in an unknown state counts as whole: a missing answer never counts as a missing copy.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence

from quire_bookie.model import EntryId
from quire_bookie.recovery.fragment_check import Health, ReplicaReport
from quire_bookie.recovery.fragments import Fragment
from quire_bookie.wire.availability import EntryRange

_MISSING = (Health.GONE, Health.FOREIGN, Health.LACKING, Health.LIMBO)


def fewest_copies(reports: Sequence[ReplicaReport]) -> int | None:
    """Return the number of whole copies of the entry that has the fewest; None for a ledger without entries."""
    by_fragment: dict[Fragment, list[ReplicaReport]] = {}
    for report in reports:
        by_fragment.setdefault(report.fragment, []).append(report)
    counts = [_fewest(fragment, those) for fragment, those in by_fragment.items()]
    return min(counts, default=None)


def _fewest(fragment: Fragment, reports: Collection[ReplicaReport]) -> int:
    missing = {report.position: report.to_store for report in reports if report.health in _MISSING}
    if not missing:
        return fragment.write_quorum
    # Between two bounds of the ranges only the write set changes, and it repeats after E entries.
    bounds: set[int] = {fragment.first}
    for ranges in missing.values():
        for first, last in ranges:
            bounds |= {max(first, fragment.first), last + 1}
    size = len(fragment.ensemble)
    starts = {position: [first for first, _ in ranges] for position, ranges in missing.items()}
    fewest = fragment.write_quorum
    for low in sorted(bound for bound in bounds if bound <= fragment.last):
        for entry in range(low, min(low + size - 1, fragment.last) + 1):
            copies = sum(
                fragment.holds(position, EntryId(entry))
                and not _within(entry, starts.get(position, ()), missing.get(position, ()))
                for position in range(size)
            )
            assert copies <= fragment.write_quorum, "only the write set counts"
            fewest = min(fewest, copies)
    return fewest


def _within(entry: int, starts: Sequence[int], ranges: Sequence[EntryRange]) -> bool:
    at = bisect_right(starts, entry) - 1
    return at >= 0 and entry <= ranges[at][1]
