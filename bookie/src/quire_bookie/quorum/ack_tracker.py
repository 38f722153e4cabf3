"""Tracks which entries of one segment are confirmed: counts acknowledgements per entry and confirms in order.

Owns the rule that an entry is confirmed only when `ack_quorum` distinct positions of its write set acknowledged it and
all entries before it are confirmed. Knows neither bookies nor time. Two trackers have the same interface:

* `PrefixAckTracker` for E == Qw: every position holds every entry, so the acknowledgements of a position are ranges
  and a whole run costs a few operations;
* `StripedAckTracker` for Qw < E: a bit mask of positions per pending entry.

`confirmed` is the last entry with a quorum. `settled` is the last entry up to which every position that has not failed
has acknowledged, so that the bytes of these entries are no longer needed.
"""

from collections import deque
from typing import Protocol

from quire_bookie.model import EntryId
from quire_bookie.quorum.ranges import IdRanges
from quire_bookie.quorum.write_set import write_sets


class AckTracker(Protocol):
    """Tracks acknowledgements of the entries from `first` to `pushed`."""

    confirmed: EntryId
    settled: EntryId
    pushed: EntryId

    def push(self, count: int) -> None:
        """Record that the next `count` entries were sent."""
        ...

    def acked(self, first: EntryId, count: int, position: int) -> EntryId:
        """Record that `position` stored `count` entries from `first` on. Return `confirmed`, which may have advanced.

        Duplicates, ids that were never pushed, positions outside the write set and positions that failed or were
        replaced change nothing.
        """
        ...

    def fail(self, position: int) -> None:
        """Record that `position` failed. The entries that it acknowledged are durable there and still count."""
        ...

    def replace(self, position: int) -> None:
        """Give the position to another bookie, now or later: the former acknowledgements above `confirmed` are void.

        From there on the position counts as alive again: nothing above `confirmed` is settled before it acknowledges.
        Entries up to `confirmed` do not wait for it.
        """
        ...

    def first_unanswered(self, position: int) -> EntryId:
        """Return the first pushed entry in `position` that it has not acknowledged; `pushed` + 1 if there is none."""
        ...


def ack_tracker(ensemble_size: int, write_quorum: int, ack_quorum: int, first: EntryId) -> AckTracker:
    """Create the tracker for a segment with these quorums whose next entry is `first`."""
    assert ensemble_size >= write_quorum >= ack_quorum >= 1
    if ensemble_size == write_quorum:
        return PrefixAckTracker(ensemble_size, ack_quorum, first)
    return StripedAckTracker(ensemble_size, write_quorum, ack_quorum, first)


class PrefixAckTracker:
    """Tracks E == Qw: for each position the end of its contiguous acknowledgements, and ranges beyond a gap."""

    __slots__ = ("_ack_quorum", "_beyond", "_end", "_failed", "_holes", "_rank", "confirmed", "pushed", "settled")

    def __init__(self, ensemble_size: int, ack_quorum: int, first: EntryId) -> None:
        self.confirmed = EntryId(first - 1)
        self.settled = EntryId(first - 1)
        self.pushed = EntryId(first - 1)
        self._ack_quorum = ack_quorum
        self._rank = ensemble_size - ack_quorum
        self._end = [int(first)] * ensemble_size
        self._beyond = [IdRanges() for _ in range(ensemble_size)]
        self._failed: set[int] = set()
        self._holes = False

    def push(self, count: int) -> None:
        """See AckTracker."""
        self.pushed = EntryId(self.pushed + count)

    def acked(self, first: EntryId, count: int, position: int) -> EntryId:
        """See AckTracker."""
        end = min(first + count, self.pushed + 1)
        ends, before = self._end, self.confirmed
        if position in self._failed or end <= ends[position] or first >= end:
            return self.confirmed
        beyond = self._beyond[position]
        if first <= ends[position]:
            ends[position] = end
            if beyond:
                ends[position] = beyond.end_of(end)
                beyond.drop_below(ends[position])
        else:
            beyond.add(first, end)
            self._holes = True
        if self._holes or self._failed:
            self._advance()
        else:
            order = sorted(ends)
            self.confirmed = EntryId(order[self._rank] - 1)
            self.settled = EntryId(order[0] - 1)
        assert before <= self.confirmed <= self.pushed, "entries are confirmed in order, and none before it was sent"
        return self.confirmed

    def fail(self, position: int) -> None:
        """See AckTracker."""
        assert 0 <= position < len(self._end)
        self._failed.add(position)
        self._settle()

    def replace(self, position: int) -> None:
        """See AckTracker."""
        assert self.settled <= self.confirmed <= self.pushed
        self._failed.discard(position)
        self._end[position] = self.confirmed + 1
        self._beyond[position].clear()

    def first_unanswered(self, position: int) -> EntryId:
        """See AckTracker."""
        return EntryId(self._end[position])

    def _advance(self) -> None:
        ends = self._end
        reached = self.confirmed + 1
        while True:
            # How far each position acknowledged without a gap from here on; the Qa-th furthest is confirmed.
            extents = [
                end if end >= reached or not beyond else beyond.end_of(reached)
                for end, beyond in zip(ends, self._beyond, strict=True)
            ]
            extents.sort()
            if extents[self._rank] <= reached:
                break
            reached = extents[self._rank]
        assert reached > self.confirmed, "a confirmed entry stays confirmed"
        self.confirmed = EntryId(reached - 1)
        self._holes = any(self._beyond)
        self._settle()

    def _settle(self) -> None:
        live = [end for position, end in enumerate(self._end) if position not in self._failed]
        # Nothing is settled without a quorum, even if all positions failed.
        self.settled = EntryId(min(min(live, default=self.confirmed + 1) - 1, self.confirmed))


class StripedAckTracker:
    """Tracks Qw < E: one bit mask of acknowledging positions for each entry after `settled`."""

    __slots__ = ("_ack_quorum", "_failed", "_masks", "_wanted", "confirmed", "pushed", "settled")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int, first: EntryId) -> None:
        self.confirmed = EntryId(first - 1)
        self.settled = EntryId(first - 1)
        self.pushed = EntryId(first - 1)
        self._ack_quorum = ack_quorum
        self._wanted = [sum(1 << p for p in positions) for positions in write_sets(ensemble_size, write_quorum)]
        self._masks: deque[int] = deque()
        self._failed = 0

    def push(self, count: int) -> None:
        """See AckTracker."""
        self._masks.extend([0] * count)
        self.pushed = EntryId(self.pushed + count)

    def acked(self, first: EntryId, count: int, position: int) -> EntryId:
        """See AckTracker."""
        bit = 1 << position
        if bit & self._failed:
            return self.confirmed
        masks, wanted, base = self._masks, self._wanted, self.settled + 1
        size = len(wanted)
        for entry in range(max(first, base), min(first + count, self.pushed + 1)):
            if wanted[entry % size] & bit:
                masks[entry - base] |= bit
        self._advance()
        return self.confirmed

    def fail(self, position: int) -> None:
        """See AckTracker."""
        self._failed |= 1 << position
        self._settle()

    def replace(self, position: int) -> None:
        """See AckTracker."""
        masks, bit, confirmed = self._masks, 1 << position, self.confirmed - self.settled
        self._failed &= ~bit
        for index, mask in enumerate(masks):
            masks[index] = mask | bit if index < confirmed else mask & ~bit

    def first_unanswered(self, position: int) -> EntryId:
        """See AckTracker."""
        bit, wanted = 1 << position, self._wanted
        for entry, mask in enumerate(self._masks, self.settled + 1):
            if wanted[entry % len(wanted)] & bit and not mask & bit:
                return EntryId(entry)
        return EntryId(self.pushed + 1)

    def _advance(self) -> None:
        masks, base = self._masks, self.settled + 1
        assert len(masks) == self.pushed - self.settled, "each entry that is not settled has a mask"
        confirmed: int = self.confirmed
        while confirmed < self.pushed and masks[confirmed + 1 - base].bit_count() >= self._ack_quorum:
            confirmed += 1
        self.confirmed = EntryId(confirmed)
        self._settle()

    def _settle(self) -> None:
        masks, wanted, failed = self._masks, self._wanted, self._failed
        settled: int = self.settled
        while settled < self.confirmed:
            need = wanted[(settled + 1) % len(wanted)] & ~failed
            if masks[0] & need != need:
                break
            masks.popleft()
            settled += 1
        self.settled = EntryId(settled)
        assert len(masks) == self.pushed - settled, "the masks begin after the last settled entry"
