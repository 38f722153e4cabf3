"""What a read is answered with: entries, LACs, lists of entries, and the status of each failure.

Owns the rules of READ, BATCH_READ, READ_LAC, GET_LIST_OF_ENTRIES and of a long poll that came to its end. Never decides
when a read is worked on, and never writes anything.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire_bookie.errors import (
    DamagedError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    UnknownLedgerStateError,
)
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.server.ports import StoragePort
from quire_bookie.server.settings import ServiceSettings
from quire_bookie.storage.ledger_states import LedgerInfo
from quire_bookie.wire import availability, server_codec, server_v3
from quire_bookie.wire.messages import (
    BatchReadRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Status,
    V3Origin,
)
from quire_bookie.wire.status import status_of

_log = logging.getLogger("quire.server.reads")
_LIST_FRAME_BYTES = 64
"""More than a list's frame has beside the list."""

_LAST_ID = EntryId((1 << 63) - 1)


@dataclass(slots=True)
class EndedPoll:
    """A long poll whose LAC moved, whose time is over, or whose ledger was fenced or deleted.

    `update_ms` (since the epoch): when the update came that woke it; None when it was not parked or nothing came.
    """

    request: ReadRequest
    update_ms: int | None = None


AnyRead: TypeAlias = ReadRequest | BatchReadRequest | ReadLacRequest | ListEntriesRequest | EndedPoll


@dataclass(slots=True)
class Answer:
    """Buffers to write one after the other; `entry_bytes` of them are entries."""

    status: Status
    buffers: Sequence[Buffer]
    entry_bytes: int = 0


class ReadAnswers:
    """Reads storage and encodes."""

    def __init__(self, storage: StoragePort, settings: ServiceSettings) -> None:
        self._storage = storage
        self._settings = settings

    async def answer(self, request: AnyRead) -> Answer:
        """The answer to any read. Never raises: what fails is answered with the status of its error."""
        try:
            match request:
                case ReadRequest():
                    return await self._read(request)
                case BatchReadRequest():
                    return await self._read_batch(request)
                case ReadLacRequest():
                    return await self._read_lac(request)
                case ListEntriesRequest():
                    return await self._list(request)
                case EndedPoll():
                    return await self._poll(request)
        except (LedgerError, StorageError, OSError) as error:
            status = status_of(error)
            if status is Status.IO_ERROR:
                _log.error("a read failed: %s", error)
            return self.refusal(request, status)
        except Exception as error:  # noqa: BLE001 - a read's root: its client gets an answer and the others go on
            _log.exception("a read failed: %s", error)
            return self.refusal(request, Status.IO_ERROR)

    def refusal(self, request: AnyRead, status: Status) -> Answer:
        """An answer without data."""
        match request:
            case ReadRequest():
                return Answer(status, server_codec.encode_read(request, status))
            case BatchReadRequest():
                return Answer(status, server_codec.encode_batch(request, status))
            case EndedPoll():
                return Answer(status, server_codec.encode_read(request.request, status))
            case ReadLacRequest() | ListEntriesRequest():
                return Answer(status, (server_v3.encode_ledger_status(request.origin, request.ledger, status),))

    # ---- in this very step, from memory
    def from_memory(self, request: ReadRequest | ReadLacRequest | EndedPoll) -> Answer | None:
        """What the caches hold; None says nothing: `answer` goes the long way."""
        target = request.request if isinstance(request, EndedPoll) else request
        info = self._storage.cached_ledger(target.ledger)
        if info is None or info.deleted:
            return None
        try:
            match request:
                case ReadRequest():
                    return self._read_from_memory(request, info)
                case ReadLacRequest():
                    return self._read_lac_from_memory(request, info)
                case EndedPoll():
                    return self._poll_from_memory(request, info)
        except DamagedError:
            return None  # the long way reports it

    def entry_in_memory(self, request: ReadRequest) -> Buffer | None:
        """The one entry that a plain read asks for, if a cache has it; None says nothing."""
        info = self._storage.cached_ledger(request.ledger)
        if info is None or info.deleted or request.entry < 0:
            return None
        try:
            return self._storage.read_cached(info, request.entry)
        except DamagedError:
            return None  # the long way reports it

    def _read_from_memory(self, request: ReadRequest, info: LedgerInfo) -> Answer | None:
        data = self._last_from_memory(info) if request.entry == NO_ENTRY else self._entry_from_memory(info, request)
        if data is None:
            return None
        max_lac = info.lac if isinstance(request.origin, V3Origin) else None
        return Answer(Status.OK, server_codec.encode_read(request, Status.OK, data, max_lac), len(data))

    def _entry_from_memory(self, info: LedgerInfo, request: ReadRequest) -> Buffer | None:
        return self._storage.read_cached(info, request.entry) if request.entry >= 0 else None

    def _last_from_memory(self, info: LedgerInfo) -> Buffer | None:
        if info.last_unproven or info.limbo or info.last_entry == NO_ENTRY:
            return None
        return self._storage.read_cached(info, info.last_entry)

    def _read_lac_from_memory(self, request: ReadLacRequest, info: LedgerInfo) -> Answer | None:
        last = self._last_from_memory(info)
        if last is None:
            return None
        return self._lacs(request, info, last)

    def _poll_from_memory(self, ended: EndedPoll, info: LedgerInfo) -> Answer | None:
        request = ended.request
        if not request.piggyback:
            return self._read_from_memory(request, info)
        assert request.previous_lac is not None
        if info.lac <= request.previous_lac:
            return self._no_news(request, info)
        data = (
            self._storage.read_cached(info, EntryId(request.previous_lac + 1)) if request.previous_lac >= -1 else None
        )
        return None if data is None else self._news(ended, info, data)

    # ---- the long way
    async def _read(self, request: ReadRequest) -> Answer:
        if request.entry < NO_ENTRY:
            await self._refuse_negative(request.ledger, request.entry)
        data = await self._storage.read(request.ledger, request.entry)
        max_lac = None
        if isinstance(request.origin, V3Origin) and not request.fence:
            info = await self._info(request.ledger)
            max_lac = None if info is None else info.lac
        return Answer(Status.OK, server_codec.encode_read(request, Status.OK, data, max_lac), len(data))

    async def _info(self, ledger: LedgerId) -> LedgerInfo | None:
        return self._storage.cached_ledger(ledger) or await self._storage.load_ledger(ledger)

    async def _known(self, ledger: LedgerId) -> LedgerInfo:
        """The state of a ledger that is here. NoSuchLedgerError, UnknownLedgerStateError."""
        info = await self._info(ledger)
        if info is None or info.deleted:
            if self._storage.is_limbo(ledger):
                raise UnknownLedgerStateError(f"ledger {ledger} may have been held here")
            raise NoSuchLedgerError(f"no ledger {ledger}")
        return info

    async def _refuse_negative(self, ledger: LedgerId, entry: EntryId) -> None:
        """No add with a negative id is taken, so no such entry exists; the ledger may not either."""
        await self._known(ledger)
        raise NoSuchEntryError(f"no entry {entry} of ledger {ledger}")

    async def _read_batch(self, request: BatchReadRequest) -> Answer:
        if request.first < NO_ENTRY:
            await self._refuse_negative(request.ledger, request.first)
        entries = await self._entries(request)
        return Answer(
            Status.OK, server_codec.encode_batch(request, Status.OK, entries), sum(len(entry) for entry in entries)
        )

    async def _entries(self, request: BatchReadRequest) -> list[Buffer]:
        """The first whatever its size, then as many as the budget of bytes (each with 4 of length) allows."""
        if request.first == NO_ENTRY:
            return [await self._storage.read(request.ledger, NO_ENTRY)]
        entries: list[Buffer] = [await self._storage.read(request.ledger, request.first)]
        left = server_codec.entry_bytes_within(request, self._settings.batch_read_bytes_max) - len(entries[0]) - 4
        wanted = (request.entries_max if request.entries_max > 0 else 1 << 31) - 1
        if left <= 4 or wanted <= 0 or request.first == _LAST_ID:
            return entries
        try:
            more = await self._storage.read_many(request.ledger, EntryId(request.first + 1), wanted, left)
        except (NoSuchEntryError, UnknownLedgerStateError):
            return entries
        for entry in more:
            left -= len(entry) + 4
            if left < 0:
                break
            entries.append(entry)
        return entries

    async def _read_lac(self, request: ReadLacRequest) -> Answer:
        """Explicit LAC and last entry; neither, and an unknown ledger, is ENOENTRY."""
        last: Buffer | None = None
        info: LedgerInfo | None = None
        try:
            if request.ledger >= 0:
                info = await self._known(request.ledger)
                last = await self._storage.read(request.ledger, NO_ENTRY)
        except (NoSuchEntryError, NoSuchLedgerError):
            last = None
        return self._lacs(request, info, last)

    def _lacs(self, request: ReadLacRequest, info: LedgerInfo | None, last: Buffer | None) -> Answer:
        packet = None if info is None or info.deleted else info.explicit_lac
        if packet is None and last is None:
            return self.refusal(request, Status.NO_ENTRY)
        answer = server_v3.encode_read_lac(request.origin, request.ledger, packet, last)
        return Answer(Status.OK, (answer,), 0 if last is None else len(last))

    async def _list(self, request: ListEntriesRequest) -> Answer:
        if request.ledger < 0:
            return self.refusal(request, Status.NO_LEDGER)
        ranges = await self._storage.entry_ranges(request.ledger)
        listed = availability.encode(ranges, self._settings.frame_bytes_max - _LIST_FRAME_BYTES)
        if listed is None:
            _log.error("the list of entries of ledger %d has %d runs: no frame holds it", request.ledger, len(ranges))
            return self.refusal(request, Status.IO_ERROR)
        return Answer(Status.OK, (server_v3.encode_list(request.origin, request.ledger, listed),))

    # ---- long polls
    async def _poll(self, ended: EndedPoll) -> Answer:
        """With the piggyback flag the next entry, if the LAC moved; without it what a plain read gives."""
        request = ended.request
        if not request.piggyback:
            return await self._read(request)
        assert request.previous_lac is not None
        info = await self._known(request.ledger)
        if info.lac <= request.previous_lac:
            return self._no_news(request, info)
        data: Buffer | None = None
        try:
            if request.previous_lac >= NO_ENTRY:
                data = await self._storage.read(request.ledger, EntryId(request.previous_lac + 1))
        except NoSuchEntryError:
            data = None  # striping: another bookie has it
        return self._news(ended, info, data)

    def _no_news(self, request: ReadRequest, info: LedgerInfo) -> Answer:
        return Answer(Status.OK, server_codec.encode_read(request, Status.OK, None, info.lac))

    def _news(self, ended: EndedPoll, info: LedgerInfo, data: Buffer | None) -> Answer:
        request = ended.request
        assert request.previous_lac is not None
        # Without the entry the answer names the id of the request: so does the Java bookie.
        entry = request.entry if data is None else EntryId(request.previous_lac + 1)
        buffers = server_codec.encode_read(request, Status.OK, data, info.lac, ended.update_ms, entry=entry)
        return Answer(Status.OK, buffers, 0 if data is None else len(data))
