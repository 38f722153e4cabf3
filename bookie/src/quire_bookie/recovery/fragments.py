"""Computes which entries each replica of a ledger must hold and which it lacks. Pure arithmetic.

A fragment is a segment of a ledger whose entries do not change any more: every segment but the last, and also the last
one of a closed ledger. Each position of its ensemble stores the ids whose write set contains it.
"""

from collections.abc import Iterable, Iterator

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import LACKING_RANGES_MAX
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState
from quire_bookie.quorum.write_set import holds
from quire_bookie.wire.availability import Availability, EntryRange


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries `first` to `last` (never empty) and the bookies that store them."""

    first: EntryId
    last: EntryId
    ensemble: tuple[BookieId, ...]
    write_quorum: int

    def __post_init__(self) -> None:
        assert 0 <= self.first <= self.last and 1 <= self.write_quorum <= len(self.ensemble)

    def holds(self, position: int, entry: EntryId) -> bool:
        """Return whether the position must hold the entry."""
        return holds(position, entry, len(self.ensemble), self.write_quorum)

    def stored(self, position: int) -> Iterator[EntryRange]:
        """Yield the runs of ids that the position must hold, ascending; none if it stores nothing of the fragment."""
        size = len(self.ensemble)
        if size == self.write_quorum:
            yield self.first, self.last
            return
        # Runs of Qw ids start at those congruent to position - Qw + 1.
        start = self.first - (self.first - (position - self.write_quorum + 1)) % size
        for low in range(start, self.last + 1, size):
            first, last = max(low, self.first), min(low + self.write_quorum - 1, self.last)
            if first <= last:
                yield EntryId(first), EntryId(last)

    def ends(self, position: int) -> tuple[EntryId, EntryId] | None:
        """Return the first and the last id that the position must hold; None if it stores nothing of the fragment."""
        span = range(len(self.ensemble))
        heads = [EntryId(self.first + step) for step in span if self.first + step <= self.last]
        first = next((entry for entry in heads if self.holds(position, entry)), None)
        if first is None:
            return None
        tails = [EntryId(self.last - step) for step in span if self.last - step >= self.first]
        return first, next(entry for entry in tails if self.holds(position, entry))


def closed_fragments(metadata: LedgerMetadata) -> list[Fragment]:
    """Return the fragments whose entries are settled, in order. Empty segments have none."""
    found = []
    for index, segment in enumerate(metadata.segments):
        if index + 1 < len(metadata.segments):
            last = metadata.segments[index + 1].first_entry - 1
        elif metadata.state is LedgerState.CLOSED:
            last = metadata.last_entry
        else:
            break
        if last >= segment.first_entry:
            found.append(Fragment(segment.first_entry, EntryId(last), segment.ensemble, metadata.write_quorum))
    return found


def same_instance(one: LedgerMetadata, other: LedgerMetadata) -> bool:
    """Return whether two readings can be of the same ledger: the id of a deleted ledger may be used again.

    Where E = Qw, these two numbers are not compared: a closed ledger may have been raised to more copies.
    """
    striped = any(metadata.ensemble_size != metadata.write_quorum for metadata in (one, other))
    return (
        not one.is_another_than(other)
        and one.ctime_ms == other.ctime_ms
        and one.password == other.password
        and one.digest_type == other.digest_type
        and dict(one.custom) == dict(other.custom)
        and one.ack_quorum == other.ack_quorum
        and (not striped or (one.ensemble_size, one.write_quorum) == (other.ensemble_size, other.write_quorum))
    )


def lacking(fragment: Fragment, position: int, held: Availability) -> tuple[EntryRange, ...]:
    """Return the ids that the position must hold and the list does not contain, as ascending ranges.

    If there are more than LACKING_RANGES_MAX, the last range covers the rest; it may contain ids that are present, or
    that belong to other positions.
    """
    found = merged(_without(fragment.stored(position), _held_within(held, fragment.first, fragment.last)))
    assert not found or fragment.first <= found[0][0] <= found[-1][1] <= fragment.last, "it lies within its segment"
    return found


def merged(ranges: Iterable[EntryRange]) -> tuple[EntryRange, ...]:
    """Return ascending ranges as a tuple; if there are more than the bound, as one range that spans all."""
    found: list[EntryRange] = []
    for first, last in ranges:
        if len(found) < LACKING_RANGES_MAX:
            found.append((first, last))
        else:
            found = [(found[0][0], last)]
    return tuple(found)


def union(ranges: Iterable[EntryRange]) -> list[EntryRange]:
    """Return the same ids as ascending ranges that neither overlap nor touch."""
    found: list[EntryRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def _held_within(held: Availability, first: EntryId, last: EntryId) -> Iterator[EntryRange]:
    for group in held.groups:
        if group.first_start > last:
            return
        if group.last_start + group.size <= first:
            continue
        start: int = group.first_start
        if group.period and start + group.size <= first:
            start += (first - start - group.size) // group.period * group.period
        for low in range(start, min(group.last_start, last) + 1, group.period or 1):
            if low + group.size > first:
                yield EntryId(max(low, first)), EntryId(min(low + group.size - 1, last))


def _without(wanted: Iterator[EntryRange], held: Iterator[EntryRange]) -> Iterator[EntryRange]:
    """Yield `wanted` minus `held`; both are ascending."""
    have = next(held, None)
    for first, last in wanted:
        at: int = first
        while have is not None and at <= last:
            if have[1] < at:
                have = next(held, None)
            elif have[0] > last:
                break
            else:
                if have[0] > at:
                    yield EntryId(at), EntryId(have[0] - 1)
                at = have[1] + 1
        if at <= last:
            yield EntryId(at), last
