"""What a bookie answers: the rules of adds, fences and explicit LACs, in one loop step each. Never touches a socket or
a file.

An add goes through checks, write cache and journal queue without an await in between, so that nothing can change under
it: whoever sees an entry in the cache knows that it is in the journal's queue too, and a fence that was answered comes
before or after an add, never in its middle. Answers leave when the journal says that the sync is done.

A ledger whose state is not in memory is loaded first; its requests wait and go on in the order in which they came.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from quire_bookie.errors import DamagedError, DiskFullError, StorageError, TooManyRequestsError
from quire_bookie.limits import EXPLICIT_LAC_BYTES_MAX, MASTER_KEY_BYTES_MAX
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.server.connections import Connection
from quire_bookie.server.overload import Overload
from quire_bookie.server.ports import JournalPort, StoragePort
from quire_bookie.server.reads import Reads
from quire_bookie.server.settings import BookieStats, ServiceSettings
from quire_bookie.storage.ledger_states import LedgerInfo
from quire_bookie.wire import server_codec, server_v3
from quire_bookie.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    RefusedRequest,
    Request,
    Status,
    V3Origin,
    WriteLacRequest,
)
from quire_bookie.wire.status import status_of

_log = logging.getLogger("quire.server.bookie")
_LAC_PACKET_BYTES_MIN = 16

LedgerAction = Callable[[LedgerInfo | None], None]
"""What to do once the state of a ledger is known; None: the bookie provably never had it."""


class Bookie:
    """Answers requests from journal and storage."""

    def __init__(
        self,
        journal: JournalPort,
        storage: StoragePort,
        settings: ServiceSettings,
        *,
        disk_space: Callable[[], tuple[int, int]],
        on_disk_full: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._storage = storage
        self._settings = settings
        self._disk_space = disk_space
        self._on_disk_full = on_disk_full
        self._loading: dict[LedgerId, list[tuple[LedgerAction, Callable[[Status], None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_flush: list[Connection] = []
        self._priority_in_flight_bytes = 0
        self._unlogged_keys: dict[LedgerId, bytes] = {}
        self._overload = Overload(self._attempt_add, self._refuse_add, settings.backpressure_pause_s)
        self._poison: BaseException | None = None
        self.read_only = False
        self.stats = BookieStats()
        self._reads = Reads(storage, settings, self.stats)

    @property
    def poisoned(self) -> bool:
        """Whether the journal failed: no add or fence is acknowledged any more."""
        return self._poison is not None

    def poison(self, error: BaseException) -> None:
        """The journal failed: EIO to every add and fence from now on."""
        self._poison = error
        self._overload.retry()

    async def close(self) -> None:
        """Stop working on requests. Answers that are due are lost: drain the connections first."""
        self._overload.close()
        await self._reads.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """Work on the requests of one buffer, in order."""
        for request in requests:
            if type(request) is AddRequest:
                connection.unanswered += len(request.run.entries)
                self._handle_add(connection, request)
            else:
                connection.unanswered += 1
                self._handle_other(connection, request)

    def flush_soon(self, connection: Connection) -> None:
        """Flush the connection once this turn of the loop has collected its answers."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush()
        self._overload.retry()

    def _with_ledger(self, ledger: LedgerId, action: LedgerAction, fail: Callable[[Status], None]) -> None:
        """Run `action` with the ledger's state: now if it is known, else in turn once it is loaded."""
        waiting = self._loading.get(ledger)
        if waiting is not None:
            waiting.append((action, fail))
            return
        info = self._storage.cached_ledger(ledger)
        if info is not None:
            action(info)
            return
        self._loading[ledger] = [(action, fail)]
        task = asyncio.get_running_loop().create_task(self._load(ledger), name=f"load ledger {ledger}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, ledger: LedgerId) -> None:
        """Load a state, then run what waited for it in one step."""
        status = Status.IO_ERROR
        loaded = False
        info: LedgerInfo | None = None
        try:
            info = await self._storage.load_ledger(ledger)
            loaded = True
        except (StorageError, OSError) as error:
            status = status_of(error)
            _log.error("the state of ledger %d cannot be read: %s", ledger, error)
        finally:
            waiting = self._loading.pop(ledger)
            for action, fail in waiting:
                if loaded:
                    # An earlier action of this very loop may have created the ledger.
                    info = info or self._storage.cached_ledger(ledger)
                    action(info)
                else:
                    fail(status)

    def _create(self, ledger: LedgerId, master_key: bytes) -> LedgerInfo:
        info = self._storage.create_ledger(ledger, master_key)
        self._journal.append_master_key(ledger, master_key, partial(self._key_logged, ledger, master_key))
        self.stats.ledgers_created += 1
        return info

    def _key_logged(self, ledger: LedgerId, master_key: bytes, error: BaseException | None) -> None:
        """A key that found no space is logged again before anything that needs it is acknowledged."""
        if error is None:
            self._unlogged_keys.pop(ledger, None)
        else:
            self._unlogged_keys[ledger] = master_key

    def _log_key_again(self, ledger: LedgerId) -> bool:
        """Whether the key is missing in the journal: it is queued now, and the caller queues its own record again.

        The key's group was refused and a later one got space. Replay drops what stands before the key of its ledger,
        so it is the copy behind the key that counts. `done` callbacks run in the order of the records: whatever is
        not behind a durable key finds the ledger here.
        """
        master_key = self._unlogged_keys.get(ledger)
        if master_key is None:
            return False
        self._journal.append_master_key(ledger, master_key, partial(self._key_logged, ledger, master_key))
        return True

    # Adds

    def _handle_add(self, connection: Connection, request: AddRequest) -> None:
        status = self._add_refusal(request)
        if status is not None:
            self._answer_add(connection, request, status)
            return
        ledger = request.run.ledger
        if ledger not in self._loading:
            info = self._storage.cached_ledger(ledger)
            if info is not None:
                self._add(connection, request, info)
                return
        self._with_ledger(
            ledger, partial(self._add, connection, request), partial(self._answer_add, connection, request)
        )

    def _add_refusal(self, request: AddRequest) -> Status | None:
        """What is wrong with an add before its ledger is looked at."""
        if self._poison is not None:
            return Status.IO_ERROR
        if self.read_only and not request.high_priority:
            return Status.READ_ONLY
        if request.run.ledger < 0 or request.run.first < 0 or len(request.master_key) > MASTER_KEY_BYTES_MAX:
            return Status.BAD_REQUEST
        return None

    def _add(self, connection: Connection, request: AddRequest, info: LedgerInfo | None) -> None:
        if info is None:
            info = self._create(request.run.ledger, request.master_key)
        if info.master_key != request.master_key:
            self._answer_add(connection, request, Status.UNAUTHORIZED)
        elif request.short:
            self._answer_add(connection, request, Status.BAD_REQUEST)
        elif self._overload.offer(connection, request):
            self.stats.adds_paused += 1

    def _attempt_add(self, connection: Connection, request: AddRequest) -> bool:
        """One step: fence check, write cache, journal queue. False: no room, nothing was changed."""
        run = request.run
        info = self._storage.cached_ledger(run.ledger)
        if info is None:
            # It waited for room so long that its state left the memory.
            self._with_ledger(
                run.ledger, partial(self._add, connection, request), partial(self._answer_add, connection, request)
            )
            return True
        if info.deleted and request.recovery:
            self._answer_add(connection, request, Status.NO_LEDGER)
            return True
        if info.fenced and not request.recovery:
            self._answer_add(connection, request, Status.FENCED)
            return True
        if self._poison is not None:
            self._answer_add(connection, request, Status.IO_ERROR)
            return True
        stats = self.stats
        if request.recovery or request.high_priority:
            if self._priority_in_flight_bytes >= self._settings.priority_adds_in_flight_bytes_max:
                return False
        elif stats.adds_in_flight_bytes >= self._settings.adds_in_flight_bytes_max:
            return False
        try:
            self._storage.put(info, run)
        except TooManyRequestsError:
            return False
        if request.recovery or request.high_priority:
            self._priority_in_flight_bytes += run.size_bytes
        else:
            stats.adds_in_flight_bytes += run.size_bytes
        stats.add_runs += 1
        stats.add_entries += len(run.entries)
        stats.add_bytes += run.size_bytes
        self._journal.append_run(run, partial(self._add_durable, connection, request))
        return True

    def _add_durable(self, connection: Connection, request: AddRequest, error: BaseException | None) -> None:
        if self._unlogged_keys and error is None and self._log_key_again(request.run.ledger):
            self._journal.append_run(request.run, partial(self._add_durable, connection, request))
            return
        if request.recovery or request.high_priority:
            self._priority_in_flight_bytes -= request.run.size_bytes
        else:
            self.stats.adds_in_flight_bytes -= request.run.size_bytes
        if error is None:
            connection.send((server_codec.encode_adds(request, Status.OK),), len(request.run.entries))
        else:
            self._answer_add(connection, request, self._journal_failure(error))

    def _answer_add(self, connection: Connection, request: AddRequest, status: Status) -> None:
        count = len(request.run.entries)
        self.stats.adds_failed += count
        connection.send((server_codec.encode_adds(request, status),), count)

    def _refuse_add(self, connection: Connection, request: AddRequest) -> None:
        self.stats.adds_rejected += len(request.run.entries)
        self._answer_add(connection, request, Status.TOO_MANY_REQUESTS)

    def _journal_failure(self, error: BaseException) -> Status:
        """No space is no failure of the device: the bookie turns read-only and says so."""
        if isinstance(error, DiskFullError):
            self._on_disk_full()
            return Status.READ_ONLY
        return status_of(error)

    # Everything else

    def _handle_other(self, connection: Connection, request: Request) -> None:
        match request:
            case ReadRequest() | BatchReadRequest():
                self._handle_read(connection, request)
            case ReadLacRequest():
                self._reads.submit(connection, request)
            case WriteLacRequest():
                self._handle_write_lac(connection, request)
            case AuthRequest():
                connection.send((server_codec.encode_auth_disabled(request),))
            case RefusedRequest():
                connection.send((request.answer,))
            case ForceRequest():
                # Every add that was answered is durable already, those with DEFERRED_SYNC too.
                status = Status.IO_ERROR if self._poison is not None else Status.OK
                connection.send((server_v3.encode_ledger_status(request.origin, request.ledger, status),))
            case BookieInfoRequest():
                connection.send((server_v3.encode_info(self._info(request)),))
            case ListEntriesRequest():
                refusal = server_v3.encode_ledger_status(request.origin, request.ledger, Status.BAD_REQUEST)
                connection.send((refusal,))

    def _info(self, request: BookieInfoRequest) -> BookieInfoResponse:
        total_bytes, free_bytes = self._disk_space()
        return BookieInfoResponse(
            Status.OK,
            total_bytes if request.requested & TOTAL_DISK_CAPACITY else None,
            free_bytes if request.requested & FREE_DISK_SPACE else None,
            request.origin.transaction,
        )

    def _handle_read(self, connection: Connection, request: ReadRequest | BatchReadRequest) -> None:
        if request.ledger < 0:
            self._reads.refuse(connection, request, Status.BAD_REQUEST)
        elif isinstance(request, ReadRequest) and request.previous_lac is not None and request.timeout_ms is not None:
            self._reads.refuse(connection, request, Status.BAD_REQUEST)  # long polls are not served yet
        elif not request.fence:
            if not (isinstance(request, ReadRequest) and self._read_from_memory(connection, request)):
                self._reads.submit(connection, request)
        elif request.master_key is not None and len(request.master_key) > MASTER_KEY_BYTES_MAX:
            self._reads.refuse(connection, request, Status.BAD_REQUEST)
        elif request.master_key is None or self._poison is not None:
            # Without a key: version 0 and 1 of V2 have no room for one.
            status = Status.UNAUTHORIZED if request.master_key is None else Status.IO_ERROR
            self._reads.refuse(connection, request, status)
        else:
            self._with_ledger(
                request.ledger,
                partial(self._fence, connection, request, request.master_key),
                partial(self._reads.refuse, connection, request),
            )

    def _read_from_memory(self, connection: Connection, request: ReadRequest) -> bool:
        """Answer in this very step what one of the caches holds: tail reads cost no task."""
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
        self.stats.reads += 1
        self.stats.read_bytes += len(data)
        max_lac = info.lac if isinstance(request.origin, V3Origin) else None
        connection.send(server_codec.encode_read(request, Status.OK, data, max_lac))
        return True

    def _fence(
        self,
        connection: Connection,
        request: ReadRequest | BatchReadRequest,
        master_key: bytes,
        info: LedgerInfo | None,
    ) -> None:
        """Flag and journal queue in one step; the read runs beside the sync, the answer waits for both.

        A ledger that is fenced already is logged again: the first fence may not be durable yet.
        """
        if info is None:
            info = self._create(request.ledger, master_key)
        if info.master_key != master_key:
            self._reads.refuse(connection, request, Status.UNAUTHORIZED)
            return
        if not info.fenced:
            self._storage.fence(info)
        self.stats.fences += 1
        durable: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._append_fence(request.ledger, durable)
        self._reads.submit_fenced(connection, request, durable)

    def _append_fence(self, ledger: LedgerId, durable: "asyncio.Future[BaseException | None]") -> None:
        def done(error: BaseException | None) -> None:
            if error is None and self._log_key_again(ledger):
                self._journal.append_fence(ledger, done)
            elif not durable.done():
                # A result, not an exception: nobody may be left to retrieve it.
                durable.set_result(error)

        self._journal.append_fence(ledger, done)

    def _handle_write_lac(self, connection: Connection, request: WriteLacRequest) -> None:
        answer = partial(self._answer_write_lac, connection, request)
        if self._poison is not None:
            answer(Status.IO_ERROR)
        elif self.read_only:
            answer(Status.READ_ONLY)
        elif (
            request.ledger < 0
            or not _LAC_PACKET_BYTES_MIN <= len(request.packet) <= EXPLICIT_LAC_BYTES_MAX
            or len(request.master_key) > MASTER_KEY_BYTES_MAX
        ):
            answer(Status.BAD_REQUEST)
        else:
            self._with_ledger(request.ledger, partial(self._write_lac, connection, request), answer)

    def _write_lac(self, connection: Connection, request: WriteLacRequest, info: LedgerInfo | None) -> None:
        if info is None:
            info = self._create(request.ledger, request.master_key)
        if info.deleted or info.master_key != request.master_key:
            status = Status.NO_LEDGER if info.deleted else Status.UNAUTHORIZED
            self._answer_write_lac(connection, request, status)
            return
        self.stats.lac_writes += 1
        self._storage.set_explicit_lac(info, request.packet, lac_of_packet(request.packet))
        done = partial(self._write_lac_durable, connection, request)
        self._journal.append_explicit_lac(request.ledger, request.packet, done)

    def _write_lac_durable(self, connection: Connection, request: WriteLacRequest, error: BaseException | None) -> None:
        if error is None and self._log_key_again(request.ledger):
            done = partial(self._write_lac_durable, connection, request)
            self._journal.append_explicit_lac(request.ledger, request.packet, done)
            return
        status = Status.OK if error is None else self._journal_failure(error)
        self._answer_write_lac(connection, request, status)

    def _answer_write_lac(self, connection: Connection, request: WriteLacRequest, status: Status) -> None:
        connection.send((server_v3.encode_ledger_status(request.origin, request.ledger, status),))


def lac_of_packet(packet: bytes) -> EntryId:
    """The LAC in an explicit LAC packet: ledger int64, LAC int64, digest."""
    return EntryId(int.from_bytes(packet[8:16], "big", signed=True))
