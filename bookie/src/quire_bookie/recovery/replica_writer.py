"""Stores copies of entries on one bookie: recovery adds, in batches, each awaited until durable. Implements `AddSink`.

Knows nothing of fragments. An entry counts as stored only by the bookie's own answer; a lost connection, a refusal or
silence fails every batch under way. ETOOMANYREQUESTS is waited out.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from quire_bookie.bulk import encode_copies
from quire_bookie.client.bookie_link import Purpose
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.errors import BookieUnavailableError, LedgerError, TooManyRequestsError
from quire_bookie.model import BookieId, DigestType, EntryId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import v2_adds

_HEADER = v2.header_word(v2.ADD, v2.RECOVERY_ADD | v2.HIGH_PRIORITY).to_bytes(4, "big")


@dataclass(slots=True)
class _Batch:
    entries: Sequence[LedgerEntry]
    left: int
    done: asyncio.Future[None]
    sent_s: float


class ReplicaWriter:
    """One ledger's copies on one bookie. Used by one task per ledger; `close` it."""

    def __init__(self, handle: LedgerHandle, bookie: BookieId) -> None:
        self.bookie = bookie
        self._handle = handle
        self._link = handle.links.link(bookie, Purpose.RECOVERY)
        self._pending: dict[int, _Batch] = {}
        """By entry; those of a batch share it."""
        self._delay_s = 0.0
        self._error: LedgerError | None = None

    async def store(self, entries: Sequence[LedgerEntry]) -> None:
        """Return when all of them are durable there, byte for byte as they were read. LedgerError.

        A cancelled or failed call may have stored some.
        """
        if self._error is not None:
            raise self._error
        if not entries:
            return
        loop = asyncio.get_running_loop()
        batch = _Batch(entries, len(entries), loop.create_future(), loop.time())
        for entry in entries:
            self._pending[entry.entry_id] = batch
        self._send(entries)
        await batch.done

    def close(self) -> None:
        """Take no more answers."""
        self._fail(BookieUnavailableError(f"the copy of ledger {self._handle.ledger} to {self.bookie} has ended"))

    # ---- called by the link
    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        """See AddSink."""
        self._delay_s = 0.0
        for entry in range(first, first + count):
            batch = self._pending.pop(entry, None)
            if batch is not None:
                batch.left -= 1
                if batch.left == 0 and not batch.done.done():
                    batch.done.set_result(None)

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        """See AddSink."""
        if isinstance(error, TooManyRequestsError):
            low, high = self._handle.settings.retry_backoff_s
            self._delay_s = min(max(low, self._delay_s * 2), high)
            self._handle.links.call_later(self._delay_s, lambda: self._send_again(first, count))
        else:
            self._fail(error)

    def adds_answered(self) -> None:
        """See AddSink."""

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """See AddSink."""
        if self._pending:
            self._fail(error)

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        """See AddSink."""
        if not self._pending:
            return False
        batch = next(iter(self._pending.values()))
        if now_s - batch.sent_s < self._handle.settings.add_timeout_s:
            return False
        self._fail(
            BookieUnavailableError(f"bookie {self.bookie} did not store copies of {self._handle.ledger} in time")
        )
        return True

    def _send(self, entries: Sequence[LedgerEntry]) -> None:
        """In one buffer, as the bookie takes it in one step."""
        handle = self._handle
        ledger = handle.ledger
        if handle.digest.type is DigestType.CRC32C:
            frames = encode_copies(_HEADER + handle.master_key, ledger, list(entries))
        else:
            encode = handle.digest.encode_entry
            stored = [
                (encode(ledger, entry.entry_id, entry.lac, entry.length, (entry.payload,)), entry.payload)
                for entry in entries
            ]
            frames = b"".join(v2_adds(handle.master_key, stored, recovery=True, high_priority=True))
        self._link.send_adds(ledger, frames, self)

    def _send_again(self, first: EntryId, count: int) -> None:
        refused = range(first, first + count)
        batches = {id(batch): batch for entry in refused if (batch := self._pending.get(entry)) is not None}
        entries = [
            entry
            for batch in batches.values()
            for entry in batch.entries
            if entry.entry_id in refused and self._pending.get(entry.entry_id) is batch
        ]
        if self._error is None and entries:
            self._send(entries)

    def _fail(self, error: LedgerError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._link.forget_sink(self._handle.ledger, self)
        pending, self._pending = self._pending, {}
        for batch in pending.values():
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # a store that was cancelled awaits it no more
