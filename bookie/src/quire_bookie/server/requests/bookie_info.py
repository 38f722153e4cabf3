"""Answers GET_BOOKIE_INFO: the disk space and, as an extension of Quire, the ledger ids known to this bookie.

A client that creates, recovers or copies a ledger declares the ledger's token. If the bookie stores nothing of the
ledger, it stores the token and answers once that is durable: later entries belong to this token. Entries stored without
a token may belong to any ledger with that id, and never get one.
"""

from collections.abc import Callable
from functools import partial
from hmac import compare_digest

from quire_bookie.limits import MASTER_KEY_BYTES_MAX
from quire_bookie.model import LEDGER_TOKEN_BYTES_MAX, NO_ENTRY, LedgerId
from quire_bookie.server.requests.condition import Condition
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ledger_loading import LedgerLoading
from quire_bookie.server.requests.ports import StoragePort
from quire_bookie.server.requests.request_bound import RequestBound
from quire_bookie.server.settings import BookieStats
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoRequest,
    BookieInfoResponse,
    Status,
)


class BookieInfos:
    """Answers GET_BOOKIE_INFO. `disk_space` returns total and free bytes."""

    def __init__(
        self,
        storage: StoragePort,
        stats: BookieStats,
        condition: Condition,
        loading: LedgerLoading,
        bound: RequestBound,
        disk_space: Callable[[], tuple[int, int]],
    ) -> None:
        self._storage = storage
        self._stats = stats
        self._condition = condition
        self._loading = loading
        self._bound = bound
        self._disk_space = disk_space

    def handle(self, connection: Connection, request: BookieInfoRequest) -> None:
        """Answer at once, or when the state of the requested ledger is loaded."""
        self._stats.info_requests += 1
        self._bound.count_in(connection)
        if request.ledger is None:
            self._answer(connection, request, Status.OK, None)
        elif (
            request.ledger < 0
            or len(request.token or b"") > LEDGER_TOKEN_BYTES_MAX
            or len(request.master_key or b"") > MASTER_KEY_BYTES_MAX
        ):
            self._answer(connection, request, Status.BAD_REQUEST, None)
        else:
            found = partial(self._found, connection, request)
            failed = partial(self._answer, connection, request, known=None)
            self._loading.with_ledger(request.ledger, found, failed)

    def _found(self, connection: Connection, request: BookieInfoRequest, info: LedgerInfo | None) -> None:
        ledger, token, key = request.ledger, request.token, request.master_key
        assert ledger is not None
        if token and key is not None and self._takes(info, ledger, token, key):
            if self._condition.poison is not None:
                self._answer(connection, request, Status.IO_ERROR, None)
            else:
                self._loading.bind(ledger, info, key, token, partial(self._answer_bound, connection, request))
            return
        # A tombstone has no readable entries. A superfluous copy may be revived, with its token.
        own = info.token if info is not None and (info.superfluous or not info.deleted) else b""
        if token is not None and own not in (b"", token):
            self._stats.tokens_refused += 1
        # A ledger that limbo may have lost counts as known: no record proves that the id was never used here.
        known = info is not None or self._storage.is_limbo(ledger)
        self._answer(connection, request, Status.OK, known, own)

    def _takes(self, info: LedgerInfo | None, ledger: LedgerId, token: bytes, master_key: bytes) -> bool:
        """Whether to log the token: nothing of the ledger is stored, or the token is not durable yet."""
        if info is None:
            return not self._storage.is_limbo(ledger)
        if info.deleted or info.key_unknown or not compare_digest(info.master_key, master_key):
            return False
        if info.token:
            return info.dirty and info.token == token
        holds = info.last_entry != NO_ENTRY or info.last_unproven or info.limbo or info.explicit_lac is not None
        return not holds

    def _answer_bound(self, connection: Connection, request: BookieInfoRequest, error: BaseException | None) -> None:
        if error is None:
            self._answer(connection, request, Status.OK, True, request.token or b"")
        else:
            self._answer(connection, request, self._condition.journal_failure(error), None)

    def _answer(
        self,
        connection: Connection,
        request: BookieInfoRequest,
        status: Status,
        known: bool | None,
        token: bytes = b"",
    ) -> None:
        total_bytes, free_bytes = self._disk_space()
        self._bound.count_out(connection)
        response = BookieInfoResponse(
            status,
            total_bytes if request.requested & TOTAL_DISK_CAPACITY else None,
            free_bytes if request.requested & FREE_DISK_SPACE else None,
            request.origin.transaction,
            self._storage.id_report(known) if request.id_marks else None,
            token or None,
        )
        connection.send((server_v3.encode_info(response),))
