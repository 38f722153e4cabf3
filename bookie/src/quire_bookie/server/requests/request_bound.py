"""Bounds the requests of one connection that wait for storage or journal: above the bound its socket pauses.

Owns the counts. Never drops a request: those of one buffer are all handled, even beyond the bound. Adds are bounded
by their bytes instead, and parked long polls by their number (see `adds` and `long_polls`).
"""

from weakref import WeakKeyDictionary

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.limits import WAITING_REQUEST_BYTES
from quire_bookie.server.requests.connections import PAUSED_BY_LOADING, PAUSED_BY_REQUESTS, Connection


class RequestBound:
    """Pauses a socket at `requests_max` waiting requests and resumes it at half of them."""

    def __init__(self, requests_max: int, memory: ConnectionMemory) -> None:
        self._memory = memory
        self._requests_max = requests_max
        self._waiting: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()

    def count_in(self, connection: Connection, requests: int = 1) -> None:
        """Count further waiting requests."""
        self._memory.hold(requests * WAITING_REQUEST_BYTES)
        count = self._waiting[connection] = self._waiting.get(connection, 0) + requests
        if count >= self._requests_max:
            connection.pause(PAUSED_BY_REQUESTS)

    def count_out(self, connection: Connection, requests: int = 1) -> None:
        """Count requests that were answered or dropped."""
        self._memory.let_go(requests * WAITING_REQUEST_BYTES)
        before = self._waiting[connection]
        count = self._waiting[connection] = before - requests
        assert count >= 0, "each request is counted out once"
        if count <= self._requests_max // 2 < before:
            connection.resume(PAUSED_BY_REQUESTS)


class ByteBound:
    """Pauses each socket that adds bytes while `bytes_max` wait; resumes all at half of that."""

    def __init__(self, bytes_max: int, memory: ConnectionMemory) -> None:
        self._memory = memory
        self._bytes_max = bytes_max
        self._waiting_bytes = 0
        self._paused: dict[Connection, None] = {}

    def count_in(self, connection: Connection, size_bytes: int) -> None:
        """Count further waiting bytes, from `connection`."""
        self._memory.hold(size_bytes)
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= self._bytes_max:
            self._paused[connection] = None
            connection.pause(PAUSED_BY_LOADING)

    def count_out(self, size_bytes: int) -> None:
        """Count bytes that no longer wait."""
        self._memory.let_go(size_bytes)
        self._waiting_bytes -= size_bytes
        assert self._waiting_bytes >= 0, "what is released was charged"
        if self._paused and self._waiting_bytes <= self._bytes_max // 2:
            paused, self._paused = self._paused, {}
            for connection in paused:
                connection.resume(PAUSED_BY_LOADING)
