"""The adds of a ledger in flight: sent in runs, acknowledged in batches, confirmed in order.

Owns the bytes of every entry until all living replicas have it, the retries at bookies that answered ETOOMANYREQUESTS,
and the decision that a replica failed or lags too far behind, after which it is sent nothing more. Its owner chooses
the replacement: `vacate` voids the acknowledgements of the lost bookie, `fill` puts another one in its position (see
`quorum.ensemble_change` for why entries are acknowledged between the two). Never confirms an entry with fewer than Qa
acknowledgements.

Work is done per run and per buffer of responses. A run's frames are joined once and shared by all replicas.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from typing import Protocol

from quire_bookie.client.links.bookie_link import Links, Purpose
from quire_bookie.client.writing.sent_runs import SentRun
from quire_bookie.dataclass import dataclass
from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import (
    BookieUnavailableError,
    LedgerError,
    LedgerFencedError,
    LedgerIdInUseError,
    QuorumError,
    TooManyRequestsError,
    UnauthorizedError,
)
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, ReplicaState, new_tuple
from quire_bookie.quorum.ack_tracker import ack_tracker
from quire_bookie.quorum.write_set import can_reach, write_sets
from quire_bookie.settings.client import ClientSettings

_WATCH_S_MIN = 0.001
_FATAL = (LedgerFencedError, UnauthorizedError)


class PipelineOwner(Protocol):
    """Receives the outcome of adds. Called on the event loop and never from within `push`."""

    def adds_confirmed(self, up_to: EntryId) -> None:
        """Every entry up to `up_to` has its quorum. Called once per buffer of responses."""
        ...

    def adds_failed(self, error: LedgerError) -> None:
        """No further entry will be confirmed. Called once."""
        ...

    def replica_failed(self, bookie: BookieId, error: LedgerError) -> bool:
        """A bookie was removed; the entries that it has not acknowledged have one replica less.

        Return True if another one may replace it: the pipeline then waits, even without a quorum, until
        `require_quorum`.
        """
        ...

    def adds_released(self) -> None:
        """`pending_bytes` decreased."""
        ...


@dataclass(frozen=True, slots=True)
class LostReplica:
    """A position whose bookie was given up."""

    bookie: BookieId
    error: LedgerError
    owed: EntryId
    """The first entry of the position that the bookie has not acknowledged."""
    since_s: float


@dataclass(slots=True)
class _Retry:
    backoff: Backoff
    refused: list[tuple[int, int]] = field(default_factory=list)
    """First entry of each range and the entry after its last."""
    timer: TimerHandle | None = None


class AddPipeline:
    """Sends and tracks a ledger's adds from `first` on, beginning with the last segment of its metadata.

    With `purpose` RECOVERY its responses are separate from those of a writer.
    """

    def __init__(
        self,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        length: int,
        *,
        links: Links,
        purpose: Purpose,
        settings: ClientSettings,
        owner: PipelineOwner,
    ) -> None:
        """`length`: payload bytes of the ledger before `first`."""
        self.ledger = ledger
        self.confirmed = EntryId(first - 1)
        self.pushed = EntryId(first - 1)
        self._released_length = length
        """Payload bytes of the ledger up to the last entry whose bytes were released."""
        self.pending_bytes = 0
        self.error: LedgerError | None = None
        self.lost: dict[int, LostReplica] = {}
        """By position: replicas without a replacement so far; no bytes are kept for them."""
        self.vacant: dict[int, LostReplica] = {}
        """By position: replicas whose replacement is in progress."""
        self.owing: frozenset[BookieId] = frozenset()
        """After the stop: bookies that have not acknowledged all confirmed entries."""
        self._given_up: set[int] = set()
        """Vacant positions for which bytes are no longer kept."""
        self._quorums = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._ensemble = list(metadata.segments[-1].ensemble)
        self._living = {bookie: position for position, bookie in enumerate(self._ensemble)}
        self._joined_s: dict[BookieId, float] = {}
        self._write_sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._tracker = ack_tracker(*self._quorums, first)
        self._source = links
        self._purpose = purpose
        self._links = {bookie: links.link(bookie, purpose) for bookie in self._ensemble}
        self._striped = metadata.write_quorum < metadata.ensemble_size
        self._send_to_living = [link.send_adds for link in self._links.values()]
        self._now_s = links.now_s
        self._settings = settings
        self._owner = owner
        self._kept: deque[SentRun] = deque()
        self._answered_last: BookieId | None = None
        self.on_stored: Callable[[BookieId, int, int], None] | None = None
        """Called with bookie, first entry and count of what a bookie stored, while an entry is traced."""
        self._retries: dict[BookieId, _Retry] = {}
        # With a quorum timeout every push starts the timer unless it runs, otherwise only above this many bytes.
        self._watch_bytes = settings.slow_replica_bytes_max if settings.add_quorum_timeout_s is None else 0
        self._watching: TimerHandle | None = None

    @property
    def confirmed_length(self) -> int:
        """Payload bytes of the ledger up to and including `confirmed`, for its close. Walks the kept runs."""
        length, last = self._released_length, self.confirmed
        for run in self._kept:
            if run.first > last:
                break
            length = run.length if run.end <= last + 1 else run.length_at(last)
        return length

    @property
    def failed_replicas(self) -> dict[BookieId, LedgerError]:
        """Lost bookies that are not replaced (yet), with the reasons."""
        return {lost.bookie: lost.error for lost in (*self.lost.values(), *self.vacant.values())}

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies by position, including lost ones."""
        return tuple(self._ensemble)

    @property
    def is_settled(self) -> bool:
        """Whether every living replica has acknowledged everything."""
        return self._tracker.settled == self.pushed

    def replica_states(self, entry: EntryId) -> dict[BookieId, ReplicaState]:
        """Return how far each bookie of the entry's write set is. Called while `adds_confirmed` reports the entry."""
        states: dict[BookieId, ReplicaState] = {}
        for position in self._write_sets[entry % len(self._ensemble)]:
            bookie = self._ensemble[position]
            if bookie not in self._living:
                states[bookie] = ReplicaState.LOST
            elif self._tracker.first_unanswered(position) <= entry:
                states[bookie] = ReplicaState.WAITING
            else:
                states[bookie] = ReplicaState.LAST if bookie == self._answered_last else ReplicaState.STORED
        return states

    # ---- sending
    def push(self, frames: bytes, count: int, length: int) -> EntryId:
        """Send the complete ADD frames of the next `count` entries. Return the id of the first.

        `length`: payload bytes of the ledger up to and including the last of them.
        """
        assert self.error is None, "a failed pipeline accepts no adds"
        last = self.pushed
        first: EntryId = last + 1  # type: ignore[assignment]  # no call of EntryId: this is the hot path
        run = new_tuple(SentRun, (first, first + count, frames, length, self._now_s()))
        self.pushed = last + count  # type: ignore[assignment]
        self.pending_bytes += len(frames)
        self._kept.append(run)
        self._tracker.push(count)
        if self._striped:
            self._send_striped(run)
        else:
            ledger = self.ledger
            for send_adds in self._send_to_living:
                send_adds(ledger, frames, self)
        if self.pending_bytes > self._watch_bytes and self._watching is None:
            self._watch()
        return first

    def _send_striped(self, run: SentRun) -> None:
        outgoing: list[list[memoryview]] = [[] for _ in self._ensemble]
        size = len(self._ensemble)
        entry: int = run.first
        for entry, frame in enumerate(run.split(), run.first):
            for position in self._write_sets[entry % size]:
                outgoing[position].append(frame)
        assert entry + 1 == run.end, "each entry has one frame"
        for bookie, parts in zip(self._ensemble, outgoing, strict=True):
            if parts and bookie in self._living:
                self._links[bookie].send_adds(self.ledger, b"".join(parts), self)

    # ---- answers
    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        """See AddSink."""
        position = self._living.get(bookie)
        if position is None:
            return  # too late: the bookie was given up
        self._answered_last = bookie
        self._tracker.acked(first, count, position)
        if self.on_stored is not None:
            self.on_stored(bookie, first, count)
        if self._retries and (retry := self._retries.get(bookie)) is not None and not retry.refused:
            del self._retries[bookie]

    def adds_answered(self) -> None:
        """See AddSink. Owners may push, close or fail within their callbacks."""
        tracker = self._tracker
        if self.error is None and tracker.confirmed > self.confirmed:
            assert tracker.confirmed <= self.pushed, "an entry is confirmed only after it was sent"
            self.confirmed = tracker.confirmed
            # Before the release, whose callback may end the pipeline.
            self._owner.adds_confirmed(self.confirmed)
        self._release()

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        """See AddSink."""
        if self.error is not None or bookie not in self._living:
            return
        if isinstance(error, UnauthorizedError) and self._purpose is not Purpose.RECOVERY:
            # This writer created the ledger with its own key, so the bookie's key is that of another ledger.
            text = f"ledger {self.ledger} cannot be written: bookie {bookie} holds another ledger with that id"
            self.fail(LedgerIdInUseError(text))
        elif isinstance(error, _FATAL):
            self.fail(error)
        elif isinstance(error, TooManyRequestsError):
            self._retry_later(bookie, first, count)
        else:
            self._fail_replica(bookie, error)

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """See AddSink. Harmless if the bookie had answered everything."""
        self.adds_answered()  # responses before a protocol violation in the same buffer count
        if self.error is None and bookie in self._living and self._owes(bookie) is not None:
            self._fail_replica(bookie, error)

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        """See AddSink."""
        if self.error is not None or bookie not in self._living:
            return False
        run = self._owes(bookie)
        if run is None:
            return False
        waited_s = now_s - self._asked_s(bookie, run)
        if waited_s >= self._settings.add_timeout_s:
            text = f"bookie {bookie} did not respond to an add to ledger {self.ledger} within {waited_s:.1f} s"
            self._fail_replica(bookie, BookieUnavailableError(text))
            return True
        if waited_s >= self._settings.slow_replica_s:
            self._drop_laggards(self._settings.slow_replica_s)
        return bookie not in self._living

    def owes(self, bookie: BookieId) -> bool:
        """See AddSink."""
        position = self._living.get(bookie)
        return self.error is None and position is not None and self._tracker.first_unanswered(position) <= self.pushed

    # ---- replacing bookies
    def can_reach(self) -> bool:
        """Return whether the living bookies suffice for the ack quorum of every entry."""
        return can_reach(self.lost.keys() | self.vacant.keys(), *self._quorums)

    def require_quorum(self) -> None:
        """Fail unless the remaining replicas suffice, because lost ones are not being replaced."""
        if self.error is not None or self.can_reach():
            return
        lost = [*self.vacant.values(), *self.lost.values()]
        names = ", ".join(sorted(one.bookie for one in lost))
        last = max(lost, key=lambda one: one.since_s).error
        quorum = self._quorums[2]
        failure = QuorumError(
            f"ledger {self.ledger} cannot reach its ack quorum of {quorum}: lost {names}; last: {last}"
        )
        failure.__cause__ = last
        self.fail(failure)

    def vacate(self, positions: Collection[int]) -> EntryId:
        """Begin to replace the lost replicas at `positions`. Return the first entry that the new bookies will hold.

        From here on, acknowledgements of the former bookies no longer count for that entry and those after it.
        """
        for position in positions:
            self.vacant[position] = replace(self.lost.pop(position), since_s=self._now_s())
            self._tracker.replace(position)
        assert self.lost.keys().isdisjoint(self.vacant) and self._tracker.confirmed >= self.confirmed
        return EntryId(self._tracker.confirmed + 1)

    def fill(self, bookies: Mapping[int, BookieId], start: EntryId) -> dict[int, LostReplica]:
        """Put these bookies in the vacant positions and send them all entries from `start` (returned by `vacate`) on.

        Returns the former replicas, which remain responsible for entries below `start`. A position whose bytes were
        released meanwhile is lost again at once, and its new bookie lacks everything from `start` on.
        """
        assert start <= self._tracker.confirmed + 1, "the new bookies hold everything above the LAC"
        now_s = self._now_s()
        former: dict[int, LostReplica] = {}
        for position, bookie in bookies.items():
            assert bookie not in self._living, "a bookie has one position"
            lost = self.vacant.pop(position)
            former[position] = lost
            self._links.pop(lost.bookie, None)
            self._ensemble[position] = bookie
            link = self._links[bookie] = self._source.link(bookie, self._purpose)
            if position in self._given_up:
                self._given_up.discard(position)
                self.lost[position] = LostReplica(bookie, lost.error, start, now_s)
                continue
            self._living[bookie] = position
            self._joined_s[bookie] = now_s
            for run in self._kept:
                frames = run.frames_for(position, start, self._write_sets)
                if frames:
                    link.send_adds(self.ledger, frames, self)
        self._update_living()
        return former

    def keep_nothing_for_vacant(self) -> None:
        """Release the bytes kept for vacant positions: their new bookies will not be sent the adds in flight."""
        self._give_up(self.vacant)
        self._release()

    def restore(self, positions: Collection[int]) -> None:
        """Cancel a replacement: the positions are lost as before, and no bytes are kept for them."""
        for position in positions:
            assert position not in self.lost
            self.lost[position] = self.vacant.pop(position)
            self._given_up.discard(position)
            self._tracker.fail(position)
        self._release()

    # ---- the end
    def fail(self, error: LedgerError) -> None:
        """Stop confirming entries and report the error to the owner, once."""
        if self.error is not None:
            return
        self.stop(error)
        self._owner.adds_failed(error)

    def stop(self, error: LedgerError) -> None:
        """Drop all adds in flight without calling the owner."""
        self.error = error
        first_unanswered, confirmed = self._tracker.first_unanswered, self._tracker.confirmed
        self.owing = frozenset(
            bookie for bookie, position in self._living.items() if first_unanswered(position) <= confirmed
        )
        for retry in self._retries.values():
            if retry.timer is not None:
                retry.timer.cancel()
        self._retries.clear()
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        for link in self._links.values():
            link.forget_sink(self.ledger, self)
        self._released_length = self.confirmed_length
        self._kept.clear()
        self.pending_bytes = 0

    # ---- slow replicas
    def _watch(self) -> None:
        """Start the timer of the next check, because many bytes are in flight or a quorum may be overdue."""
        wait_s = self._settings.slow_replica_grace_s
        if (quorum_s := self._settings.add_quorum_timeout_s) is not None:
            oldest = self._first_unconfirmed()
            oldest_s = oldest.sent_s if oldest is not None else self._now_s()
            # Rounding may leave a wait below the resolution of the clock, which would repeat the check endlessly.
            wait_s = max(min(wait_s, oldest_s + quorum_s - self._now_s()), _WATCH_S_MIN)
        self._watching = self._source.call_later(wait_s, self._check)

    def _check(self) -> None:
        self._watching = None
        settings = self._settings
        oldest = self._first_unconfirmed()
        if (quorum_s := settings.add_quorum_timeout_s) is not None and oldest is not None:
            waited_s = self._now_s() - oldest.sent_s
            if waited_s >= quorum_s:
                self.fail(
                    QuorumError(
                        f"entry {self.confirmed + 1} of ledger {self.ledger} has no ack quorum after {waited_s:.1f} s"
                    )
                )
                return
        if self.pending_bytes > settings.slow_replica_bytes_max:
            self._drop_laggards(settings.slow_replica_grace_s)
        if self.error is None and self.pending_bytes > self._watch_bytes:
            self._watch()

    def _drop_laggards(self, waited_s: float) -> None:
        """Give up replicas that have not acknowledged an entry for `waited_s` that the others confirmed."""
        now_s = self._now_s()
        self._give_up([position for position, one in self.vacant.items() if now_s - one.since_s >= waited_s])
        for bookie, position in list(self._living.items()):
            entry = self._tracker.first_unanswered(position)
            if self.error is not None or bookie not in self._living or entry > self._tracker.confirmed:
                continue
            waiting_s = now_s - self._asked_s(bookie, self._run_of(entry))
            others = {*self.lost, *self.vacant, position}
            if waiting_s >= waited_s and can_reach(others, *self._quorums):
                behind = sum(len(run.frames) for run in self._kept if run.first <= self.confirmed)
                text = f"bookie {bookie} is {waiting_s:.1f} s and up to {behind} bytes behind in ledger {self.ledger}"
                self._fail_replica(bookie, BookieUnavailableError(text))
        if self.error is None:
            self._release()

    def _asked_s(self, bookie: BookieId, run: SentRun) -> float:
        return max(run.sent_s, self._joined_s.get(bookie, 0.0))

    def _give_up(self, vacant: Collection[int]) -> None:
        for position in set(vacant) - self._given_up:
            self._given_up.add(position)
            self._tracker.fail(position)

    # ---- inside
    def _owes(self, bookie: BookieId) -> SentRun | None:
        """Return the run of the first entry that the bookie has not acknowledged."""
        entry = self._tracker.first_unanswered(self._living[bookie])
        return self._run_of(entry) if entry <= self.pushed else None

    def _run_of(self, entry: EntryId) -> SentRun:
        assert self._kept and self._kept[0].first <= entry <= self.pushed, "bytes that a replica lacks are kept"
        return next(run for run in self._kept if entry < run.end)

    def _first_unconfirmed(self) -> SentRun | None:
        """Return the run of the first unconfirmed entry. Only for slow paths: walks the kept runs."""
        return next((run for run in self._kept if run.end > self.confirmed + 1), None)

    def _release(self) -> None:
        # Settled may be ahead of `confirmed`, which is updated at the end of each buffer of responses.
        kept, end = self._kept, min(self._tracker.settled, self.confirmed) + 1
        if not kept or kept[0].end > end:
            return
        pending_bytes = self.pending_bytes
        while kept and kept[0].end <= end:
            run = kept.popleft()
            pending_bytes -= len(run.frames)
        assert (pending_bytes > 0) if kept else pending_bytes == 0, "what is released was counted"
        self.pending_bytes = pending_bytes
        self._released_length = run.length
        self._owner.adds_released()

    def _update_living(self) -> None:
        self._send_to_living = [self._links[bookie].send_adds for bookie in self._living]

    def _fail_replica(self, bookie: BookieId, error: LedgerError) -> None:
        position = self._living.pop(bookie)
        assert position not in self.lost and position not in self.vacant, "a position is lost once"
        owed = self._tracker.first_unanswered(position)
        self._tracker.fail(position)
        self.lost[position] = LostReplica(bookie, error, owed, self._now_s())
        self._joined_s.pop(bookie, None)
        self._update_living()
        self._links[bookie].forget_sink(self.ledger, self)
        retry = self._retries.pop(bookie, None)
        if retry is not None and retry.timer is not None:
            retry.timer.cancel()
        waits = self._owner.replica_failed(bookie, error)
        if self.error is not None:
            return
        if waits or self.can_reach():
            self._release()
        else:
            self.require_quorum()

    def _retry_later(self, bookie: BookieId, first: EntryId, count: int) -> None:
        retry = self._retries.get(bookie)
        if retry is None:
            retry = self._retries[bookie] = _Retry(Backoff(self._settings.retry_backoff_s))
        retry.refused.append((first, first + count))
        if retry.timer is None:
            retry.timer = self._source.call_later(retry.backoff.grow(), lambda: self._send_again(bookie))

    def _send_again(self, bookie: BookieId) -> None:
        retry = self._retries[bookie]
        retry.timer = None
        refused, retry.refused = retry.refused, []
        settled = self._tracker.settled
        frames = b"".join(
            run.frames_of(max(first, run.first), min(end, run.end))
            for first, end in refused
            for run in self._kept
            if max(first, run.first, settled + 1) < min(end, run.end)
        )
        if frames:
            self._links[bookie].send_adds(self.ledger, frames, self)
