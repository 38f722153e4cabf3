"""Handles WRITE_LAC: stores explicit LACs as the writer sent them, answers once they are in the journal.

Never reads a packet beyond its ids: only writer and readers use the digest.
"""

import asyncio
from functools import partial
from hmac import compare_digest

from quire_bookie.limits import EXPLICIT_LAC_BYTES_MAX, MASTER_KEY_BYTES_MAX
from quire_bookie.model import EntryId
from quire_bookie.server.requests.condition import Condition
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ledger_loading import LedgerLoading, wrong_key_status
from quire_bookie.server.requests.long_polls import LongPolls
from quire_bookie.server.requests.ports import JournalPort, StoragePort
from quire_bookie.server.requests.request_bound import RequestBound
from quire_bookie.server.settings import BookieStats
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import Status, WriteLacRequest

_LAC_PACKET_BYTES_MIN = 16


class ExplicitLacs:
    """Answers WRITE_LAC."""

    def __init__(
        self,
        journal: JournalPort,
        storage: StoragePort,
        stats: BookieStats,
        condition: Condition,
        loading: LedgerLoading,
        long_polls: LongPolls,
        bound: RequestBound,
    ) -> None:
        self._journal = journal
        self._storage = storage
        self._stats = stats
        self._condition = condition
        self._loading = loading
        self._long_polls = long_polls
        self._bound = bound
        self._loop = asyncio.get_running_loop()

    def handle(self, connection: Connection, request: WriteLacRequest) -> None:
        """Store an explicit LAC, creating the ledger if necessary."""
        self._bound.count_in(connection)
        answer = partial(self._answer, connection, request)
        if self._condition.poison is not None:
            answer(Status.IO_ERROR)
        elif self._condition.read_only:
            answer(Status.READ_ONLY)
        elif (
            request.ledger < 0
            or not _LAC_PACKET_BYTES_MIN <= len(request.packet) <= EXPLICIT_LAC_BYTES_MAX
            or len(request.master_key) > MASTER_KEY_BYTES_MAX
        ):
            answer(Status.BAD_REQUEST)
        else:
            self._loading.with_ledger(request.ledger, partial(self._keep, connection, request), answer)

    def _keep(self, connection: Connection, request: WriteLacRequest, info: LedgerInfo | None) -> None:
        if info is None:
            info = self._loading.create(request.ledger, request.master_key)
        if info.deleted or not compare_digest(info.master_key, request.master_key):
            status = Status.NO_LEDGER if info.deleted else wrong_key_status(info)
            self._answer(connection, request, status)
            return
        self._storage.set_explicit_lac(info, request.packet, lac_of_packet(request.packet))
        self._long_polls.moved(info)
        done = partial(self._durable, connection, request)
        self._journal.append_explicit_lac(request.ledger, request.packet, done)

    def _durable(self, connection: Connection, request: WriteLacRequest, error: BaseException | None) -> None:
        if error is None and self._loading.log_key_again(request.ledger):
            done = partial(self._durable, connection, request)
            self._journal.append_explicit_lac(request.ledger, request.packet, done)
            return
        status = Status.OK if error is None else self._condition.journal_failure(error)
        self._answer(connection, request, status)

    def _answer(self, connection: Connection, request: WriteLacRequest, status: Status) -> None:
        self._stats.lac_writes += 1
        if status is Status.OK:
            self._stats.write_lac_seconds.observe(self._loop.time() - request.arrived_s)
        else:
            self._stats.lac_writes_failed += 1
        self._bound.count_out(connection)
        connection.send((server_v3.encode_ledger_status(request.origin, request.ledger, status),))


def lac_of_packet(packet: bytes) -> EntryId:
    """Return the LAC of an explicit LAC packet: ledger int64, LAC int64, digest."""
    return EntryId(int.from_bytes(packet[8:16], "big", signed=True))
