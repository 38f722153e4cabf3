"""Reads of a bookie: queued per connection, worked on by a few tasks each. Never writes, never waits for the journal
except to answer a fence.

A connection's first read starts a worker and a busy connection keeps up to `reads_at_once_per_connection` of them, so
pipelined reads make no task each. Answers may overtake each other; the protocol allows it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from quire_bookie.errors import DamagedError, LedgerError, NoSuchEntryError, NoSuchLedgerError, StorageError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId
from quire_bookie.server.connections import PAUSED_BY_READS, Connection
from quire_bookie.server.ports import StoragePort
from quire_bookie.server.settings import BookieStats, ServiceSettings
from quire_bookie.wire import server_codec, server_v3
from quire_bookie.wire.messages import BatchReadRequest, ReadLacRequest, ReadRequest, Status, V3Origin
from quire_bookie.wire.status import status_of

_log = logging.getLogger("quire.server.reads")

AnyRead: TypeAlias = ReadRequest | BatchReadRequest | ReadLacRequest
Durable: TypeAlias = asyncio.Future[BaseException | None]
"""Of a fencing read: done when its fence record is, with the error if it never will be."""


class _Queue:
    """The reads of one connection."""

    __slots__ = ("fencing", "waiting", "workers")

    def __init__(self) -> None:
        self.waiting: deque[AnyRead] = deque()
        self.workers = 0
        self.fencing = 0
        """Fencing reads under way, each a task of its own."""

    @property
    def load(self) -> int:
        """Reads that are not answered yet, those that workers have in hand aside."""
        return len(self.waiting) + self.fencing


class Reads:
    """All reads of a bookie."""

    def __init__(self, storage: StoragePort, settings: ServiceSettings, stats: BookieStats) -> None:
        self._storage = storage
        self._settings = settings
        self._stats = stats
        self._queues: WeakKeyDictionary[Connection, _Queue] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, connection: Connection, request: AnyRead) -> None:
        """Answer a read when it is its turn."""
        queue = self._queue_of(connection)
        queue.waiting.append(request)
        self._pause_if_long(connection, queue)
        if queue.workers < self._settings.reads_at_once_per_connection:
            queue.workers += 1
            self._spawn(self._work(connection, queue))

    def submit_fenced(self, connection: Connection, request: AnyRead, durable: Durable) -> None:
        """Answer a fencing read once `durable` is done. Never queued: no read waits for the journal behind it."""
        queue = self._queue_of(connection)
        queue.fencing += 1
        self._pause_if_long(connection, queue)
        self._spawn(self._work_fenced(connection, queue, request, durable))

    def answer_from_memory(self, connection: Connection, request: ReadRequest) -> bool:
        """Answer in this very step what one of the caches holds: tail reads cost no task. False: it is not there."""
        info = self._storage.cached_ledger(request.ledger)
        if info is None or info.deleted or not connection.takes_answers:
            return False
        entry = request.entry
        if entry == NO_ENTRY:
            if info.last_unproven or info.last_entry == NO_ENTRY:
                return False
            entry = info.last_entry
        try:
            data = self._storage.read_cached(info, entry)
        except DamagedError:
            return False  # the long way reports it
        if data is None:
            return False
        self._stats.reads += 1
        self._stats.read_bytes += len(data)
        max_lac = info.lac if isinstance(request.origin, V3Origin) else None
        connection.send(server_codec.encode_read(request, Status.OK, data, max_lac))
        return True

    def _queue_of(self, connection: Connection) -> _Queue:
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = _Queue()
        return queue

    def _pause_if_long(self, connection: Connection, queue: _Queue) -> None:
        if queue.load >= self._settings.reads_queued_per_connection:
            connection.pause(PAUSED_BY_READS)

    def _resume_if_short(self, connection: Connection, queue: _Queue) -> None:
        if queue.load == self._settings.reads_queued_per_connection // 2:
            connection.resume(PAUSED_BY_READS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="bookie reads")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def refuse(self, connection: Connection, request: ReadRequest | BatchReadRequest, status: Status) -> None:
        """Answer without reading."""
        self._stats.reads_failed += 1
        if isinstance(request, BatchReadRequest):
            connection.send(server_codec.encode_batch(request, status))
        else:
            connection.send(server_codec.encode_read(request, status))

    async def close(self) -> None:
        """Drop everything that is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, connection: Connection, queue: _Queue) -> None:
        """A worker: until nothing waits."""
        try:
            while queue.waiting:
                request = queue.waiting.popleft()
                self._resume_if_short(connection, queue)
                if not connection.takes_answers:
                    await connection.wait_to_take_answers()
                if connection.is_gone:
                    connection.send((), 1)
                else:
                    connection.send(await self._answer(request, None))
        finally:
            queue.workers -= 1

    async def _work_fenced(self, connection: Connection, queue: _Queue, request: AnyRead, durable: Durable) -> None:
        try:
            connection.send(await self._answer(request, durable))
        finally:
            queue.fencing -= 1
            self._resume_if_short(connection, queue)

    async def _answer(self, request: AnyRead, durable: Durable | None) -> Sequence[Buffer]:
        self._stats.reads += 1
        try:
            match request:
                case ReadRequest():
                    return await self._read(request, durable)
                case BatchReadRequest():
                    return await self._read_batch(request, durable)
                case ReadLacRequest():
                    return (await self._read_lac(request),)
        except Exception as error:  # noqa: BLE001 - a read's root: its client gets an answer and the others go on
            _log.exception("a read failed: %s", error)
            return self._failure(request, Status.IO_ERROR)

    async def _read(self, request: ReadRequest, durable: Durable | None) -> Sequence[Buffer]:
        status, data = Status.OK, None
        try:
            if request.entry < NO_ENTRY:
                await self._refuse_negative(request)
            data = await self._storage.read(request.ledger, request.entry)
        except (LedgerError, StorageError, OSError) as error:
            status = self._status_of(error)
        if durable is not None and await durable is not None:
            status, data = Status.IO_ERROR, None
        max_lac = None
        if data is not None:
            self._stats.read_bytes += len(data)
            if isinstance(request.origin, V3Origin) and not request.fence:
                info = self._storage.cached_ledger(request.ledger)
                info = info or await self._storage.load_ledger(request.ledger)
                max_lac = None if info is None else info.lac
        else:
            self._stats.reads_failed += 1
        return server_codec.encode_read(request, status, data, max_lac)

    async def _refuse_negative(self, request: ReadRequest) -> None:
        """No add with a negative id is taken, so no such entry exists; the ledger may not either."""
        if await self._storage.load_ledger(request.ledger) is None:
            raise NoSuchLedgerError(f"no ledger {request.ledger}")
        raise NoSuchEntryError(f"no entry {request.entry} of ledger {request.ledger}")

    async def _read_batch(self, request: BatchReadRequest, durable: Durable | None) -> Sequence[Buffer]:
        status = Status.OK
        entries: list[Buffer] = []
        try:
            entries = await self._entries(request)
        except (LedgerError, StorageError, OSError) as error:
            status = self._status_of(error)
        if durable is not None and await durable is not None:
            status, entries = Status.IO_ERROR, []
        self._stats.read_bytes += sum(map(len, entries))
        self._stats.reads_failed += status is not Status.OK
        return server_codec.encode_batch(request, status, entries)

    async def _entries(self, request: BatchReadRequest) -> list[Buffer]:
        """The first whatever its size, then as many as the budget of bytes (each with 4 of length) allows."""
        if request.first == NO_ENTRY:
            return [await self._storage.read(request.ledger, NO_ENTRY)]
        entries: list[Buffer] = [await self._storage.read(request.ledger, request.first)]
        left = server_codec.entry_bytes_within(request, self._settings.batch_read_bytes_max) - len(entries[0]) - 4
        wanted = (request.entries_max if request.entries_max > 0 else 1 << 31) - 1
        if left <= 4 or wanted <= 0:
            return entries
        try:
            more = await self._storage.read_many(request.ledger, EntryId(request.first + 1), wanted, left)
        except NoSuchEntryError:
            return entries
        for entry in more:
            left -= len(entry) + 4
            if left < 0:
                break
            entries.append(entry)
        return entries

    async def _read_lac(self, request: ReadLacRequest) -> bytes:
        """Explicit LAC and last entry; neither, and an unknown ledger, is ENOENTRY."""
        last: Buffer | None = None
        info = None
        try:
            if request.ledger >= 0:
                info = await self._storage.load_ledger(request.ledger)
            if info is not None:
                last = await self._storage.read(request.ledger, NO_ENTRY)
        except (NoSuchEntryError, NoSuchLedgerError):
            last = None
        except (LedgerError, StorageError, OSError) as error:
            return server_v3.encode_ledger_status(request.origin, request.ledger, self._status_of(error))
        packet = None if info is None else info.explicit_lac
        if packet is None and last is None:
            return server_v3.encode_ledger_status(request.origin, request.ledger, Status.NO_ENTRY)
        return server_v3.encode_read_lac(request.origin, request.ledger, packet, last)

    def _status_of(self, error: Exception) -> Status:
        status = status_of(error)
        if status is Status.IO_ERROR:
            _log.error("a read failed: %s", error)
        return status

    def _failure(self, request: AnyRead, status: Status) -> Sequence[Buffer]:
        if isinstance(request, ReadLacRequest):
            return (server_v3.encode_ledger_status(request.origin, request.ledger, status),)
        if isinstance(request, BatchReadRequest):
            return server_codec.encode_batch(request, status)
        return server_codec.encode_read(request, status)
