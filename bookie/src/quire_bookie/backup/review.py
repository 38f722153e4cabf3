"""Compares the restored metadata with what the bookies hold. Decides nothing and changes nothing.

Only a ledger whose last entries do not match is examined closely; the others are complete by their last entries.

* orphan: bookies hold it and the metadata does not name it. It was created after the backup, or deleted before it and
  not collected yet. When every holder has it in quarantine, garbage collection missed it in the metadata before the
  restore: it was deleted, or the metadata had lost it by then. These two cases cannot be distinguished here.
* outdated: the metadata is older than the ledger. For an open ledger: a bookie outside the recorded ensemble holds
  entries, so the ensemble was changed; a recovery by the restored metadata could cut off acknowledged entries. For a
  closed one: a copy was moved. A bookie of the metadata has lost an entry that a bookie outside of it holds. That
  bookie would delete its copy as surplus, since the loss of the other copy is unknown.
* gone: the metadata names it and no bookie holds any of it, though all answered: it was deleted after the backup.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from quire_bookie.backup.holdings import BookieQuestions, Held, Holdings
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.write_set import holds
from quire_bookie.storage.entry_ranges import EntryRange, join_ranges

ADOPTED: Final = "quire/adopted-after-restore"
"""Key in the custom metadata of a ledger that an adoption closed. Its value is the name of the backup."""


class Kind(Enum):
    """How the metadata of a ledger and the bookies differ."""

    ORPHAN = "orphan"
    OUTDATED = "outdated"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Difference:
    """A ledger that differs. `last`: the highest entry that any bookie holds. `quarantined`: by every holder."""

    ledger: LedgerId
    kind: Kind
    bookies: tuple[BookieId, ...]
    last: EntryId | None
    why: str
    quarantined: bool = False


@dataclass(slots=True)
class Review:
    """The result of a comparison. `unsure`: ledgers that could not be compared, with the reason."""

    differences: list[Difference]
    unsure: dict[LedgerId, str]
    compared: int


async def review(nodes: LedgerNodes, questions: BookieQuestions, holdings: Holdings) -> Review:
    """Compare every ledger of the metadata and the bookies. MetadataError."""
    holders = holdings.holders()
    found = Review([], {}, 0)
    complete = not holdings.silent
    async for page in nodes.scan():
        for ledger, stored in page:
            found.compared += 1
            bookies = holders.pop(ledger, [])
            held = {bookie: holdings.of[bookie][ledger] for bookie in bookies}
            if not held:
                if complete and not _may_be_empty(stored.value):
                    why = "no bookie holds any entry of it: it was deleted after the backup, or lost before it"
                    found.differences.append(Difference(ledger, Kind.GONE, (), None, why))
                continue
            try:
                older = await _outdated(questions, ledger, stored.value, held)
            except LedgerError as error:
                found.unsure[ledger] = str(error)
                continue
            if older is not None:
                found.differences.append(Difference(ledger, Kind.OUTDATED, tuple(bookies), _last(held.values()), older))
    for ledger, bookies in holders.items():
        found.differences.append(_orphan(ledger, {bookie: holdings.of[bookie][ledger] for bookie in bookies}))
    found.differences.sort(key=lambda each: each.ledger)
    return found


def _orphan(ledger: LedgerId, held: Mapping[BookieId, Held]) -> Difference:
    since = [one.quarantined_ms for one in held.values() if one.quarantined_ms is not None]
    why = "the metadata does not name it: it was created after the backup, or deleted shortly before it"
    quarantined = len(since) == len(held)
    if quarantined:
        at = datetime.fromtimestamp(min(since) / 1000, UTC).isoformat(timespec="seconds")
        why = f"in quarantine since {at}: it was deleted, or the metadata had lost it by then"
    return Difference(ledger, Kind.ORPHAN, tuple(held), _last(held.values()), why, quarantined)


def _may_be_empty(metadata: LedgerMetadata) -> bool:
    return metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0


def _last(held: Iterable[Held]) -> EntryId | None:
    return max((each.last for each in held if each.last is not None), default=None)


async def _outdated(
    questions: BookieQuestions, ledger: LedgerId, metadata: LedgerMetadata, held: Mapping[BookieId, Held]
) -> str | None:
    """Return why the metadata is older than the ledger; None when it is not."""
    named = {bookie for segment in metadata.segments for bookie in segment.ensemble}
    strangers = [bookie for bookie in held if bookie not in named]
    if metadata.state is not LedgerState.CLOSED:
        if strangers:
            return f"it was open in the backup, and {', '.join(strangers)} joined its ensemble since"
        if len(metadata.segments) == 1:
            return None
        for bookie in held:
            outside = _outside(metadata, bookie, await questions.ranges(bookie, ledger))
            if outside is not None:
                return f"it was open in the backup, and {bookie} holds entry {outside} of a later ensemble"
        return None
    if ADOPTED in metadata.custom:
        for bookie in strangers:
            last = held[bookie].last
            if last is None:  # the bookie holds nothing, or damage hides it
                last = max((end for _, end in await questions.ranges(bookie, ledger)), default=metadata.last_entry)
            if last > metadata.last_entry:
                adopted = f"it was adopted up to entry {metadata.last_entry}"
                return f"{adopted}, and {bookie}, which had not been asked then, holds more"
    if metadata.last_entry < 0:
        return None
    complete = all(
        bookie in held and held[bookie].last is not None for segment in metadata.segments for bookie in segment.ensemble
    )
    if complete and not strangers:
        return None
    return await _outdated_closed(questions, ledger, metadata, held)


async def _outdated_closed(
    questions: BookieQuestions, ledger: LedgerId, metadata: LedgerMetadata, held: Mapping[BookieId, Held]
) -> str | None:
    ranges = {bookie: await questions.ranges(bookie, ledger) for bookie in held}
    for index, segment in enumerate(metadata.segments):
        last = metadata.last_entry
        if index + 1 < len(metadata.segments):
            last = EntryId(metadata.segments[index + 1].first_entry - 1)
        others = join_ranges([runs for bookie, runs in ranges.items() if bookie not in segment.ensemble])
        for position, bookie in enumerate(segment.ensemble):
            lacking = missing(segment.first_entry, last, ranges.get(bookie, []))
            entry = _first_of(metadata, position, _common(lacking, others))
            if entry is not None:
                return f"{bookie} does not hold entry {entry}, and a bookie outside the metadata's ensemble does"
    return None


def _common(one: Sequence[EntryRange], other: Sequence[EntryRange]) -> Iterator[EntryRange]:
    """Yield the ranges that are in both of two lists of ascending, disjoint ranges."""
    left = right = 0
    while left < len(one) and right < len(other):
        first, last = max(one[left][0], other[right][0]), min(one[left][1], other[right][1])
        if first <= last:
            yield first, last
        if one[left][1] < other[right][1]:
            left += 1
        else:
            right += 1


def _first_of(metadata: LedgerMetadata, position: int, runs: Iterable[EntryRange]) -> EntryId | None:
    """Return the first entry of the ranges that belongs to this position of its ensemble; None without one.

    The assignment of entries to positions repeats with the size of the ensemble.
    """
    size = metadata.ensemble_size
    for first, last in runs:
        for entry in range(first, min(last, first + size - 1) + 1):
            if holds(position, EntryId(entry), size, metadata.write_quorum):
                return EntryId(entry)
    return None


def _outside(metadata: LedgerMetadata, bookie: BookieId, ranges: list[EntryRange]) -> EntryId | None:
    """Return an entry that a bookie holds without being in its ensemble; None when there is none."""
    for index, segment in enumerate(metadata.segments):
        if bookie in segment.ensemble:
            continue
        ends = index + 1 == len(metadata.segments)
        stop = None if ends else metadata.segments[index + 1].first_entry
        for first, last in ranges:
            at = max(first, segment.first_entry)
            if at <= last and (stop is None or at < stop):
                return EntryId(at)
    return None


def missing(first: EntryId, last: EntryId, held: list[EntryRange]) -> list[EntryRange]:
    """Return the ranges from `first` to `last` that the ascending, disjoint ranges `held` do not cover. Pure."""
    found: list[EntryRange] = []
    at = first
    for start, end in held:
        if end < at:
            continue
        if start > last:
            break
        if start > at:
            found.append((at, EntryId(start - 1)))
        at = EntryId(end + 1)
    if at <= last:
        found.append((at, last))
    return found
