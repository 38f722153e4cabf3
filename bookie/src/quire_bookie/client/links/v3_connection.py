"""One connection to one bookie over protocol V3, for what V2 lacks: LACs, long polls, deferred adds and forces.

Responses are matched by transaction, so that a late response is harmless and an overdue request fails alone. Converts
adds from V2 frames to V3 adds with DEFERRED_SYNC, so that the add pipeline is the same for both. Everything else is as
in the V2 connection. Not on the hot path.
"""

from quire_bookie.client.links.bookie_link import AddSink, BuildRequest, V3Answer
from quire_bookie.client.links.connection import BookieConnection, ConnectionHooks
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire import client_v3, v2
from quire_bookie.wire.messages import AddResponse, AuthResponse, BatchReadResponse, Response

_KEY_OFFSET = v2.LENGTH_AND_HEADER.size
_ENTRY_ID_OFFSET = v2.ADD_ENTRY_OFFSET + 8


@dataclass(slots=True)
class _PendingRequest:
    answer: V3Answer
    asked_s: float
    due_s: float


class V3Connection(BookieConnection):
    """A V3 connection to one bookie. Implements `BookieLink` and `V3Link`."""

    GENERATION = 3

    def __init__(self, bookie: BookieId, settings: ClientSettings, hooks: ConnectionHooks) -> None:
        super().__init__(bookie, settings, hooks)
        self._requests: dict[int, _PendingRequest] = {}
        self._transactions = 0
        self._responded_s = float("-inf")

    def ask(self, build: BuildRequest, answer: V3Answer, timeout_s: float | None = None) -> int:
        """Send the request that `build` makes for a transaction; `answer` is called once. `timeout_s`: or as reads.

        Returns the transaction, for `forget`.
        """
        self._transactions += 1
        transaction = self._transactions
        wait_s = self._settings.read_timeout_s if timeout_s is None else timeout_s
        now_s = self._loop.time()
        self._requests[transaction] = _PendingRequest(answer, now_s, now_s + wait_s)
        self._send(build(transaction))
        return transaction

    def forget(self, transaction: int) -> None:
        """Drop the response to that transaction."""
        self._requests.pop(transaction, None)

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """See BookieLink. The adds are acknowledged before they are durable; a force makes them durable."""
        self._sinks[ledger] = self._owed[ledger] = sink
        view = memoryview(frames)
        adds: list[bytes] = []
        start = 0
        while start < len(view):
            stop = start + 4 + int.from_bytes(view[start : start + 4], "big")
            entry_bytes = view[start + v2.ADD_ENTRY_OFFSET : stop]
            key = bytes(view[start + _KEY_OFFSET : start + v2.ADD_ENTRY_OFFSET])
            entry = int.from_bytes(view[start + _ENTRY_ID_OFFSET : start + _ENTRY_ID_OFFSET + 8], "big")
            self._transactions += 1
            adds.append(client_v3.add(self._transactions, ledger, EntryId(entry), key, entry_bytes, deferred_sync=True))
            start = stop
        self._send(b"".join(adds))

    @property
    def is_busy(self) -> bool:
        """See BookieConnection."""
        return bool(self._requests) or super().is_busy

    def check_overdue(self, now_s: float) -> None:
        """Fail overdue requests; a bookie that has sent nothing since such a request was sent counts as dead."""
        overdue = [number for number, request in self._requests.items() if request.due_s <= now_s]
        if any(self._responded_s < self._requests[number].asked_s for number in overdue):
            self._break(BookieUnavailableError(f"bookie {self.bookie} did not respond to any request in time"))
            return
        for number in overdue:
            request = self._requests.pop(number, None)
            if request is not None:
                request.answer(BookieUnavailableError(f"bookie {self.bookie} did not respond in time"))
        super().check_overdue(now_s)

    def _dispatch(self, responses: list[Response]) -> None:
        self._responded_s = self._received_s
        adds: list[Response] = []
        for response in responses:
            if isinstance(response, AddResponse):
                adds.append(response)
            elif not isinstance(response, BatchReadResponse | AuthResponse) and response.transaction is not None:
                request = self._requests.pop(response.transaction, None)
                if request is not None:
                    request.answer(response)
        if adds:
            super()._dispatch(adds)

    def _fail_all(self, error: LedgerError) -> None:
        requests, self._requests = self._requests, {}
        super()._fail_all(error)
        for request in requests.values():
            request.answer(error)
