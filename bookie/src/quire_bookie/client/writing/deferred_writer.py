"""The writer of a ledger with deferred sync: entries are acknowledged first and become durable with a `force`.

Owns the meaning of "confirmed" for such a ledger: Qa bookies of an entry's write set have acknowledged it *and*
answered a force that was sent after their acknowledgement. The LAC, which readers and recoveries use, advances only
with forces. A bookie whose connection breaks between the two may have lost entries that it acknowledged, so the writer
gives it up. It is not replaced, because the bytes that a late joiner would need are not kept; writing continues as long
as Qa bookies can be reached.

After a cancellation of `force`, it is unknown how much became durable: force again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.writing.add_frames import AddFrames
from quire_bookie.client.writing.add_pipeline import AddPipeline
from quire_bookie.client.writing.ledger_writer import LedgerWriter, WriterState
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.limits import DEFERRED_CLOSE_WAIT_S
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import NO_ENTRY, BookieId, Buffer, EntryId, LedgerMetadata
from quire_bookie.quorum.ack_tracker import ack_tracker
from quire_bookie.wire.client_codec import v3_force
from quire_bookie.wire.messages import Response, Status, error_of


class _DeferredPipeline(AddPipeline):
    """An add pipeline whose acknowledgements may be lost until a force."""

    on_link_lost: Callable[[BookieId, LedgerError], None] | None = None
    on_answered: Callable[[], None] | None = None

    def adds_answered(self) -> None:
        """See AddSink."""
        super().adds_answered()
        if self.error is None and self.on_answered is not None:
            self.on_answered()

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """See AddSink. Acknowledged entries may be lost as well."""
        super().link_lost(bookie, error)
        if self.error is None and bookie in self._living and self.on_link_lost is not None:
            self.on_link_lost(bookie, error)

    def first_unanswered(self, position: int) -> EntryId:
        """Return the first entry of the position that is not acknowledged."""
        return self._tracker.first_unanswered(position)

    def drop(self, bookie: BookieId, error: LedgerError) -> None:
        """Give up the bookie."""
        if self.error is None and bookie in self._living:
            self._fail_replica(bookie, error)


class DeferredSyncWriter(LedgerWriter):
    """Writes a ledger with deferred sync. Created by `LedgerClient.create_ledger(deferred_sync=True)`."""

    PURPOSE = Purpose.DEFERRED_ADD
    PIPELINE = _DeferredPipeline
    _pipeline: _DeferredPipeline

    def __init__(
        self,
        handle: LedgerHandle,
        stored: Versioned[LedgerMetadata],
        on_finished: "Callable[[LedgerWriter], None]",
    ) -> None:
        super().__init__(handle, stored, on_finished)
        metadata = stored.value
        self._lac = NO_ENTRY
        self._lac_length = 0
        self._lengths: deque[int] = deque()
        """The ledger's length at each entry above the LAC."""
        self._bookies = metadata.segments[-1].ensemble
        self._durable = ack_tracker(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum, EntryId(0))
        self._forced_end = [0] * metadata.ensemble_size
        """By position: the first entry not covered by an answered force."""
        self._asked_end = [0] * metadata.ensemble_size
        """By position: the first entry not covered by a force that was sent."""
        self._target = NO_ENTRY
        """The last entry to be made durable."""
        self._moved = asyncio.Event()
        self._frames = _ForcedLacFrames(self._frames, self)
        self._pipeline.on_link_lost = self._link_lost
        self._pipeline.on_answered = self._ask_for_forces

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that, with all entries before it, was made durable on Qa replicas by a force."""
        return self._lac

    @property
    def is_beyond_repair(self) -> bool:
        """See LedgerWriter. Lost replicas are never replaced."""
        return self.degraded

    def submit(self, payloads: Sequence[Buffer | tuple[Buffer, ...]]) -> EntryId:
        """See LedgerWriter."""
        length = self.length
        first = super().submit(payloads)
        self._durable.push(len(payloads))
        for payload in payloads:
            length += sum(map(len, payload)) if isinstance(payload, tuple) else len(payload)
            self._lengths.append(length)
        return first

    async def force(self) -> EntryId:
        """Make all submitted entries durable. Return the last durable entry, which is at least the last submitted one.

        Raises the error of a failed writer; entries that were not durable by then may or may not be in the ledger.
        """
        target = self._target = self.last_add_pushed
        await self._force_until(lambda: self._lac >= target)
        if self._lac < target and self._pipeline.error is not None:
            raise self._pipeline.error
        return self._lac

    async def close(self, transact: Transact | None = None) -> LedgerMetadata:
        """Force, then close the ledger at the last durable entry. Otherwise as LedgerWriter."""
        if self._state is WriterState.OPEN:
            self._state = WriterState.CLOSING
        if self._state is WriterState.CLOSING:
            try:
                await self.force()
                await self._force_the_last()
            except LedgerError:
                if self._state is WriterState.CLOSING:
                    raise
        was_closed = self._state is WriterState.CLOSED
        metadata = await super().close(transact)
        for position, bookie in enumerate(self._bookies):
            if not was_closed and self._forced_end[position] <= metadata.last_entry:
                self._handle.marks.mark(self.ledger_id, bookie)
        return metadata

    def bookies_changed(self) -> None:
        """See LedgerWriter. Does nothing, because lost replicas are not replaced."""

    # ---- called by the pipeline
    def adds_confirmed(self, up_to: EntryId) -> None:
        """See PipelineOwner. The entries are only acknowledged; the listener is called after a force."""
        listener, self.listener = self.listener, None
        super().adds_confirmed(up_to)
        self.listener = listener

    def adds_failed(self, error: LedgerError) -> None:
        """See PipelineOwner."""
        super().adds_failed(error)
        self._moved.set()

    def replica_failed(self, bookie: BookieId, error: LedgerError) -> bool:
        """See PipelineOwner."""
        self.stats.replicas_failed += 1
        self._handle.links.note_failure(bookie)
        self._durable.fail(self._bookies.index(bookie))
        self._moved.set()
        if self._state is WriterState.CLOSED:
            self._end_when_settled()
            return False
        self._report_lost(bookie, error)
        return False

    # ---- inside
    def _end_point(self) -> tuple[EntryId, int]:
        return self._lac, self._lac_length

    def _link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        position = self._bookies.index(bookie)
        if self._pipeline.first_unanswered(position) > self._durable.first_unanswered(position):
            text = f"bookie {bookie} may have lost acknowledged entries of ledger {self.ledger_id}: {error}"
            self._pipeline.drop(bookie, BookieUnavailableError(text))

    async def _force_the_last(self) -> None:
        """Wait briefly for the replicas beyond Qa to be durable as well; the others are marked later."""
        with_all = self.last_add_pushed

        def all_durable() -> bool:
            return all(
                self._forced_end[position] > with_all
                for position, bookie in enumerate(self._bookies)
                if bookie not in self._pipeline.failed_replicas
            )

        try:
            async with asyncio.timeout(DEFERRED_CLOSE_WAIT_S):
                await self._force_until(all_durable)
        except TimeoutError:
            return

    async def _force_until(self, reached: Callable[[], bool]) -> None:
        """Force acknowledged entries up to the target and wait until `reached`, or until the writer failed."""
        while not reached() and self._pipeline.error is None:
            self._ask_for_forces()
            self._moved.clear()
            await self._moved.wait()

    def _ask_for_forces(self) -> None:
        """Send one force to each bookie that has acknowledged everything up to the target, including late ones.

        The pipeline gives up bookies that do not acknowledge in time; those whose force fails are given up, too.
        """
        for position, bookie in enumerate(self._bookies):
            if self._asked_end[position] > self._target:
                continue
            end = self._pipeline.first_unanswered(position)
            if end > self._target and bookie not in self._pipeline.failed_replicas:
                self._asked_end[position] = end
                link = self._handle.links.v3_link(bookie, Purpose.DEFERRED_ADD)
                link.ask(partial(v3_force, ledger=self.ledger_id), partial(self._forced, position, end))

    def _forced(self, position: int, end: EntryId, answer: Response | LedgerError) -> None:
        bookie = self._bookies[position]
        if isinstance(answer, LedgerError) or answer.status is not Status.OK:
            error = answer if isinstance(answer, LedgerError) else error_of(answer.status, f"force at bookie {bookie}")
            self._pipeline.drop(bookie, error)
        elif bookie not in self._pipeline.failed_replicas:
            start = self._forced_end[position]
            if end > start:
                assert end <= self._asked_end[position], "a force covers only what was acknowledged before it was sent"
                self._forced_end[position] = end
                self._durable.acked(EntryId(start), end - start, position)
                self._advance()
        self._moved.set()

    def _advance(self) -> None:
        lac = self._durable.confirmed
        if lac <= self._lac or self._pipeline.error is not None:
            return
        assert len(self._lengths) == self._durable.pushed - self._lac, "each entry above the LAC has a length"
        for _ in range(lac - self._lac):
            self._lac_length = self._lengths.popleft()
        self._lac = lac
        if self.listener is not None:
            self.listener.on_confirmed(lac)


class _ForcedLacFrames(AddFrames):
    """Builds frames that carry the forced LAC instead of the last acknowledged entry."""

    __slots__ = ("_frames", "_writer")

    def __init__(self, frames: AddFrames, writer: DeferredSyncWriter) -> None:
        self._frames = frames
        self._writer = writer

    def encode(
        self, first: EntryId, lac: EntryId, length: int, payloads: Sequence[Buffer | tuple[Buffer, ...]]
    ) -> tuple[bytes, int]:
        """See AddFrames."""
        return self._frames.encode(first, self._writer.last_add_confirmed, length, payloads)
