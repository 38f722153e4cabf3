"""Answers GET_BOOKIE_INFO: the space of the disks, and our extension, what this bookie knows of ledger ids."""

from collections.abc import Callable
from functools import partial

from quire_bookie.server.connections import Connection
from quire_bookie.server.ledger_loading import LedgerLoading
from quire_bookie.server.ports import StoragePort
from quire_bookie.server.request_bound import RequestBound
from quire_bookie.server.settings import BookieStats
from quire_bookie.storage.ledger_states import LedgerInfo
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoRequest,
    BookieInfoResponse,
    Status,
)


class BookieInfos:
    """See the module's text. `disk_space` gives total and free bytes."""

    def __init__(
        self,
        storage: StoragePort,
        stats: BookieStats,
        loading: LedgerLoading,
        bound: RequestBound,
        disk_space: Callable[[], tuple[int, int]],
    ) -> None:
        self._storage = storage
        self._stats = stats
        self._loading = loading
        self._bound = bound
        self._disk_space = disk_space

    def handle(self, connection: Connection, request: BookieInfoRequest) -> None:
        """Answer at once, or when the state of the ledger that is asked about is loaded."""
        self._stats.info_requests += 1
        self._bound.count_in(connection)
        if request.ledger is None:
            self._answer(connection, request, Status.OK, None)
        elif request.ledger < 0:
            self._answer(connection, request, Status.BAD_REQUEST, None)
        else:
            found = partial(self._found, connection, request)
            failed = partial(self._answer, connection, request, known=None)
            self._loading.with_ledger(request.ledger, found, failed)

    def _found(self, connection: Connection, request: BookieInfoRequest, info: LedgerInfo | None) -> None:
        assert request.ledger is not None
        # A ledger that limbo may have lost counts as known: no record proves that the id was never used here.
        known = info is not None or self._storage.is_limbo(request.ledger)
        self._answer(connection, request, Status.OK, known)

    def _answer(self, connection: Connection, request: BookieInfoRequest, status: Status, known: bool | None) -> None:
        total_bytes, free_bytes = self._disk_space()
        self._bound.count_out(connection)
        response = BookieInfoResponse(
            status,
            total_bytes if request.requested & TOTAL_DISK_CAPACITY else None,
            free_bytes if request.requested & FREE_DISK_SPACE else None,
            request.origin.transaction,
            self._storage.id_report(known) if request.id_marks else None,
        )
        connection.send((server_v3.encode_info(response),))
