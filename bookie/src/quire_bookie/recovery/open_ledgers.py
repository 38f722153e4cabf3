"""Decides when auto-recovery may take the last segment of an open ledger over from its writer. Fences nothing itself.

Fencing ends a writer, so it happens only after the same segment has lacked a replica for the whole grace period, and
only if closing the ledger helps: a bookie must be available for each replica that is gone. A replica whose bookie is
alive but lags is left to the writer while the ledger grows. The mark of an open ledger is removed once its writer
evidently sends to the marked bookie again: the bookie received entries that no bookie held when the mark was made, and
lacks none before them. It is also removed while nothing has been written to the last segment. An idle ledger with
entries keeps its mark until its writer closes it: brokers do so.
"""

from collections.abc import Collection
from enum import Enum

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import OPEN_TAIL_RETRY_S, REPLICATION_REMEMBERED_MAX
from quire_bookie.metadata.under_replication import Mark
from quire_bookie.model import BookieId, EntryId, LedgerId, Segment


class TailAdvice(Enum):
    """What to do about an open ledger's last segment."""

    FINE = "nothing is missing"
    WAIT = "leave it to its writer for now"
    NO_BOOKIE = "it lacks a replica and no bookie can take it: closing the ledger would not help"
    RECOVER = "take the ledger over and close it"


@dataclass(frozen=True, slots=True)
class TailObservation:
    """One observation of a tail. `gone`: unregistered bookies of the segment. `named`: registered ones that are marked.

    `leaving`: drained bookies, registered or not; their writer replaces them with its next append. `lags`: a named
    bookie lacks entries up to `lac`, which was confirmed at that time. `lac`: None if too few bookies answered.
    """

    segment: Segment
    gone: frozenset[BookieId]
    named: frozenset[BookieId]
    lags: bool
    lac: EntryId | None
    leaving: frozenset[BookieId] = frozenset()
    narrow: bool = False
    """The ledger was created with fewer copies than configured and can be raised only after it is closed."""
    served: bool = False
    """The writer sends to all named bookies again, see `OpenTails.extent`; or no bookie has an entry of the segment."""


class OpenTails:
    """Remembers the first observation of each open ledger that lacked a replica.

    Bounded: the grace period of a ledger that was dropped starts again.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._first: dict[LedgerId, tuple[float, TailObservation]] = {}
        self._extents: dict[LedgerId, tuple[Segment, Mark, EntryId]] = {}
        self._looks: dict[LedgerId, tuple[EntryId | None, int]] = {}
        """The LAC of the last observation, and the number of earlier observations with the same LAC."""

    def advise(
        self, ledger: LedgerId, seen: TailObservation, candidates: Collection[BookieId], now_s: float
    ) -> TailAdvice:
        """Advise on one observed tail. `candidates`: writable bookies.

        Observations of one ledger must come in the order of `now_s`.
        """
        if ledger not in self._looks and len(self._looks) >= REPLICATION_REMEMBERED_MAX:
            # another process may have closed that ledger; this one would never learn of it
            self.forget(next(iter(self._looks)))
        lac, count = self._looks.get(ledger, (None, -1))
        self._looks[ledger] = seen.lac, count + 1 if lac == seen.lac else 0
        if not seen.gone and not seen.lags and not seen.leaving and not seen.narrow:
            self._first.pop(ledger, None)
            # The writer may have gone on without a bookie that it marked, and its last confirmed entry is not known
            # yet.
            return TailAdvice.WAIT if seen.named and not seen.served else TailAdvice.FINE
        since_s, first = self._first.setdefault(ledger, (now_s, seen))
        grew = first.lac != seen.lac
        if first.segment != seen.segment or (grew and not seen.gone) or _kind(first) != _kind(seen):
            self._first[ledger] = (
                now_s,
                seen,
            )  # the writer is active, or the reason has changed: the grace period starts again
            return TailAdvice.WAIT
        if now_s - since_s < self._grace_s:
            return TailAdvice.WAIT
        free = set(candidates) - set(seen.segment.ensemble)
        lost = seen.gone | seen.leaving
        needed = max(len(lost), int(seen.narrow))
        return TailAdvice.NO_BOOKIE if len(free - seen.leaving) < needed else TailAdvice.RECOVER

    def wait_s(self, ledger: LedgerId) -> float:
        """Return the seconds until the next observation, after WAIT.

        Short while the ledger grows: a replica that is slightly behind its writer at every observation must not keep
        the mark for hours. Doubles each time while the LAC does not change.
        """
        _, count = self._looks.get(ledger, (None, 0))
        return float(OPEN_TAIL_RETRY_S * 2 ** min(count, 20))

    def extent(self, ledger: LedgerId, segment: Segment, mark: Mark) -> EntryId | None:
        """Return the last entry that any bookie of `segment` held when all were first asked under this mark; None if
        unknown.

        An entry with a LAC beyond it was sent later: for that LAC to be confirmed, Qa bookies had to receive the entry
        of that id. A writer that lost a bookie sends nothing to it before the next segment. So such an entry on a
        marked bookie shows that the mark is out of date; a bookie that also lacks nothing up to the LAC is whole.
        """
        known = self._extents.get(ledger)
        return known[2] if known is not None and known[:2] == (segment, mark) else None

    def note_extent(self, ledger: LedgerId, segment: Segment, mark: Mark, held: EntryId) -> EntryId:
        """Record and return the extent, see `extent`. Entries confirmed before the segment began do not count."""
        extent = EntryId(max(held, segment.first_entry - 1))
        self._extents[ledger] = segment, mark, extent
        return extent

    def forget(self, ledger: LedgerId) -> None:
        """Forget a ledger that is closed, deleted or whole."""
        self._first.pop(ledger, None)
        self._extents.pop(ledger, None)
        self._looks.pop(ledger, None)

    def __len__(self) -> int:
        return len(self._first)


def _kind(seen: TailObservation) -> tuple[bool, bool, bool]:
    return bool(seen.gone), bool(seen.leaving), seen.narrow
