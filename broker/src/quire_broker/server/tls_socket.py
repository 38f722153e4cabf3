"""TLS on one accepted socket: bytes of TLS below, the bytes of a `Connection` above.

Outgoing bytes wait in clear, where many consumers share those of one message. They are encrypted in small parts as the
socket takes them. All of them count as memory of the connection, and a connection that stops reading stops the
socket. The TLS of event loops encrypts at once and keeps megabytes per connection out of sight.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from quire_bookie.limits import KIB, TLS_HANDSHAKE_TIMEOUT_S
from quire_bookie.model import Buffer
from quire_broker.server.connection import Connection
from quire_broker.server.seats import Seats

log = logging.getLogger("quire.broker.connection")
_PLAIN = memoryview(bytearray(256 * KIB))
"""Holds decrypted bytes until they are handed on. All connections share it: a buffer for each record of 16 KiB would
cost more than its bytes.
"""
_RECORD_BYTES = 16 * KIB
_SEALED_BYTES = 64 * KIB
"""Bytes encrypted at a time: a `MemoryBIO` never gives back the room that it once needed."""
_SOCKET_HIGH_BYTES = 128 * KIB
"""Encrypted bytes that the socket may hold."""


class TlsSocket(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of the connection that begins once the handshake has ended."""

    def __init__(self, accept: Callable[[], Connection], context: ssl.SSLContext, seats: Seats | None = None) -> None:
        """`seats`: bounds handshakes together with the connections that they become."""
        super().__init__()
        self._accept = accept
        self._seats = seats or Seats(0, 0)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._loop = asyncio.get_running_loop()
        self._below: asyncio.Transport
        self._above: Connection | None = None
        """None until the handshake has ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._closing = False
        self._unsealed: deque[memoryview] = deque()
        """Bytes still to send, in clear."""
        self._unsealed_bytes = 0
        self._socket_full = False
        self._above_paused = False
        self._high_bytes, self._low_bytes = _SOCKET_HIGH_BYTES, _SOCKET_HIGH_BYTES // 4

    # the socket calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake; a client that does not end it in time is dropped."""
        self._below = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._below.set_write_buffer_limits(high=_SOCKET_HIGH_BYTES)
        self._timer = self._loop.call_later(TLS_HANDSHAKE_TIMEOUT_S, self._fail, "the handshake takes too long")
        name = transport.get_extra_info("peername")
        self._seats.begin_handshake(self, str(name[0]) if name else "unknown")

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, or decrypt and hand on."""
        if self._closing:
            return
        self._incoming.write(data)
        try:
            if self._above is None and not self._shake_hands():
                return
            self._hand_on()
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert, which tells the client why
            self._fail(str(error))

    def eof_received(self) -> None:
        """Close: TLS has no half-open connections."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closing = True
        self._forget_unsealed()
        self._stop_timer()
        self._seats.end_handshake(self)
        if self._above is not None:
            self._above.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket is full."""
        self._socket_full = True

    def resume_writing(self) -> None:
        """It is not any more."""
        self._socket_full = False
        self._flush()
        self._push()

    # TLS

    def _shake_hands(self) -> bool:
        """Whether the handshake has ended."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._flush()
        self._stop_timer()
        self._seats.end_handshake(self)  # the session takes a seat of its own
        self._above = self._accept()
        self._above.connection_made(self)
        return True

    def _hand_on(self) -> None:
        assert self._above is not None
        ended = False
        while not self._paused and not self._closing and not ended:
            size = 0
            while size < len(_PLAIN) and not ended:
                try:
                    more = self._decrypt(_PLAIN[size:])
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLZeroReturnError:
                    more = 0
                size += more
                ended = not more
            if size:
                self._above.data_received(bytes(_PLAIN[:size]))
            if size < len(_PLAIN):
                break
        if ended:
            self.close()
        # TLS itself may have something to say, as new keys. A client that asks for it and does not read must not fill
        # the memory.
        if not self._socket_full:
            self._flush()
        elif self._outgoing.pending > _SEALED_BYTES:
            self._fail("it asks for new keys and does not read")

    def _decrypt(self, into: memoryview) -> int:
        """The bytes of a record, at most; 0 when the client has said goodbye. SSLWantReadError: there are none yet."""
        return cast(int, self._tls.read(len(into), cast(bytearray, into)))  # the type stubs know neither

    def _go_on(self) -> None:
        """Hand on the bytes that came before a pause."""
        if not self._paused and not self._closing:
            self.data_received(b"")

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, reason: str) -> None:
        log.debug("TLS with %s ends: %s", self._below.get_extra_info("peername"), reason)
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # seats ask these of a handshake

    @property
    def is_ready(self) -> bool:
        """Whether the client was let in: not before its handshake has ended."""
        return False

    def give_way(self) -> None:
        """End the handshake: another connection needs its place. Nothing happens where it has ended meanwhile."""
        if self._above is None:
            self._fail("it has not ended, and a limit of connections is reached")

    # the connection calls these

    def write(self, data: Buffer) -> None:
        """Send, encrypted."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send several buffers. They must not change any more."""
        if self._closing:
            return
        for data in list_of_data:
            self._unsealed.append(memoryview(data))
            self._unsealed_bytes += len(data)
        self._push()

    def _push(self) -> None:
        """Encrypt and send while the socket takes it; then pace the connection, or end a closed one."""
        while self._unsealed and not self._socket_full:
            part = self._unsealed.popleft()
            size = 0
            while size < len(part) and self._outgoing.pending < _SEALED_BYTES:
                size += self._tls.write(part[size : size + _RECORD_BYTES])
            if size < len(part):
                self._unsealed.appendleft(part[size:])
            self._unsealed_bytes -= size
            if not self._unsealed or self._outgoing.pending >= _SEALED_BYTES:
                self._flush()
        if not self._closing:
            self._pace()
        elif not self._unsealed:
            self._say_goodbye()

    def _pace(self) -> None:
        """Pause the connection, or have it go on, by the bytes that wait."""
        if self._above is None:
            return
        waiting_bytes = self.get_write_buffer_size()
        if not self._above_paused and waiting_bytes > self._high_bytes:
            self._above_paused = True
            self._above.pause_writing()
        elif self._above_paused and waiting_bytes <= self._low_bytes:
            self._above_paused = False
            self._above.resume_writing()

    def _forget_unsealed(self) -> None:
        self._unsealed.clear()
        self._unsealed_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peercert` is the client's certificate, checked; all else is the socket's."""
        if name == "peercert":
            return self._tls.getpeercert()
        return self._below.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """In bytes; see `get_write_buffer_size`."""
        self._high_bytes = _SOCKET_HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not sent."""
        return self._unsealed_bytes + self._below.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether the socket is read."""
        return not self._paused

    def pause_reading(self) -> None:
        """Read the socket no more."""
        if not self._paused:
            self._paused = True
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._paused:
            self._paused = False
            self._below.resume_reading()
            self._loop.call_soon(self._go_on)

    def close(self) -> None:
        """Send the buffered bytes, say goodbye, and close."""
        if not self._closing:
            self._closing = True
            if not self._unsealed:
                self._say_goodbye()

    def _say_goodbye(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError as error:  # the usual: the client's goodbye is not waited for
            log.debug("TLS with %s ends without its goodbye: %s", self.get_extra_info("peername"), error)
        self._flush()
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._forget_unsealed()
        self._stop_timer()
        self._below.abort()
