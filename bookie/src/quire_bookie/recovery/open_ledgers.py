"""When the last segment of an open ledger may be taken over from its writer. Remembers what it saw; fences nothing.

Fencing ends a writer, so it happens only when the same segment has lacked a replica for the whole grace period and
closing the ledger helps: a bookie is there to take each replica that is gone. A replica whose bookie is alive but lags
is left to its writer as long as the ledger grows. A mark goes from an open ledger once its writer is seen to send to
the marked bookie again: it got entries that nobody held yet when the mark was there, and lacks none before them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

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
class TailSeen:
    """One look. `gone`: bookies of the segment that are not registered. `named`: registered ones that are marked.

    `leaving`: bookies that are drained, registered or not; their writer leaves them with its next append.
    `lags`: one of the named lacks entries up to `lac`, which was confirmed then; None when too few bookies answered.
    """

    segment: Segment
    gone: frozenset[BookieId]
    named: frozenset[BookieId]
    lags: bool
    lac: EntryId | None
    leaving: frozenset[BookieId] = frozenset()
    narrow: bool = False
    """It was created with fewer copies than it wants, and can be raised only once it is closed."""
    served: bool = False
    """The writer sends to all of the named by now, see `OpenTails.extent`."""


class OpenTails:
    """The first looks at open ledgers that lacked something. Bounded: what it forgets begins anew."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._first: dict[LedgerId, tuple[float, TailSeen]] = {}
        self._extents: dict[LedgerId, tuple[Segment, Mark, EntryId]] = {}
        self._looks: dict[LedgerId, tuple[EntryId | None, int]] = {}
        """The LAC at the last look, and at how many before it that was the same."""

    def advise(self, ledger: LedgerId, seen: TailSeen, candidates: Collection[BookieId], now_s: float) -> TailAdvice:
        """`candidates`: writable bookies. Looks at one ledger must come in the order of `now_s`."""
        if ledger not in self._looks and len(self._looks) >= REPLICATION_REMEMBERED_MAX:
            self.forget(next(iter(self._looks)))  # another process may have ended that one: nobody would say so
        lac, count = self._looks.get(ledger, (None, -1))
        self._looks[ledger] = seen.lac, count + 1 if lac == seen.lac else 0
        if not seen.gone and not seen.lags and not seen.leaving and not seen.narrow:
            self._first.pop(ledger, None)
            # The writer may go on without a bookie that it marked, and what it confirmed last is not known yet.
            return TailAdvice.WAIT if seen.named and not seen.served else TailAdvice.FINE
        since_s, first = self._first.setdefault(ledger, (now_s, seen))
        grew = first.lac != seen.lac
        if first.segment != seen.segment or (grew and not seen.gone) or _kind(first) != _kind(seen):
            self._first[ledger] = (
                now_s,
                seen,
            )  # the writer is at work, or the trouble is another: begin anew
            return TailAdvice.WAIT
        if now_s - since_s < self._grace_s:
            return TailAdvice.WAIT
        free = set(candidates) - set(seen.segment.ensemble)
        lost = seen.gone | seen.leaving
        needed = max(len(lost), int(seen.narrow))
        return TailAdvice.NO_BOOKIE if len(free - seen.leaving) < needed else TailAdvice.RECOVER

    def wait_s(self, ledger: LedgerId) -> float:
        """After WAIT: how long until the next look. Short as long as it grows: a replica that is a moment behind
        its writer at every look must not keep the mark for hours. Longer each time for one that nobody writes to.
        """
        _, count = self._looks.get(ledger, (None, 0))
        return float(OPEN_TAIL_RETRY_S * 2 ** min(count, 20))

    def extent(self, ledger: LedgerId, segment: Segment, mark: Mark) -> EntryId | None:
        """The last entry that any bookie of `segment` held when all were asked first under this very mark.

        An entry whose LAC lies beyond was sent afterwards: for its LAC to be confirmed Qa of them had to get it. A
        writer that lost a bookie sends nothing to it again before the next segment, so such an entry on a marked
        bookie tells that the mark is of the past; and that the bookie lacks nothing up to there tells the rest.
        """
        known = self._extents.get(ledger)
        return known[2] if known is not None and known[:2] == (segment, mark) else None

    def note_extent(self, ledger: LedgerId, segment: Segment, mark: Mark, held: EntryId) -> EntryId:
        """See `extent`, which it gives: what is confirmed before the segment began tells nothing of it."""
        extent = EntryId(max(held, segment.first_entry - 1))
        self._extents[ledger] = segment, mark, extent
        return extent

    def forget(self, ledger: LedgerId) -> None:
        """The ledger is closed, deleted or whole."""
        self._first.pop(ledger, None)
        self._extents.pop(ledger, None)
        self._looks.pop(ledger, None)

    def __len__(self) -> int:
        return len(self._first)


def _kind(seen: TailSeen) -> tuple[bool, bool, bool]:
    return bool(seen.gone), bool(seen.leaving), seen.narrow
