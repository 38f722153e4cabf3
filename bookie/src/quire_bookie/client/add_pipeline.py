"""The adds of one segment under way: sent in runs, acknowledged in batches, confirmed in order.

Owns the bytes of every entry until all living replicas have it, the retries at bookies that answered
ETOOMANYREQUESTS, and the verdict on a replica that failed: it gets nothing more of this ledger. Never confirms an
entry with fewer than Qa acknowledgements, and never replaces a bookie: the ledger goes on while Qa can be reached.

Work is done per run and per buffer of answers. A run's frames are joined once and shared by all replicas.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol

from quire_bookie.client.bookie_link import Links, Purpose
from quire_bookie.client.settings import ClientSettings
from quire_bookie.errors import (
    BookieUnavailableError,
    LedgerError,
    LedgerFencedError,
    QuorumError,
    TooManyRequestsError,
    UnauthorizedError,
)
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.ack_tracker import ack_tracker
from quire_bookie.quorum.write_set import can_reach, write_sets

_LENGTH = Struct(">i")
_ENTRY_LENGTH = Struct(">q")
_ENTRY_LENGTH_OFFSET = 4 + 4 + 20 + 24  # frame length, header word, master key, then ledger, entry, LAC
_FATAL = (LedgerFencedError, UnauthorizedError)


class PipelineOwner(Protocol):
    """Who is told what becomes of the adds. Called on the loop, never from inside `push`."""

    def adds_confirmed(self, up_to: EntryId) -> None:
        """Every entry up to here has its quorum. Once per buffer of answers."""
        ...

    def adds_failed(self, error: LedgerError) -> None:
        """No further entry will be confirmed. Once."""
        ...

    def replica_failed(self, bookie: BookieId, error: LedgerError) -> None:
        """A bookie left the pipeline; the entries it has not acknowledged have a replica less."""
        ...

    def adds_released(self) -> None:
        """`pending_bytes` became less."""
        ...


@dataclass(slots=True)
class _SentRun:
    first: EntryId
    count: int
    frames: bytes
    length: int
    """Payload bytes of the ledger up to and with the last entry."""
    sent_s: float

    @property
    def end(self) -> int:
        return self.first + self.count

    def split(self) -> Iterator[memoryview]:
        """The ADD frames one by one."""
        view, stop = memoryview(self.frames), 0
        while stop < len(view):
            start = stop
            stop += 4 + _LENGTH.unpack_from(view, start)[0]
            yield view[start:stop]

    def frames_of(self, first: int, end: int) -> memoryview:
        """The ADD frames of entries `first` to `end` - 1; walks the frames, because only retries and the close ask."""
        view, start, stop = memoryview(self.frames), 0, 0
        for entry in range(self.first, end):
            start = start if entry > first else stop
            stop += 4 + _LENGTH.unpack_from(view, stop)[0]
        return view[start:stop]


@dataclass(slots=True)
class _Retry:
    refused: list[tuple[int, int]] = field(default_factory=list)
    """First entry and the one after the last."""
    delay_s: float = 0.0
    timer: TimerHandle | None = None


class AddPipeline:
    """One segment's adds from `first` on. `purpose` RECOVERY keeps its answers apart from those of a writer."""

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
        self.confirmed_length = length
        self.pending_bytes = 0
        self.failed_replicas: dict[BookieId, LedgerError] = {}
        self.error: LedgerError | None = None
        self._quorums = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._ensemble = metadata.segments[-1].ensemble
        self._positions = {bookie: position for position, bookie in enumerate(self._ensemble)}
        self._write_sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._tracker = ack_tracker(*self._quorums, first)
        self._links = {bookie: links.link(bookie, purpose) for bookie in self._ensemble}
        self._striped = metadata.write_quorum < metadata.ensemble_size
        self._send_to_living = [link.send_adds for link in self._links.values()]
        self._clock = links
        self._now_s = links.now_s
        self._settings = settings
        self._owner = owner
        self._kept: deque[_SentRun] = deque()
        self._unconfirmed: deque[_SentRun] = deque()
        self._retries: dict[BookieId, _Retry] = {}

    # ---- sending
    def push(self, frames: bytes, count: int, length: int) -> EntryId:
        """Send the complete ADD frames of the next `count` entries. Returns the id of the first.

        `length`: payload bytes of the ledger up to and with the last of them.
        """
        assert self.error is None, "a failed pipeline takes no adds"
        last = self.pushed
        first: EntryId = last + 1  # type: ignore[assignment]  # no call of EntryId: this is the hot path
        run = _SentRun(first, count, frames, length, self._now_s())
        self.pushed = last + count  # type: ignore[assignment]
        self.pending_bytes += len(frames)
        self._kept.append(run)
        self._unconfirmed.append(run)
        self._tracker.push(count)
        if self._striped:
            self._send_striped(run)
        else:
            ledger = self.ledger
            for send_adds in self._send_to_living:
                send_adds(ledger, frames, self)
        return first

    def _send_striped(self, run: _SentRun) -> None:
        outgoing: list[list[memoryview]] = [[] for _ in self._ensemble]
        size = len(self._ensemble)
        for entry, frame in enumerate(run.split(), run.first):
            for position in self._write_sets[entry % size]:
                outgoing[position].append(frame)
        for bookie, parts in zip(self._ensemble, outgoing, strict=True):
            if parts and bookie not in self.failed_replicas:
                self._links[bookie].send_adds(self.ledger, b"".join(parts), self)

    # ---- answers
    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        """See AddSink."""
        self._tracker.acked(first, count, self._positions[bookie])
        if self._retries and (retry := self._retries.get(bookie)) is not None and not retry.refused:
            del self._retries[bookie]

    def adds_answered(self) -> None:
        """See AddSink. Owners may push, close or fail from inside what is called here."""
        tracker = self._tracker
        if self.error is None and tracker.confirmed > self.confirmed:
            self.confirmed = tracker.confirmed
            self._take_length()
            # Before the release: whoever is told that there is room again may end the pipeline.
            self._owner.adds_confirmed(self.confirmed)
        self._release()

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        """See AddSink."""
        if self.error is not None or bookie in self.failed_replicas:
            return
        if isinstance(error, _FATAL):
            self.fail(error)
        elif isinstance(error, TooManyRequestsError):
            self._retry_later(bookie, first, count)
        else:
            self._fail_replica(bookie, error)

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """See AddSink. Nothing is lost when the bookie had answered everything."""
        if self.error is None and bookie not in self.failed_replicas and self._owes(bookie) is not None:
            self._fail_replica(bookie, error)

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        """See AddSink."""
        if self.error is not None or bookie in self.failed_replicas:
            return False
        run = self._owes(bookie)
        if run is None or now_s - run.sent_s < self._settings.add_timeout_s:
            return False
        text = f"bookie {bookie} did not answer an add to ledger {self.ledger} within {now_s - run.sent_s:.1f} s"
        self._fail_replica(bookie, BookieUnavailableError(text))
        return True

    # ---- the end
    def fail(self, error: LedgerError) -> None:
        """Nothing is confirmed from here on. Tells the owner, once."""
        if self.error is not None:
            return
        self.stop(error)
        self._owner.adds_failed(error)

    def stop(self, error: LedgerError) -> None:
        """Drop everything under way without telling anybody."""
        self.error = error
        for retry in self._retries.values():
            if retry.timer is not None:
                retry.timer.cancel()
        self._retries.clear()
        for link in self._links.values():
            link.forget_sink(self.ledger, self)
        self._kept.clear()
        self._unconfirmed.clear()
        self.pending_bytes = 0

    # ---- inside
    def _owes(self, bookie: BookieId) -> _SentRun | None:
        """The run of the first entry that the bookie has not acknowledged."""
        entry = self._tracker.first_unanswered(self._positions[bookie])
        return self._run_of(entry) if entry <= self.pushed else None

    def _run_of(self, entry: EntryId) -> _SentRun:
        return next(run for run in self._kept if entry < run.end)

    def _take_length(self) -> None:
        """The ledger's length at `confirmed`, which the close writes into the metadata."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0].end <= self.confirmed + 1:
            self.confirmed_length = unconfirmed.popleft().length
        if unconfirmed and unconfirmed[0].first <= self.confirmed:
            frame = unconfirmed[0].frames_of(self.confirmed, self.confirmed + 1)
            (self.confirmed_length,) = _ENTRY_LENGTH.unpack_from(frame, _ENTRY_LENGTH_OFFSET)

    def _release(self) -> None:
        kept, settled = self._kept, self._tracker.settled
        if not kept or kept[0].end > settled + 1:
            return
        while kept and kept[0].end <= settled + 1:
            self.pending_bytes -= len(kept.popleft().frames)
        self._owner.adds_released()

    def _fail_replica(self, bookie: BookieId, error: LedgerError) -> None:
        self.failed_replicas[bookie] = error
        living = [link for name, link in self._links.items() if name not in self.failed_replicas]
        self._send_to_living = [link.send_adds for link in living]
        self._tracker.fail(self._positions[bookie])
        self._links[bookie].forget_sink(self.ledger, self)
        retry = self._retries.pop(bookie, None)
        if retry is not None and retry.timer is not None:
            retry.timer.cancel()
        self._owner.replica_failed(bookie, error)
        failed = {self._positions[one] for one in self.failed_replicas}
        if can_reach(failed, *self._quorums):
            self._release()
            return
        names = ", ".join(sorted(self.failed_replicas))
        quorum = self._quorums[2]
        lost = QuorumError(f"ledger {self.ledger} cannot reach its ack quorum of {quorum}: lost {names}; last: {error}")
        lost.__cause__ = error
        self.fail(lost)

    def _retry_later(self, bookie: BookieId, first: EntryId, count: int) -> None:
        low, high = self._settings.retry_backoff_s
        retry = self._retries.setdefault(bookie, _Retry())
        retry.refused.append((first, first + count))
        if retry.timer is None:
            retry.delay_s = min(retry.delay_s * 2, high) if retry.delay_s else low
            retry.timer = self._clock.call_later(retry.delay_s, lambda: self._send_again(bookie))

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
