"""Recovery: takes a ledger over from its writer and closes it at the end of the confirmed entries.

1. OPEN -> IN_RECOVERY by compare-and-set. Several clients may recover a ledger at once; all do the same.
2. Fence the bookies of the last segment and read their LAC, until it is covered.
3. Read forward, every read fencing, and re-add each entry found to its whole write set, up to the first entry that
   Qw-Qa+1 replicas lack. Nothing beyond that gap is kept.
   A bookie that fails during this step is replaced in memory only. Bookies that permanently lack entries, and slow
   bookies, are marked.
4. When all these entries are on Qa replicas again: IN_RECOVERY -> CLOSED by compare-and-set, with the segments of
   step 3.

After a failure or a cancellation the ledger remains IN_RECOVERY and the recovery can be repeated. Every entry that was
confirmed to a client is in the closed ledger. Re-added replicas differ from the original ones in LAC and digest; ids,
length and payload are equal.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from quire_bookie.client.entry_read import EntryRead
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.reading.lac_read import LacFound, read_lac
from quire_bookie.client.reading.moved_replicas import read_where_stored
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.client.writing.add_pipeline import AddPipeline
from quire_bookie.client.writing.closing import close_ledger, recovery_conflict
from quire_bookie.errors import BadVersionError, LedgerError, NoSuchEntryError
from quire_bookie.limits import KIB, RECOVERY_READS_FIRST, RECOVERY_SETTLE_S
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.ensemble_change import with_replacements
from quire_bookie.quorum.late_joiners import behind, late_joiners
from quire_bookie.quorum.recovery_plan import EntrySearch, Frontier
from quire_bookie.quorum.write_set import write_set
from quire_bookie.wire.client_codec import v2_adds

_log = logging.getLogger("quire.client.recovery")
_ATTEMPTS_MAX = 10
_EXPECTED_ENTRY_BYTES = 16 * KIB


async def recover_ledger(handle: LedgerHandle, stored: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
    """Recover the ledger with the metadata `stored`. Return the metadata of the closed ledger.

    QuorumError (retry when bookies are back), UnauthorizedError, NoSuchLedgerError (deleted meanwhile), MetadataError.
    """
    for _ in range(_ATTEMPTS_MAX):
        try:
            if stored.value.state is LedgerState.OPEN:
                claimed = replace(stored.value, state=LedgerState.IN_RECOVERY)
                stored = await handle.nodes.update(handle.ledger, claimed, stored.version)
            if stored.value.state is LedgerState.CLOSED:
                return stored
            last, length, tail = await _restore(handle, stored.value)
            closed = await close_ledger(handle.nodes, handle.ledger, stored, last, length, recovery_conflict, tail)
        except BadVersionError:
            # The writer closed it, or another client changed it: read the current metadata.
            stored = await handle.nodes.read(handle.ledger)
        else:
            _log.info("recovered ledger %d: closed at entry %d", handle.ledger, closed.value.last_entry)
            return closed
    raise BadVersionError(f"ledger {handle.ledger}: its metadata changed {_ATTEMPTS_MAX} times during recovery")


class _Restored(NamedTuple):
    """The end of the ledger, and its last segments if bookies were replaced."""

    last: EntryId
    length: int
    tail: Sequence[Segment] = ()


async def _restore(handle: LedgerHandle, metadata: LedgerMetadata) -> _Restored:
    """Fence, read forward, re-add."""
    found = await read_lac(handle.recovery_way, metadata)
    for bookie in late_joiners(metadata, found.lac):
        handle.marks.mark(handle.ledger, bookie)
    assert found.lac >= metadata.segments[-1].first_entry - 1, "earlier segments hold confirmed entries only"
    copying = _Copying(handle, metadata, found)
    copied = await copying.run()
    for bookie in behind(metadata, found.lac, found.last_held):
        handle.marks.mark(handle.ledger, bookie)
    if copied is not None:
        return copied
    # Nothing lies beyond the LAC. The length in the header that named it may belong to a later, lost entry.
    return _Restored(found.lac, await _length_at(handle, metadata, found.lac))


async def _length_at(handle: LedgerHandle, metadata: LedgerMetadata, entry: EntryId) -> int:
    if entry < 0:
        return 0
    reader = RangeReader(handle.read_way, handle.settings)
    found = await read_where_stored(handle, metadata, lambda known: reader.read(known, entry, entry, None))
    return found.entries[0].length


class _Copying:
    """Performs step 3: reads ahead, re-adds in order, ends at the first missing entry."""

    def __init__(self, handle: LedgerHandle, metadata: LedgerMetadata, found: LacFound) -> None:
        self._handle = handle
        self._metadata = metadata
        self._answered = found.answered
        self._first = EntryId(found.lac + 1)
        self._frontier: Frontier[LedgerEntry] = Frontier(self._first)
        self._expected_bytes = _EXPECTED_ENTRY_BYTES
        self._to_add: list[LedgerEntry] = []
        """Entries found in this loop iteration, to be re-added together at its end."""
        self._pipeline: AddPipeline | None = None
        self._replaced = metadata
        self._lost: set[BookieId] = set()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading_on = False
        self._settling: asyncio.TimerHandle | None = None
        self._waited = False
        """Whether the wait for replicas beyond the quorum is over."""

    async def run(self) -> _Restored | None:
        """Copy the entries. Return the end of the ledger, or None if there was nothing to copy."""
        try:
            self._read_on()
            await self._done
            pipeline = self._pipeline
            if pipeline is None:
                return None
            pipeline.stop(LedgerError(f"the recovery of ledger {self._handle.ledger} has ended"))
            lost = {one.bookie for one in pipeline.lost.values() if one.owed <= pipeline.confirmed}
            for bookie in sorted(lost | pipeline.owing):
                self._handle.marks.mark(self._handle.ledger, bookie)
            assert pipeline.confirmed >= self._first - 1, "a recovery never ends before the LAC that it found"
            # Only if bookies were replaced: otherwise keep segments that re-replication may have changed meanwhile.
            before = len(self._metadata.segments) - 1
            tail = () if self._replaced is self._metadata else self._replaced.segments[before:]
            return _Restored(pipeline.confirmed, pipeline.confirmed_length, tail)
        finally:
            if self._settling is not None:
                self._settling.cancel()
            if self._pipeline is not None and self._pipeline.error is None:
                self._pipeline.stop(LedgerError(f"the recovery of ledger {self._handle.ledger} has ended"))

    # ---- reading
    def _read_on(self) -> None:
        if self._reading_on or self._done.done():
            return
        # Unconfirmed re-adds use memory, so reading waits for them.
        pipeline = self._pipeline
        if pipeline is not None and pipeline.pending_bytes >= self._handle.settings.writer_pending_bytes_max:
            return
        self._reading_on = True
        metadata = self._metadata
        for entry in self._frontier.to_read(self._window()):
            search = EntrySearch(metadata.write_quorum, metadata.ack_quorum)
            EntryRead(self._handle.recovery_way, entry, self._replicas(entry), self._got, search=search).start()
        self._reading_on = False

    def _window(self) -> int:
        """Return the number of reads in flight: at most the entries used so far, as reads beyond the end are wasted."""
        settings = self._handle.settings
        by_use = max(RECOVERY_READS_FIRST, self._frontier.used)
        by_size = settings.read_window_bytes // self._expected_bytes
        return max(1, min(by_use, by_size, settings.recovery_reads_in_flight))

    def _replicas(self, entry: EntryId) -> list[BookieId]:
        """Return the replicas of `entry`, those that answered the fence first: a silent one costs a timeout each."""
        metadata = self._metadata
        ensemble = metadata.segments[-1].ensemble
        order = [ensemble[p] for p in write_set(entry, metadata.ensemble_size, metadata.write_quorum)]
        return sorted(order, key=lambda bookie: bookie not in self._answered)

    def _got(self, entry: EntryId, result: LedgerEntry | LedgerError) -> None:
        if self._done.done() or not self._frontier.matters(entry):
            return
        if isinstance(result, NoSuchEntryError):
            self._frontier.missing(entry)
        elif isinstance(result, LedgerError):
            self._finish(result)
            return
        else:
            self._expected_bytes = max(1, (self._expected_bytes * 3 + len(result.payload)) // 4)
            self._frontier.found(entry, result, self._add_again)
        self._check_done()
        self._read_on()

    # ---- re-adding
    def _add_again(self, entry: EntryId, found: LedgerEntry) -> None:
        if not self._to_add:
            asyncio.get_running_loop().call_soon(self._add_found)
        self._to_add.append(found)

    def _add_found(self) -> None:
        """Re-add the entries of one buffer of responses as one run."""
        handle, entries, self._to_add = self._handle, self._to_add, []
        if self._done.done():
            return
        if self._pipeline is None:
            self._pipeline = AddPipeline(
                handle.ledger,
                self._metadata,
                self._first,
                entries[0].length - len(entries[0].payload),
                links=handle.links,
                purpose=Purpose.RECOVERY,
                settings=handle.settings,
                owner=self,
            )
        if self._pipeline.error is not None:
            return
        assert entries[0].entry_id == self._pipeline.pushed + 1, "entries are added again without a gap"
        assert entries[-1].entry_id - entries[0].entry_id + 1 == len(entries), "a run is contiguous"
        # The LAC that was found, without later re-adds: a re-add must not confirm other re-adds. Another recovery may
        # have closed the ledger before these entries (model: "re-adds vouch for re-adds").
        lac = EntryId(self._first - 1)
        encode = handle.digest.encode_entry
        stored = [
            (encode(handle.ledger, one.entry_id, lac, one.length, (one.payload,)), one.payload) for one in entries
        ]
        frames = v2_adds(handle.master_key, stored, recovery=True, high_priority=True)
        self._pipeline.push(b"".join(frames), len(entries), entries[-1].length)

    def _check_done(self) -> None:
        pipeline = self._pipeline
        copied = self._frontier.last_used if pipeline is None else pipeline.confirmed
        if not self._frontier.is_done or self._to_add or copied != self._frontier.last_used:
            return
        if pipeline is not None and not pipeline.is_settled:
            if self._replaced is not self._metadata:
                return  # the metadata will contain a bookie that has none of these entries yet
            if not self._waited:
                if self._settling is None:
                    self._settling = self._handle.links.call_later(RECOVERY_SETTLE_S, self._settled_late)
                return
        self._finish(None)

    def _settled_late(self) -> None:
        self._waited = True
        self._check_done()

    def _finish(self, error: LedgerError | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    # ---- called by the pipeline
    def adds_confirmed(self, up_to: EntryId) -> None:
        """See PipelineOwner."""
        self._check_done()

    def adds_failed(self, error: LedgerError) -> None:
        """See PipelineOwner."""
        self._finish(error)

    def replica_failed(self, bookie: BookieId, error: LedgerError) -> bool:
        """See PipelineOwner. Without a replacement the ledger is closed with one replica less, if Qa are reached.

        The change is only in memory, so it takes effect at once: no other client uses it until the ledger is closed,
        and a repeated recovery finds every entry where this one found it.
        """
        handle, pipeline = self._handle, self._pipeline
        _log.warning("recovering ledger %d without bookie %s: %s", handle.ledger, bookie, error)
        handle.links.note_failure(bookie)
        assert pipeline is not None
        self._lost.add(bookie)
        write_quorum = self._metadata.write_quorum
        plan = handle.bookies.replacements(pipeline.ensemble, pipeline.lost.keys(), self._lost, write_quorum)
        if plan:
            start = pipeline.vacate(plan.keys())
            self._replaced = with_replacements(self._replaced, start, plan)
            for lost in pipeline.fill(plan, start).values():
                if lost.owed < start:
                    handle.marks.mark(handle.ledger, lost.bookie)
        self._check_done()
        return False

    def adds_released(self) -> None:
        """See PipelineOwner."""
        self._check_done()
        self._read_on()
