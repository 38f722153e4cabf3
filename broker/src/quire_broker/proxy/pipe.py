"""Moves bytes between a client and its broker, in both directions, without looking at them.

    get_buffer -> socket reads -> write to the other socket
                                  more than half of the bound waits: stop reading; a quarter of that: read again

Half of the bound is read at a time, so that never more than the bound waits in one direction (over TLS one read of
256 KiB more). Must never parse or change a byte.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from quire_broker.limits import CLOSE_FLUSH_S
from quire_broker.proxy.parts import ProxyStats
from quire_broker.server.connection import Connection


class _End(asyncio.BufferedProtocol):
    """One of the two sockets."""

    def __init__(self, pipe: "Pipe", buffer: memoryview) -> None:
        self._pipe = pipe
        self._stats = pipe.stats
        self._buffer = buffer
        self.transport: asyncio.Transport
        self.other: _End

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory into which the socket reads. It is used again after each read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what the socket has read."""
        self._stats.reads += 1
        self._stats.bytes += nbytes
        self.other.transport.write(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Pass on what TLS has decrypted."""
        self._stats.reads += 1
        self._stats.bytes += len(data)
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This socket does not take more: stop reading the other one."""
        self._stats.pauses += 1
        if not self.other.transport.is_closing():  # uvloop raises for a closed socket
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read the other one again."""
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other socket, after it has sent what waits."""
        self._pipe.ended(self)


class Pipe:
    """The two sockets of a client that is connected to a broker."""

    def __init__(self, stats: ProxyStats, buffer: memoryview, on_end: Callable[[], None]) -> None:
        """`buffer`: into which sockets read, as all pipes of a process may share it; `on_end`: both are closed."""
        self.stats = stats
        self._on_end = on_end
        self._client, self._broker = _End(self, buffer), _End(self, buffer)
        self._client.other, self._broker.other = self._broker, self._client
        self._high_bytes = len(buffer)
        self._open = 2
        self._timer: asyncio.TimerHandle | None = None

    def join(self, client: Connection, broker: Connection) -> None:
        """Take both sockets. PeerProtocolError if one of them is closed, or has sent bytes that were not expected."""
        broker_socket = broker.hand_over(cast(asyncio.BaseProtocol, self._broker))
        self._broker.transport = broker_socket
        try:
            self._client.transport = client.hand_over(cast(asyncio.BaseProtocol, self._client))
        except BaseException:
            self._client.transport = broker_socket
            broker_socket.abort()
            raise
        for end in (self._client, self._broker):
            end.transport.set_write_buffer_limits(high=self._high_bytes, low=self._high_bytes // 4)

    def close(self) -> None:
        """Close both sockets, after they have sent what waits; those that do not take it are dropped soon."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CLOSE_FLUSH_S, self._abort)
        for end in (self._client, self._broker):
            end.transport.close()

    def ended(self, end: _End) -> None:
        """Note that a socket is closed."""
        self._open -= 1
        if self._open:
            self.close()
        else:
            if self._timer is not None:
                self._timer.cancel()
            self._on_end()

    def _abort(self) -> None:
        for end in (self._client, self._broker):
            end.transport.abort()
