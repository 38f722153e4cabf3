"""Stores copies of entries on one bookie: recovery adds, in batches, each awaited until durable. Implements `AddSink`.

The module does not depend on fragments. An entry counts as stored only after the bookie's own response. A lost
connection, a refusal or a timeout fails every batch under way. After ETOOMANYREQUESTS the writer waits and retries.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from quire_bookie.bulk import encode_copies, encode_stored
from quire_bookie.client.ledger_entry import LedgerEntry, StoredRun
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.dataclass import dataclass
from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import BookieUnavailableError, LedgerError, TooManyRequestsError
from quire_bookie.model import BookieId, Buffer, DigestType, EntryId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import v2_adds

_HEADER = v2.header_word(v2.ADD, v2.RECOVERY_ADD | v2.HIGH_PRIORITY).to_bytes(4, "big")


@dataclass(slots=True)
class _Batch:
    """Entries that were sent together, and which of them have no response yet.

    Responses nearly always arrive in order.
    """

    next: int
    """While `scattered` is None: the ids from here to `end` have no response; all ids before have one."""
    end: int
    scattered: set[int] | None
    """The ids without a response, once they are not one contiguous range."""
    frames: Callable[[Collection[int]], Buffer]
    """Encodes the adds of the given ids."""
    done: asyncio.Future[None]
    sent_s: float

    def stored(self, first: int, end: int) -> bool:
        """Note that these ids are stored and return whether the whole batch is.

        Ids may repeat or lie outside the batch.
        """
        if self.scattered is None:
            if first <= self.next:
                self.next = min(max(self.next, end), self.end)
                return self.next == self.end
            self.scattered = set(range(self.next, self.end))
        self.scattered.difference_update(range(max(first, self.next), min(end, self.end)))
        return not self.scattered

    def left(self, first: int, end: int) -> Collection[int]:
        """Return those of these ids that have no response yet, in ascending order."""
        if self.scattered is None:
            return range(max(first, self.next), min(end, self.end))
        return sorted(entry for entry in self.scattered if first <= entry < end)


class ReplicaWriter:
    """Writes one ledger's copies to one bookie. Used by one task per ledger; `close` it."""

    def __init__(self, handle: LedgerHandle, bookie: BookieId) -> None:
        self.bookie = bookie
        self._handle = handle
        self._link = handle.links.link(bookie, Purpose.RECOVERY)
        self._prefix = _HEADER + handle.master_key
        self._batches: list[_Batch] = []
        """Batches under way, in the order in which they were sent."""
        self._backoff = Backoff(handle.settings.retry_backoff_s)
        self._error: LedgerError | None = None

    async def store(self, entries: Sequence[LedgerEntry]) -> None:
        """Return when all entries, given in the order of their ids, are durable on the bookie, byte for byte as read.

        Raises LedgerError. A cancelled or failed call may have stored some entries.
        """
        if entries:
            by_id = {entry.entry_id: entry for entry in entries}
            await self._store(list(by_id), lambda ids: self._frames([by_id[EntryId(entry)] for entry in ids]))

    async def store_run(self, run: StoredRun) -> None:
        """Store a run of entries; see `store`."""

        def frames(ids: Collection[int]) -> bytes:
            entries = run.entries
            wanted = [*entries] if len(ids) == len(entries) else [entries[entry - run.first] for entry in ids]
            return encode_stored(self._prefix, wanted)

        await self._store(range(run.first, run.end), frames)

    async def _store(self, ids: Sequence[int], frames: Callable[[Collection[int]], Buffer]) -> None:
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        first, end = ids[0], ids[-1] + 1
        assert end - first >= len(ids), "ids ascend"
        scattered = None if end - first == len(ids) else set(ids)
        batch = _Batch(first, end, scattered, frames, loop.create_future(), loop.time())
        self._batches.append(batch)
        self._link.send_adds(self._handle.ledger, frames(ids), self)
        await batch.done

    def close(self) -> None:
        """Fail the batches under way and ignore later responses."""
        self._fail(BookieUnavailableError(f"the copy of ledger {self._handle.ledger} to {self.bookie} has ended"))

    # ---- called by the link
    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        """See AddSink."""
        self._backoff.reset()
        full = [batch for batch in self._batches if batch.stored(first, first + count)]
        for batch in full:
            self._batches.remove(batch)
            if not batch.done.done():
                batch.done.set_result(None)

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        """See AddSink."""
        if isinstance(error, TooManyRequestsError):
            self._handle.links.call_later(self._backoff.grow(), lambda: self._send_again(first, count))
        else:
            self._fail(error)

    def adds_answered(self) -> None:
        """See AddSink."""

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """See AddSink."""
        if self._batches:
            self._fail(error)

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        """See AddSink."""
        if not self._batches or now_s - self._batches[0].sent_s < self._handle.settings.add_timeout_s:
            return False
        self._fail(
            BookieUnavailableError(f"bookie {self.bookie} did not store copies of {self._handle.ledger} in time")
        )
        return True

    def owes(self, bookie: BookieId) -> bool:
        """See AddSink."""
        return bool(self._batches)

    def _frames(self, entries: list[LedgerEntry]) -> Buffer:
        """Encode the adds in one buffer, which the bookie handles in one step."""
        handle = self._handle
        ledger = handle.ledger
        if handle.digest.type is DigestType.CRC32C:
            return encode_copies(self._prefix, ledger, entries)
        encode = handle.digest.encode_entry
        stored = [
            (encode(ledger, entry.entry_id, entry.lac, entry.length, (entry.payload,)), entry.payload)
            for entry in entries
        ]
        return b"".join(v2_adds(handle.master_key, stored, recovery=True, high_priority=True))

    def _send_again(self, first: EntryId, count: int) -> None:
        if self._error is not None:
            return
        frames = [batch.frames(left) for batch in self._batches if (left := batch.left(first, first + count))]
        if frames:
            self._link.send_adds(self._handle.ledger, b"".join(frames), self)

    def _fail(self, error: LedgerError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._link.forget_sink(self._handle.ledger, self)
        batches, self._batches = self._batches, []
        for batch in batches:
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # retrieve the exception: a cancelled store does not await it
