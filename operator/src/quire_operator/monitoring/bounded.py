"""Bounds of the operator's HTTP port: the lifetime of a connection, and their number, per address and in total.

A connection carries one request, whose response comes from memory, so one deadline covers header, response and client.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The bounds; 0 means no limit."""

    connection_s: float = 10.0
    connections_per_address_max: int = 100
    connections_max: int = 400
    """Limit of all addresses together. Above it the oldest connection is closed: a flood must not block probes."""


class BoundedHttp:
    """Creates the connections of one port, which wrap those of the HTTP library."""

    def __init__(self, make_handler: Callable[[], asyncio.Protocol], bounds: HttpBounds) -> None:
        self.make_handler = make_handler
        self.bounds = bounds
        self.by_address: Counter[str] = Counter()
        """Open connections by address."""
        self.open: dict[_Connection, None] = {}
        """Open connections, the oldest first."""

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of one connection."""
        return _Connection(self)


class _Connection(asyncio.Protocol):
    """Passes everything on to the library's handler until the deadline."""

    def __init__(self, port: BoundedHttp) -> None:
        self._port = port
        self._handler = port.make_handler()
        self._socket: asyncio.Transport
        self._address: str | None = None
        """None while the connection is not counted."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the address has too many connections."""
        socket = cast(asyncio.Transport, transport)
        address, bounds = str(socket.get_extra_info("peername")[0]), self._port.bounds
        if 0 < bounds.connections_per_address_max <= self._port.by_address[address]:
            socket.abort()
            return
        if 0 < bounds.connections_max <= len(self._port.open):
            next(iter(self._port.open)).drop()
        self._socket = socket
        self._port.open[self] = None
        self._address = address
        self._port.by_address[address] += 1
        if bounds.connection_s > 0:
            self._timer = asyncio.get_running_loop().call_later(bounds.connection_s, socket.abort)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Uncount the closed connection."""
        if self._address is None:
            return
        self._port.open.pop(self, None)
        self._port.by_address[self._address] -= 1
        if not self._port.by_address[self._address]:
            del self._port.by_address[self._address]
        if self._timer is not None:
            self._timer.cancel()
        self._handler.connection_lost(exc)

    def drop(self) -> None:
        """Close the connection, and uncount it at once."""
        self._port.open.pop(self, None)
        self._socket.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on to the handler."""
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on to the handler."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """Pass on to the handler."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass on to the handler."""
        self._handler.resume_writing()
