"""Bounds of the operator's HTTP port: how long a connection lives, and how many an address may have.

One connection carries one request, whose answer comes from memory, so one deadline covers header, answer and client.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """0: no limit."""

    connection_s: float = 10.0
    connections_per_address_max: int = 100


class BoundedHttp:
    """Makes the protocols of one port, around those of the HTTP library."""

    def __init__(self, make_handler: Callable[[], asyncio.Protocol], bounds: HttpBounds) -> None:
        self.make_handler = make_handler
        self.bounds = bounds
        self.by_address: Counter[str] = Counter()
        """Open connections."""

    def __call__(self) -> asyncio.Protocol:
        """The protocol of one connection."""
        return _Connection(self)


class _Connection(asyncio.Protocol):
    """Hands everything on to the library's handler, until its time is over."""

    def __init__(self, port: BoundedHttp) -> None:
        self._port = port
        self._handler = port.make_handler()
        self._address: str | None = None
        """None while it is not counted."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless its address has too many."""
        socket = cast(asyncio.Transport, transport)
        address, bounds = str(socket.get_extra_info("peername")[0]), self._port.bounds
        if 0 < bounds.connections_per_address_max <= self._port.by_address[address]:
            socket.abort()
            return
        self._address = address
        self._port.by_address[address] += 1
        if bounds.connection_s > 0:
            self._timer = asyncio.get_running_loop().call_later(bounds.connection_s, socket.abort)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._address is None:
            return
        self._port.by_address[self._address] -= 1
        if not self._port.by_address[self._address]:
            del self._port.by_address[self._address]
        if self._timer is not None:
            self._timer.cancel()
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """Hand on."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        self._handler.resume_writing()
