"""Which entries of one segment are confirmed: acknowledgements counted per entry, released in order.

Owns the rule that an entry counts only with `ack_quorum` distinct positions of its write set, and only after all
entries before it. Knows neither bookies nor time. Two trackers with one interface:

* `PrefixAckTracker` for E == Qw: every position holds every entry, so the acknowledgements of a position are ranges
  and a whole run costs a handful of operations;
* `StripedAckTracker` for Qw < E: a bit mask of positions per pending entry.

`confirmed` is the last entry with a quorum; `settled` the last up to which every position that has not failed has
answered, so that nobody will need the bytes of these entries again.
"""

from collections import deque
from typing import Protocol

from quire_bookie.model import EntryId
from quire_bookie.quorum.ranges import IdRanges
from quire_bookie.quorum.write_set import write_sets


class AckTracker(Protocol):
    """Acknowledgements of the entries from `first` on that were `pushed`."""

    confirmed: EntryId
    settled: EntryId
    pushed: EntryId

    def push(self, count: int) -> None:
        """The next `count` entries were sent."""
        ...

    def acked(self, first: EntryId, count: int, position: int) -> EntryId:
        """`position` stored `count` entries from `first` on. Returns `confirmed`, which may have moved.

        Duplicates, ids that were never pushed, positions outside the write set and positions that failed or were
        replaced change nothing.
        """
        ...

    def fail(self, position: int) -> None:
        """`position` answers nothing any more. What it acknowledged is durable there and stays counted."""
        ...

    def replace(self, position: int) -> None:
        """Another bookie takes the position, or will: what the former one acknowledged above `confirmed` is void.

        From there on the position answers again, so that nothing above `confirmed` is settled before it did; up to
        there nobody waits for it.
        """
        ...

    def first_unanswered(self, position: int) -> EntryId:
        """The first pushed entry that `position` holds and has not acknowledged; `pushed` + 1 when there is none."""
        ...


def ack_tracker(ensemble_size: int, write_quorum: int, ack_quorum: int, first: EntryId) -> AckTracker:
    """The tracker for a segment's quorums whose next entry is `first`."""
    assert ensemble_size >= write_quorum >= ack_quorum >= 1
    if ensemble_size == write_quorum:
        return PrefixAckTracker(ensemble_size, ack_quorum, first)
    return StripedAckTracker(ensemble_size, write_quorum, ack_quorum, first)


class PrefixAckTracker:
    """E == Qw. For each position the end of its unbroken acknowledgements, and ranges beyond a hole."""

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
        ends = self._end
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
        return self.confirmed

    def fail(self, position: int) -> None:
        """See AckTracker."""
        self._failed.add(position)
        self._settle()

    def replace(self, position: int) -> None:
        """See AckTracker."""
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
            # The Qa-th furthest of what each position holds without a break from here on.
            extents = [
                end if end >= reached or not beyond else beyond.end_of(reached)
                for end, beyond in zip(ends, self._beyond, strict=True)
            ]
            extents.sort()
            if extents[self._rank] <= reached:
                break
            reached = extents[self._rank]
        self.confirmed = EntryId(reached - 1)
        self._holes = any(self._beyond)
        self._settle()

    def _settle(self) -> None:
        live = [end for position, end in enumerate(self._end) if position not in self._failed]
        # Without a quorum nothing is settled, whoever failed.
        self.settled = EntryId(min(min(live, default=self.confirmed + 1) - 1, self.confirmed))


class StripedAckTracker:
    """Qw < E. One bit mask of acknowledging positions for each entry after `settled`."""

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
