"""Handles fences: sets the flag, queues its record, reads, answers once the record is durable.

Never reads an entry itself: a fencing read is passed to `reads` with the sync that it waits for. Flag and journal queue
change in one loop step, as those of an add do.
"""

import asyncio
from functools import partial
from hmac import compare_digest

from quire_bookie.limits import MASTER_KEY_BYTES_MAX
from quire_bookie.model import LedgerId
from quire_bookie.server.requests.condition import Condition
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ledger_loading import LedgerLoading, wrong_key_status
from quire_bookie.server.requests.long_polls import LongPolls
from quire_bookie.server.requests.ports import JournalPort, StoragePort
from quire_bookie.server.requests.reads import Reads
from quire_bookie.server.settings import BookieStats
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire.messages import BatchReadRequest, ReadRequest, Status


class Fences:
    """Answers fencing reads together with `reads`."""

    def __init__(
        self,
        journal: JournalPort,
        storage: StoragePort,
        stats: BookieStats,
        condition: Condition,
        loading: LedgerLoading,
        reads: Reads,
        long_polls: LongPolls,
    ) -> None:
        self._journal = journal
        self._storage = storage
        self._stats = stats
        self._condition = condition
        self._loading = loading
        self._reads = reads
        self._long_polls = long_polls

    def handle(self, connection: Connection, request: ReadRequest | BatchReadRequest) -> None:
        """Fence a ledger, creating it if necessary, and read."""
        key = request.master_key
        if key is None:
            # Versions 0 and 1 of V2 have no field for it.
            self._reads.refuse(connection, request, Status.UNAUTHORIZED)
        elif len(key) > MASTER_KEY_BYTES_MAX:
            self._reads.refuse(connection, request, Status.BAD_REQUEST)
        elif self._condition.poison is not None:
            self._reads.refuse(connection, request, Status.IO_ERROR)
        else:
            self._loading.with_ledger(
                request.ledger,
                partial(self._fence, connection, request, key),
                partial(self._reads.refuse, connection, request),
            )

    def _fence(
        self,
        connection: Connection,
        request: ReadRequest | BatchReadRequest,
        master_key: bytes,
        info: LedgerInfo | None,
    ) -> None:
        """Set the flag and queue its record in one step; read during the sync, and answer after both.

        The fence of a ledger already fenced is logged again: the first record may not be durable yet.
        """
        if info is None:
            info = self._loading.create(request.ledger, master_key)
        if not compare_digest(info.master_key, master_key):
            self._reads.refuse(connection, request, wrong_key_status(info))
            return
        if not info.fenced:
            self._storage.fence(info)
            self._long_polls.end_ledger(request.ledger)
        self._stats.fences += 1
        durable: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._append_fence(request.ledger, durable)
        self._reads.handle_fenced(connection, request, durable)

    def _append_fence(self, ledger: LedgerId, durable: "asyncio.Future[BaseException | None]") -> None:
        def done(error: BaseException | None) -> None:
            if error is None and self._loading.log_key_again(ledger):
                self._journal.append_fence(ledger, done)
            elif not durable.done():
                # A result, not an exception: possibly no task is left to retrieve it.
                durable.set_result(error)

        self._journal.append_fence(ledger, done)
