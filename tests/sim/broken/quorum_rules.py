"""Broken variants: rules of quorums in the client, each removed: bounds of a recovery, re-adds, new bookies."""

from collections.abc import Mapping
from typing import Any

from quire_bookie.client.reading.lac_read import _Round
from quire_bookie.client.recovery import _Copying
from quire_bookie.client.writing.add_pipeline import AddPipeline, LostReplica
from quire_bookie.model import BookieId, EntryId
from quire_bookie.quorum.ack_tracker import PrefixAckTracker
from quire_bookie.quorum.recovery_plan import EntrySearch, Verdict
from tests.sim.broken.variant import Variant, replaced


def _lac_below_the_segment() -> tuple[Any, ...]:
    """Uses the highest LAC of the responses, even if it is below the segment of the bookies that were asked."""
    proper = _Round.__init__

    def broken(self: _Round, *rest: Any) -> None:
        proper(self, *rest)
        self._lac = -1

    return (replaced(_Round, "__init__", broken),)


def _first_missing_answer_decides() -> tuple[Any, ...]:
    """Lets a recovery end the ledger at an entry that one replica does not have."""
    proper = EntrySearch.__init__

    def broken(self: EntrySearch, write_quorum: int, ack_quorum: int) -> None:
        proper(self, write_quorum, ack_quorum)
        self._missing_needed = 1

    return (replaced(EntrySearch, "__init__", broken),)


def _failures_count_as_missing() -> tuple[Any, ...]:
    """Counts a replica that does not respond to a recovery as one without the entry."""

    def broken(self: EntrySearch) -> Verdict:
        return self.missing()

    return (replaced(EntrySearch, "failed", broken),)


def _re_adds_assumed() -> tuple[Any, ...]:
    """Closes the ledger as soon as a recovery has sent its re-adds."""
    proper = _Copying._add_found

    def broken(self: _Copying) -> None:
        proper(self)
        pipeline = self._pipeline
        if pipeline is not None and pipeline.error is None:
            tracker = pipeline._tracker
            for position in range(self._metadata.ensemble_size):
                tracker.acked(self._first, tracker.pushed - self._first + 1, position)
            self._check_done()

    return (replaced(_Copying, "_add_found", broken),)


def _new_bookie_gets_nothing() -> tuple[Any, ...]:
    """Sends a new bookie only later adds; the earlier ones count as acknowledged by it."""
    proper = AddPipeline.fill

    def broken(self: AddPipeline, bookies: Mapping[int, BookieId], start: EntryId) -> dict[int, LostReplica]:
        kept, self._kept = self._kept, type(self._kept)()
        try:
            former = proper(self, bookies, start)
        finally:
            self._kept = kept
        first, count = self.confirmed + 1, self._tracker.pushed - self.confirmed
        for position in bookies:
            self._tracker.acked(EntryId(first), count, position)
        return former

    return (replaced(AddPipeline, "fill", broken),)


def _segment_begins_late() -> tuple[Any, ...]:
    """Begins the new segment after the last sent add: the lost bookie stays named for entries that it may lack."""

    def broken(self: AddPipeline, positions: Any) -> EntryId:
        proper(self, positions)
        return EntryId(self._tracker.pushed + 1)

    proper = AddPipeline.vacate
    return (replaced(AddPipeline, "vacate", broken),)


def _hole_confirmed() -> tuple[Any, ...]:
    """Confirms an entry with a quorum before the entries below it."""
    proper = PrefixAckTracker.acked

    def broken(self: PrefixAckTracker, first: EntryId, count: int, position: int) -> EntryId:
        proper(self, first, count, position)
        entry = self.pushed
        while entry > self.confirmed and sum(_holds(self, entry)) < self._ack_quorum:
            entry = EntryId(entry - 1)
        self.confirmed = entry
        return self.confirmed

    return (replaced(PrefixAckTracker, "acked", broken),)


def _holds(tracker: PrefixAckTracker, entry: EntryId) -> list[bool]:
    """Return for each position whether it acknowledged an entry."""
    return [
        entry < end or beyond.end_of(entry) > entry for end, beyond in zip(tracker._end, tracker._beyond, strict=True)
    ]


def _repeated_ack_counts() -> tuple[Any, ...]:
    """Counts a repeated acknowledgement of a position for the position that lags most."""
    proper = PrefixAckTracker.acked

    def broken(self: PrefixAckTracker, first: EntryId, count: int, position: int) -> EntryId:
        repeated = min(first + count, self._end[position]) - first
        if repeated > 0:
            proper(self, first, repeated, min(range(len(self._end)), key=self._end.__getitem__))
        return proper(self, first, count, position)

    return (replaced(PrefixAckTracker, "acked", broken),)


QUORUM_RULES = (
    Variant("LAC below the last segment", "gaps", 6, _lac_below_the_segment),
    Variant("one replica without the entry ends the ledger", "duel", 12, _first_missing_answer_decides),
    Variant("silence counts as a missing entry", "gaps", 1, _failures_count_as_missing),
    Variant("re-adds of a recovery count when they are sent", "gaps", 4, _re_adds_assumed),
    Variant("a new bookie does not get the adds under way", "duel", 8, _new_bookie_gets_nothing),
    Variant("a new segment begins behind the last add sent", "duel", 6, _segment_begins_late),
    Variant("an entry with a quorum is confirmed before those below it", "gaps", 7, _hole_confirmed),
    Variant("a repeated acknowledgement counts for another bookie", "gaps", 8, _repeated_ack_counts),
)
