"""The writer of a ledger: turns payloads into entries, reports confirmed entries to its listener, closes the ledger.

Never acknowledges an entry with fewer than Qa durable replicas, and nothing at all after it failed. Adds are pipelined:
`submit` is synchronous and returns at once. The caller bounds memory by not submitting while `is_writable` is False;
`append` waits by itself.

A bookie that fails or falls behind is replaced while writing continues (`ensemble_changes`). After a close the writer
remains until the last replica has acknowledged what it was sent, or is marked as lacking it.

After a cancellation of `append`, its entry may still become part of the ledger. After a cancellation of `close`, it is
unknown whether the ledger is closed: call it again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.reading.moved_replicas import read_where_stored
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.client.writing.add_frames import AddFrames
from quire_bookie.client.writing.add_pipeline import AddPipeline
from quire_bookie.client.writing.closing import close_ledger, writer_conflict
from quire_bookie.client.writing.ensemble_changes import EnsembleChanges
from quire_bookie.client.writing.explicit_lac import ExplicitLacs
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerClosedError, LedgerError, LedgerFencedError, NoSuchEntryError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import Check, Versioned
from quire_bookie.model import (
    ENTRY_HEADER_BYTES,
    NO_ENTRY,
    BookieId,
    Buffer,
    EntryId,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    ReplicaState,
)

_ADD_FRAME_OVERHEAD_BYTES = 4 + 4 + 20 + ENTRY_HEADER_BYTES
_BATCH_ANSWER_OVERHEAD_BYTES = 64  # an entry must also fit the response to a read


class WriterState(Enum):
    """Lifecycle state of a writer."""

    OPEN = "accepts entries"
    CLOSING = "waits for the submitted entries"
    CLOSED = "the ledger is closed at last_add_confirmed"
    FENCED = "another client took the ledger over"
    FAILED = "the ack quorum is lost; close still closes the ledger at last_add_confirmed"


class WriterListener(Protocol):
    """Receives progress callbacks, on the event loop and never from within `submit`."""

    def on_confirmed(self, up_to: EntryId) -> None:
        """Every entry up to `up_to` is durable on Qa replicas. Called in order, once for each advance."""
        ...

    def on_failed(self, error: LedgerError) -> None:
        """Entries above `last_add_confirmed` will not be acknowledged. Called at most once."""
        ...


@dataclass(slots=True)
class WriterStats:
    """Counters of one writer."""

    entries: int = 0
    payload_bytes: int = 0
    runs: int = 0
    replicas_failed: int = 0


class LedgerWriter:
    """Writes one ledger. Created by `LedgerClient.create_ledger`.

    `async with` closes the ledger at the end, and after an exception if possible. After a cancellation it abandons it.
    """

    PURPOSE = Purpose.ADD
    PIPELINE = AddPipeline

    def __init__(
        self,
        handle: LedgerHandle,
        stored: Versioned[LedgerMetadata],
        on_finished: "Callable[[LedgerWriter], None]",
    ) -> None:
        """`on_finished` is called when the writer no longer uses any connection."""
        self.listener: WriterListener | None = None
        self.on_drained: Callable[[], None] | None = None
        """Called when the writer becomes writable again."""
        self.on_degraded: Callable[[BookieId, LedgerError], None] | None = None
        """Called when a replica is lost; entries that it has not acknowledged have one replica less."""
        self.on_beyond_repair: Callable[[], None] | None = None
        """Called when `is_beyond_repair` became true, maybe several times."""
        self.stats = WriterStats()
        self._on_finished = on_finished
        self._handle = handle
        self._state = WriterState.OPEN
        self._length = 0
        self._writable = True
        self._waiting: deque[tuple[EntryId, asyncio.Future[None]]] = deque()
        self._blocked: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._closing = asyncio.Lock()
        self._reader = RangeReader(handle.read_way, handle.settings)
        self._payload_bytes_max = (
            handle.settings.frame_bytes_max
            - _ADD_FRAME_OVERHEAD_BYTES
            - handle.digest.size
            - _BATCH_ANSWER_OVERHEAD_BYTES
        )
        self._pending_bytes_max = handle.settings.writer_pending_bytes_max
        self._frames = AddFrames(handle.ledger, handle.digest, handle.master_key, self._payload_bytes_max)
        self._pipeline = self.PIPELINE(
            handle.ledger,
            stored.value,
            EntryId(0),
            0,
            links=handle.links,
            purpose=self.PURPOSE,
            settings=handle.settings,
            owner=self,
        )
        self._changes = EnsembleChanges(handle, self._pipeline, stored)
        self._changes.on_ended = self._report_if_beyond_repair
        interval_s = handle.settings.explicit_lac_interval_s
        self._lacs = ExplicitLacs(handle.ledger, handle.digest, handle.master_key, handle.links, self, interval_s)
        self._finished = False
        self._lost_ownership = False
        """Whether another client took the ledger over by changing its metadata."""

    # ---- properties
    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._handle.ledger

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as last read or written by this writer."""
        return self._changes.stored.value

    @property
    def metadata_check(self) -> Check:
        """The check of a transaction that the ledger exists and no other client changed its metadata."""
        return Check(layout.ledger_path(self.ledger_id), self._changes.stored.version)

    @property
    def state(self) -> WriterState:
        """The state of the writer."""
        return self._state

    @property
    def error(self) -> LedgerError | None:
        """The reason if the writer is FENCED or FAILED."""
        return self._pipeline.error

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that, with all entries before it, is durable on Qa replicas."""
        return self._pipeline.confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry submitted."""
        return self._pipeline.pushed

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies of new entries."""
        return self._pipeline.ensemble

    @property
    def ack_quorum(self) -> int:
        """The number of replicas that an entry needs to be confirmed."""
        return self.metadata.ack_quorum

    @property
    def length(self) -> int:
        """Payload bytes of all entries submitted."""
        return self._length

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload of one entry."""
        return self._payload_bytes_max

    @property
    def pending_bytes(self) -> int:
        """Bytes sent and not yet acknowledged by every living replica."""
        return self._pipeline.pending_bytes

    @property
    def is_writable(self) -> bool:
        """False while more bytes are pending than the settings allow; `on_drained` is called afterwards."""
        return self._writable

    @property
    def degraded(self) -> bool:
        """Whether new entries lack a replica. Writing continues, and a bookie is added when one is available."""
        return bool(self._pipeline.failed_replicas)

    @property
    def is_beyond_repair(self) -> bool:
        """Whether a replica is missing that this ledger will not replace; a new ledger would have all replicas."""
        return bool(self._pipeline.lost) and self._changes.is_hopeless

    @property
    def failed_replicas(self) -> dict[BookieId, LedgerError]:
        """The bookies that were lost and are not replaced yet, with the reasons."""
        return self._pipeline.failed_replicas

    @property
    def ensemble_changes(self) -> int:
        """The number of ensemble changes by this writer."""
        return self._changes.changes

    def replica_states(self, entry: EntryId) -> dict[BookieId, ReplicaState]:
        """Return how far each bookie of the entry's write set is. Only while the listener learns of the entry."""
        return self._pipeline.replica_states(entry)

    def watch_answers(self, on_stored: Callable[[BookieId, int, int], None] | None) -> None:
        """Call `on_stored` with bookie, first entry and count when entries are stored at a bookie; None ends it."""
        self._pipeline.on_stored = on_stored

    # ---- appending
    def submit(self, payloads: Sequence[Buffer | tuple[Buffer, ...]]) -> EntryId:
        """Send entries with consecutive ids. Return the id of the first. A payload may be a tuple of parts.

        The buffers are copied before this returns. Sends nothing and raises LedgerFencedError, LedgerClosedError, the
        error of a failed writer, or LedgerError for a payload above `payload_bytes_max` or without any payload.
        """
        if self._state is not WriterState.OPEN:
            self._check_open()
        count = len(payloads)
        if not count:
            raise LedgerError("no entries to submit")
        pipeline, former_length = self._pipeline, self._length
        first: EntryId = pipeline.pushed + 1  # type: ignore[assignment]  # no call of EntryId: this is the hot path
        frames, length = self._frames.encode(first, pipeline.confirmed, former_length, payloads)
        self._length = length
        stats = self.stats
        stats.entries += count
        stats.payload_bytes += length - former_length
        stats.runs += 1
        pipeline.push(frames, count, length)
        if pipeline.pending_bytes >= self._pending_bytes_max:
            self._writable = False
        return first

    async def append(self, payload: Buffer | tuple[Buffer, ...]) -> EntryId:
        """Submit one entry as soon as the writer is writable, and wait until it is confirmed. Errors as `submit`."""
        loop = asyncio.get_running_loop()
        while not self._writable and self._state is WriterState.OPEN:
            blocked = loop.create_future()
            self._blocked.append(blocked)
            await blocked
        entry = self.submit((payload,))
        confirmed = loop.create_future()
        self._waiting.append((entry, confirmed))
        await confirmed
        return entry

    async def force(self) -> EntryId:
        """Wait until all submitted entries are durable on Qa replicas. Return the last such entry.

        In a ledger without deferred sync, confirmed entries are durable. Raises the error of a failed writer.
        """
        target = self.last_add_pushed
        if self.last_add_confirmed < target:
            if self._pipeline.error is not None:
                raise self._pipeline.error
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((target, confirmed))
            await confirmed
        return self.last_add_confirmed

    async def tell_lac(self) -> EntryId:
        """Send the LAC to the bookies, as readers otherwise find it only in the next entry. QuorumError."""
        self._check_open()
        return await self._lacs.publish()

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[LedgerEntry]:
        """Read confirmed entries; see `LedgerReader.read`."""
        if not 0 <= first <= last or last > self.last_add_confirmed:
            raise NoSuchEntryError(
                f"entries {first} to {last} of ledger {self.ledger_id}: confirmed up to {self.last_add_confirmed}"
            )
        followed = await read_where_stored(
            self._handle, self.metadata, lambda metadata: self._reader.read(metadata, first, last, bytes_max)
        )
        return followed.entries

    # ---- closing
    async def close(self, transact: Transact | None = None) -> LedgerMetadata:
        """Wait for the submitted entries, then close the ledger at the last confirmed entry. Return its metadata.

        `transact`: writes the metadata, perhaps together with nodes of other callers.
        A FAILED writer also closes its ledger, without the unconfirmed entries. So does a FENCED writer without
        confirmed entries if no other client changed the metadata: it was not fenced by a recovery, but by a bookie that
        holds another ledger with the same id. Closing twice is harmless.
        LedgerFencedError, LedgerClosedError (another client closed it at another entry), MetadataUnavailableError and
        MetadataUnknownError (close again).
        """
        if self._state is WriterState.OPEN:
            self._state = WriterState.CLOSING
        async with self._closing:
            if self._state is WriterState.CLOSING and self.last_add_confirmed < self.last_add_pushed:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            if self._state is WriterState.CLOSED:
                return self.metadata
            if self._state is WriterState.FENCED and (self._lost_ownership or not self._is_empty_and_open):
                raise LedgerFencedError(f"ledger {self.ledger_id} was taken over by another client")
            # Nothing is pushed any more, so nothing further is confirmed, and the metadata will contain the end.
            # Appends may be blocked by a slow replica: they are refused now.
            self._wake_blocked()
            changes = self._changes
            await changes.stop()
            try:
                changes.stored = await close_ledger(
                    self._handle.nodes,
                    self.ledger_id,
                    changes.stored,
                    *self._end_point(),
                    partial(writer_conflict, unsettled=changes.unsettled),
                    transact=transact,
                )
            except (LedgerFencedError, LedgerClosedError):
                self._state = WriterState.FENCED
                self._lost_ownership = True
                self._finish()
                raise
            self._state = WriterState.CLOSED
            self._length = self.metadata.length
            if self._finished:
                changes.closed_at(self.metadata)
            else:
                self._end_when_settled()
            return self.metadata

    async def __aenter__(self) -> Self:
        """Return the writer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close or abandon the writer; see the class."""
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            with contextlib.suppress(QuireError):  # the first error is more informative
                await self.close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Drop all adds in flight and leave the ledger open, as a crash would; a recovery can close it.

        If the ledger is closed, stop waiting for the last replicas.
        """
        if self._state in (WriterState.OPEN, WriterState.CLOSING):
            self._pipeline.fail(LedgerClosedError(f"the writer of ledger {self.ledger_id} was abandoned"))
        elif not self._finished:
            self._finish()

    def bookies_changed(self) -> None:
        """Consider ensemble changes again, because the set of writable bookies changed."""
        self._changes.bookies_changed()

    def _end_point(self) -> tuple[EntryId, int]:
        """Return the last entry of the ledger if it is closed now, and its length."""
        return self._pipeline.confirmed, self._pipeline.confirmed_length

    @property
    def _is_empty_and_open(self) -> bool:
        return self._pipeline.confirmed == NO_ENTRY and self.metadata.state is LedgerState.OPEN

    def _check_open(self) -> None:
        if self._state is WriterState.OPEN:
            return
        if self._pipeline.error is not None:
            raise self._pipeline.error
        raise LedgerClosedError(f"ledger {self.ledger_id} is closed or closing")

    # ---- called by the pipeline
    def adds_confirmed(self, up_to: EntryId) -> None:
        """See PipelineOwner."""
        assert self._state is not WriterState.CLOSED, "a ledger is closed at its last confirmed entry"
        waiting = self._waiting
        while waiting and waiting[0][0] <= up_to:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)
        if self.listener is not None:
            self.listener.on_confirmed(up_to)
        if self._pipeline.lost:
            self._changes.confirmed(up_to)
        if self._idle is not None and up_to == self.last_add_pushed:
            self._set_idle()

    def adds_failed(self, error: LedgerError) -> None:
        """See PipelineOwner."""
        if self._state is WriterState.CLOSED:
            self._finish()  # only the last replica failed: everything was confirmed
            return
        self._state = WriterState.FENCED if isinstance(error, LedgerFencedError) else WriterState.FAILED
        self._changes.abort()
        self._finish()
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
        self._set_idle()
        self._wake_blocked()
        if self.listener is not None:
            self.listener.on_failed(error)

    def replica_failed(self, bookie: BookieId, error: LedgerError) -> bool:
        """See PipelineOwner."""
        self.stats.replicas_failed += 1
        self._handle.links.note_failure(bookie)
        if self._state is WriterState.CLOSED:
            self._end_when_settled()
            return True
        replaceable = self._changes.replica_failed(bookie, error)
        self._report_lost(bookie, error)
        return replaceable

    def _report_lost(self, bookie: BookieId, error: LedgerError) -> None:
        if self.on_degraded is not None:
            self.on_degraded(bookie, error)
        self._report_if_beyond_repair()

    def _report_if_beyond_repair(self) -> None:
        if self.on_beyond_repair is not None and self.is_beyond_repair:
            self.on_beyond_repair()

    def adds_released(self) -> None:
        """See PipelineOwner."""
        if self._state is WriterState.CLOSED:
            self._end_when_settled()
            return
        if self._writable or self.pending_bytes > self._handle.settings.writer_pending_bytes_max // 2:
            return
        self._writable = True
        self._wake_blocked()
        if self.on_drained is not None:
            self.on_drained()

    def _end_when_settled(self) -> None:
        """Finish the closed writer if all replicas have acknowledged what they were sent."""
        if not self._finished and (self._pipeline.error is not None or self._pipeline.is_settled):
            self._finish()

    def _finish(self) -> None:
        """Release the connections and report the end of the writer, once."""
        if self._finished:
            return
        self._finished = True
        self._lacs.stop()
        if self._pipeline.error is None:
            self._pipeline.stop(LedgerClosedError(f"ledger {self.ledger_id} is closed"))
        if self._state is WriterState.CLOSED:
            self._changes.closed_at(self.metadata)
        self._on_finished(self)

    def _set_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _wake_blocked(self) -> None:
        blocked, self._blocked = self._blocked, deque()
        for future in blocked:
            if not future.done():
                future.set_result(None)
