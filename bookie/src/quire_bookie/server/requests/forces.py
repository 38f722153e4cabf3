"""Handles FORCE_LEDGER, which makes adds with DEFERRED_SYNC durable: these are answered before they are.

A force is answered once everything appended before it is durable in all journals. A deferred add was acknowledged even
if the journal then refused it for lack of space: no force is answered OK until a flush of the storage has made such an
add durable.
"""

import asyncio
import logging
from functools import partial

from quire_bookie.errors import DiskFullError, StorageError
from quire_bookie.server.requests.condition import Condition
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ledger_loading import LedgerLoading
from quire_bookie.server.requests.ports import JournalPort, StoragePort
from quire_bookie.server.requests.request_bound import RequestBound
from quire_bookie.server.settings import BookieStats
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import ForceRequest, Status

_log = logging.getLogger("quire.server.forces")


class Forces:
    """Answers FORCE_LEDGER."""

    def __init__(
        self,
        journal: JournalPort,
        storage: StoragePort,
        stats: BookieStats,
        condition: Condition,
        loading: LedgerLoading,
        bound: RequestBound,
    ) -> None:
        self._journal = journal
        self._storage = storage
        self._stats = stats
        self._condition = condition
        self._loading = loading
        self._bound = bound
        self._loop = asyncio.get_running_loop()
        self._refused_adds = 0
        self._flushed_adds = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, connection: Connection, request: ForceRequest) -> None:
        """Answer once everything up to now is durable. Key and ledger are not checked."""
        self._stats.forces += 1
        self._bound.count_in(connection)
        if self._condition.poison is not None:
            self._answer(connection, request, Status.IO_ERROR)
        else:
            self._journal.append_force(partial(self._done, connection, request))

    def deferred_add_refused(self) -> None:
        """Note that the journal had no space for an add that was already answered."""
        self._refused_adds += 1

    async def close(self) -> None:
        """Stop. Pending responses are lost."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, connection: Connection, request: ForceRequest, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, DiskFullError):
            self._answer(connection, request, Status.IO_ERROR)
        elif error is None and self._loading.unlogged_keys and self._loading.log_key_again(request.ledger):
            # Replay drops records that precede their ledger's key: only the copies after the key count.
            self._journal.append_force(partial(self._done, connection, request))
        elif error is not None or self._refused_adds > self._flushed_adds:
            task = self._loop.create_task(self._flush(connection, request), name="bookie force")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(connection, request, Status.OK)

    async def _flush(self, connection: Connection, request: ForceRequest) -> None:
        refused = self._refused_adds
        status = Status.OK
        try:
            await self._storage.flush()
            self._flushed_adds = max(self._flushed_adds, refused)
            assert self._flushed_adds <= self._refused_adds, "a flush covers only adds before it"
        except (StorageError, OSError) as error:
            _log.error("could not make adds with deferred sync durable: %s", error)
            status = Status.IO_ERROR
        self._answer(connection, request, status)

    def _answer(self, connection: Connection, request: ForceRequest, status: Status) -> None:
        if status is Status.OK:
            self._stats.force_seconds.observe(self._loop.time() - request.arrived_s)
        else:
            self._stats.forces_failed += 1
        self._bound.count_out(connection)
        connection.send((server_v3.encode_ledger_status(request.origin, request.ledger, status),))
