"""Builds the responses to reads: entries, LACs, lists of entries, and the status of each failure.

Owns the rules of READ, BATCH_READ, READ_LAC, GET_LIST_OF_ENTRIES and of ended long polls. Never decides when a read
runs, and never writes anything.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeAlias

from quire_bookie.bulk import batch_bodies, read_replies
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    DamagedError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    UnknownLedgerStateError,
)
from quire_bookie.limits import READ_RUN_ENTRIES_PER_TURN
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.server.requests.ports import StoragePort
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire import availability, server_codec, server_v2, server_v3, v2
from quire_bookie.wire.messages import (
    BatchReadRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadRun,
    Status,
    V3Origin,
)
from quire_bookie.wire.status import status_of

_log = logging.getLogger("quire.server.reads")
READ_ANSWER_BYTES = v2.RESPONSE.size
"""Bytes of a V2 read response in addition to the entry."""
_LIST_FRAME_BYTES = 64
"""Upper bound of the bytes of a list's frame in addition to the list."""

_ANY_SIZE = 1 << 62
_JOINED_ENTRY_BYTES_MAX = 4096
"""Copying smaller responses into one buffer costs less than writing them one by one."""
_LAST_ID = EntryId((1 << 63) - 1)


@dataclass(slots=True)
class EndedPoll:
    """A long poll that ended: the LAC moved, its timeout expired, or its ledger was fenced or deleted.

    `update_ms` (since the epoch): the time of the update that ended it; None if it was not parked or had no update.
    """

    request: ReadRequest
    update_ms: int | None = None


AnyRead: TypeAlias = ReadRequest | BatchReadRequest | ReadLacRequest | ListEntriesRequest | EndedPoll


@dataclass(slots=True)
class Answer:
    """A response as buffers to write in order; `entry_bytes` of them belong to `entries` entries, one or a batch."""

    status: Status
    buffers: Sequence[Buffer]
    entry_bytes: int = 0
    entries: int = 1


class _Batch:
    """Collects the entries of a batch read in order, each after its length. `next`: the id of the next entry.

    The first entry is taken regardless of its size, further ones while they fit the byte budget, with 4 bytes of length
    each.
    """

    __slots__ = ("count", "done", "left_bytes", "next", "parts", "served", "size_bytes", "wanted")

    def __init__(self, first: EntryId, left_bytes: int, wanted: int) -> None:
        self.next = first
        self.left_bytes = left_bytes
        self.wanted = wanted
        self.parts: list[Buffer] = []
        self.count = 0
        self.size_bytes = 0
        self.served = 0
        """Entries from stretches."""
        self.done = False

    def take(self, entry: Buffer) -> None:
        """Add one entry if it fits the budget; otherwise the batch is done."""
        size_bytes = len(entry) + 4
        if self.count and size_bytes > self.left_bytes:
            self.done = True
            return
        self.parts.append(len(entry).to_bytes(4, "big"))
        self.parts.append(entry)
        self._grow(size_bytes, 1)

    def add(self, bodies: bytes, count: int) -> None:
        """Add entries that fit the budget, with their lengths; none if the next one does not fit."""
        if count:
            self.parts.append(bodies)
            self.served += count
            self._grow(len(bodies), count)
        else:
            self.done = True

    def _grow(self, size_bytes: int, count: int) -> None:
        self.size_bytes += size_bytes
        self.left_bytes -= size_bytes
        self.count += count
        self.wanted -= count
        self.done = self.left_bytes <= 4 or self.wanted <= 0 or self.next > _LAST_ID - count
        self.next = EntryId(self.next + count)


class ReadAnswers:
    """Reads storage and encodes responses."""

    def __init__(self, storage: StoragePort, settings: ServiceSettings) -> None:
        self._storage = storage
        self._settings = settings

    async def answer(self, request: AnyRead) -> Answer:
        """Return the response to any read. Never raises: a failed read is answered with the status of its error."""
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
        except Exception as error:  # noqa: BLE001 - a read's root: its client gets a response, the others continue
            _log.exception("a read failed: %s", error)
            return self.refusal(request, Status.IO_ERROR)

    def bytes_max(self, request: AnyRead) -> int:
        """Return an upper bound of the bytes of the response, before the read."""
        if isinstance(request, BatchReadRequest):
            within = server_codec.entry_bytes_within(request, self._settings.batch_read_bytes_max)
            return max(within, self._settings.frame_bytes_max)  # the first entry is sent regardless of its size
        return self._settings.frame_bytes_max

    def refusal(self, request: AnyRead, status: Status) -> Answer:
        """Return a response without data."""
        match request:
            case ReadRequest():
                return Answer(status, server_codec.encode_read(request, status))
            case BatchReadRequest():
                return Answer(status, server_codec.encode_batch(request, status))
            case EndedPoll():
                return Answer(status, server_codec.encode_read(request.request, status))
            case ReadLacRequest() | ListEntriesRequest():
                return Answer(status, (server_v3.encode_ledger_status(request.origin, request.ledger, status),))

    # ---- from memory, without an await
    def from_memory(self, request: ReadRequest | ReadLacRequest | EndedPoll) -> Answer | None:
        """Return the response if the caches suffice; None: `answer` must read the disk."""
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
            return None  # the read from disk reports it

    def run_from_memory(self, run: ReadRun, at: int, end: int, bytes_max: int) -> tuple[list[Buffer], int]:
        """Return the responses to reads `at` to before `end` of a run as far as entries are cached, and their number.

        Stops at the first entry that is not cached, and when the responses reach `bytes_max`.
        """
        storage, ledger, entries, header = self._storage, run.ledger, run.entries, run.origin.header
        info = storage.cached_ledger(ledger)
        answers: list[Buffer] = []
        start, size_bytes = at, 0
        if info is None or info.deleted:
            return answers, 0
        while at < end and size_bytes < bytes_max:
            entry = EntryId(entries[at])
            held = storage.stretch(info, entry)
            if held is not None:
                joined, count = read_replies(
                    held.data,
                    held.ids,
                    held.starts,
                    held.sizes,
                    header,
                    ledger,
                    entries,
                    at,
                    end - at,
                    bytes_max - size_bytes,
                )
                storage.note_served(count)
                answers.append(joined)
                size_bytes += len(joined)
                at += count
                continue
            data = self._cached(info, entry)
            if data is None:
                break
            answers += server_v2.encode_read(run.origin, ledger, entry, Status.OK, data)
            size_bytes += READ_ANSWER_BYTES + len(data)
            at += 1
        if len(answers) > 2 and size_bytes < _JOINED_ENTRY_BYTES_MAX * len(answers):
            answers = [b"".join(answers)]
        return answers, at - start

    def _cached(self, info: LedgerInfo, entry: EntryId) -> Buffer | None:
        try:
            return self._storage.read_cached(info, entry) if entry >= 0 else None
        except DamagedError:
            return None  # the read from disk reports it

    def batch_from_memory(self, request: BatchReadRequest) -> Answer | None:
        """Return the response to a batch read if it can be given from memory in one step, otherwise None."""
        if request.first < 0:
            return None
        batch = self._new_batch(request)
        self._collect(request, batch)
        return self._batch_answer(request, batch) if batch.done else None

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
            return self._without_entry(request, info)
        data = (
            self._storage.read_cached(info, EntryId(request.previous_lac + 1)) if request.previous_lac >= -1 else None
        )
        return None if data is None else self._with_entry(ended, info, data)

    # ---- from disk
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
        """Return the state of a stored ledger. NoSuchLedgerError, UnknownLedgerStateError."""
        info = await self._info(ledger)
        if info is None or info.deleted:
            if self._storage.is_limbo(ledger):
                raise UnknownLedgerStateError(f"ledger {ledger} may have been stored here")
            raise NoSuchLedgerError(f"no ledger {ledger}")
        return info

    async def _refuse_negative(self, ledger: LedgerId, entry: EntryId) -> None:
        """Raise the error for a negative entry id: such adds are refused. The ledger may not exist either."""
        await self._known(ledger)
        raise NoSuchEntryError(f"no entry {entry} of ledger {ledger}")

    async def _read_batch(self, request: BatchReadRequest) -> Answer:
        if request.first < NO_ENTRY:
            await self._refuse_negative(request.ledger, request.first)
        batch = self._new_batch(request)
        if request.first == NO_ENTRY:
            batch.take(await self._storage.read(request.ledger, NO_ENTRY))
            batch.done = True
        while not batch.done:
            if self._collect(request, batch):
                await asyncio.sleep(0)  # reads from memory never wait otherwise: let adds and their responses run
                continue
            if batch.done:
                break
            try:
                (entry,) = await self._storage.read_many(request.ledger, batch.next, 1, max(1, batch.left_bytes))
            except (NoSuchEntryError, UnknownLedgerStateError, DamagedError):
                if not batch.count:
                    raise
                break
            batch.take(entry)
        return self._batch_answer(request, batch)

    def _new_batch(self, request: BatchReadRequest) -> "_Batch":
        left_bytes = server_codec.entry_bytes_within(request, self._settings.batch_read_bytes_max)
        return _Batch(request.first, left_bytes, request.entries_max if request.entries_max > 0 else 1 << 31)

    def _collect(self, request: BatchReadRequest, batch: "_Batch") -> int:
        """Add cached entries, within the bound of one step; return their number."""
        storage = self._storage
        info = storage.cached_ledger(request.ledger)
        start = batch.count
        if info is None or info.deleted:
            return 0
        while not batch.done and batch.count - start < READ_RUN_ENTRIES_PER_TURN:
            held = storage.stretch(info, batch.next)
            if held is None:
                body = self._cached(info, batch.next)
                if body is None:
                    break
                batch.take(body)
                continue
            entries_max = min(batch.wanted, READ_RUN_ENTRIES_PER_TURN)
            bodies, count = batch_bodies(
                held.data, held.ids, held.starts, held.sizes, batch.next, entries_max, max(0, batch.left_bytes)
            )
            if not count and not batch.count:  # the first one is sent regardless of its size
                bodies, count = batch_bodies(held.data, held.ids, held.starts, held.sizes, batch.next, 1, _ANY_SIZE)
            batch.add(bodies, count)
        return batch.count - start

    def _batch_answer(self, request: BatchReadRequest, batch: "_Batch") -> Answer:
        self._storage.note_served(batch.served)
        buffers = server_v2.encode_joined_batch(request, batch.parts, batch.size_bytes)
        return Answer(Status.OK, buffers, batch.size_bytes - 4 * batch.count, batch.count)

    async def _read_lac(self, request: ReadLacRequest) -> Answer:
        """Return explicit LAC and last entry; ENOENTRY if there is neither, or for an unknown ledger."""
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
            _log.error(
                "the list of entries of ledger %d has %d runs, too many for a frame", request.ledger, len(ranges)
            )
            return self.refusal(request, Status.IO_ERROR)
        return Answer(Status.OK, (server_v3.encode_list(request.origin, request.ledger, listed),))

    # ---- long polls
    async def _poll(self, ended: EndedPoll) -> Answer:
        """Return the next entry if the LAC moved, given the piggyback flag; without the flag as a plain read."""
        request = ended.request
        if not request.piggyback:
            return await self._read(request)
        assert request.previous_lac is not None
        info = await self._known(request.ledger)
        if info.lac <= request.previous_lac:
            return self._without_entry(request, info)
        data: Buffer | None = None
        try:
            if request.previous_lac >= NO_ENTRY:
                data = await self._storage.read(request.ledger, EntryId(request.previous_lac + 1))
        except NoSuchEntryError:
            data = None  # striping: another bookie has it
        return self._with_entry(ended, info, data)

    def _without_entry(self, request: ReadRequest, info: LedgerInfo) -> Answer:
        return Answer(Status.OK, server_codec.encode_read(request, Status.OK, None, info.lac))

    def _with_entry(self, ended: EndedPoll, info: LedgerInfo, data: Buffer | None) -> Answer:
        request = ended.request
        assert request.previous_lac is not None
        # Without the entry the response has the id of the request, as with the Java bookie.
        entry = request.entry if data is None else EntryId(request.previous_lac + 1)
        buffers = server_codec.encode_read(request, Status.OK, data, info.lac, ended.update_ms, entry=entry)
        return Answer(Status.OK, buffers, 0 if data is None else len(data))
