"""TLS on one socket, of either side: the bytes of TLS below, the plaintext of a connection above.

Owns the handshake and the plaintext that waits to be sent. Outgoing bytes wait as plaintext, where the consumers of a
message share them, and are encrypted in small parts as the socket accepts them. All of them count as memory of the
connection, and a connection that pauses reading pauses the socket. Never keeps more than some records encrypted: the
TLS of event loops encrypts at once and holds megabytes per connection that no budget sees.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from quire_bookie.limits import KIB, TLS_HANDSHAKE_TIMEOUT_S
from quire_bookie.model import Buffer

_log = logging.getLogger("quire.tls")
_PLAIN: Final = memoryview(bytearray(256 * KIB))
"""Holds decrypted bytes until they are passed on. All connections share it: a buffer for each record of 16 KiB would
cost more than its bytes.
"""
_RECORD_BYTES: Final = 16 * KIB
_RECEIVED_BYTES: Final = 32 * KIB
"""Bytes passed to OpenSSL at a time: a `MemoryBIO` never releases the memory that it once needed."""
_SEALED_BYTES: Final = 64 * KIB
"""Bytes encrypted at a time, for the same reason."""
_SOCKET_HIGH_BYTES: Final = 128 * KIB
"""Encrypted bytes that the socket may hold."""


class Above(Protocol):
    """The connection that reads and writes plaintext."""

    def connection_made(self, transport: asyncio.BaseTransport, /) -> None:
        """Begin: the handshake has ended."""
        ...

    def data_received(self, data: bytes, /) -> None:
        """Receive plaintext."""
        ...

    def pause_writing(self) -> None:
        """Write no more: the peer does not read."""
        ...

    def resume_writing(self) -> None:
        """Continue."""
        ...

    def connection_lost(self, exc: Exception | None, /) -> None:
        """End: the socket is closed."""
        ...


class Handshakes(Protocol):
    """Counts the sockets whose handshake has not ended."""

    def begin_handshake(self, shaking: "TlsSocket", address: str, /) -> None:
        """Count one. It may be ended soon, to make place for others."""
        ...

    def end_handshake(self, shaking: "TlsSocket", /) -> None:
        """Forget it. A second call does nothing."""
        ...


class TlsSocket(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of the connection that begins once the handshake has ended."""

    def __init__(
        self,
        accept: Callable[[], Above],
        context: ssl.SSLContext,
        *,
        handshakes: Handshakes | None = None,
        handshake_timeout_s: float = TLS_HANDSHAKE_TIMEOUT_S,
        on_failure: Callable[[str], None] | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """`accept`: returns the connection, after the handshake. `on_failure`: called if the socket ends before.

        `server_hostname`: the host of the server to which this is the client; None: this is the server.
        """
        super().__init__()
        self._accept = accept
        self._handshakes = handshakes
        self._handshake_timeout_s = handshake_timeout_s
        self._on_failure = on_failure
        self._reason = ""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_client = server_hostname is not None
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not self._is_client, server_hostname=server_hostname
        )
        self._loop = asyncio.get_running_loop()
        self._below: asyncio.Transport
        self._above: Above | None = None
        """None until the handshake has ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._closing = self._lost = False
        self._received: deque[memoryview] = deque()
        """Bytes of TLS that wait, because the connection paused amid them."""
        self._unsealed: deque[memoryview] = deque()
        """Plaintext that is not encrypted yet."""
        self._unsealed_bytes = 0
        self._socket_full = False
        self._above_paused = False
        self._high_bytes, self._low_bytes = _SOCKET_HIGH_BYTES, _SOCKET_HIGH_BYTES // 4

    # the socket calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake; a client that does not end it in time is dropped.

        The socket may have been used before: it may hold plaintext and have paused its former protocol.
        """
        self._below = below = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        below.set_write_buffer_limits(high=0)  # from now on it pauses its protocol exactly while it holds bytes
        self._socket_full = below.get_write_buffer_size() > 0
        below.set_write_buffer_limits(high=_SOCKET_HIGH_BYTES)
        self._timer = self._loop.call_later(
            self._handshake_timeout_s, self._fail, f"it did not end in {self._handshake_timeout_s:g} s"
        )
        if self._handshakes is not None:
            name = transport.get_extra_info("peername")
            self._handshakes.begin_handshake(self, str(name[0]) if name else "unknown")
        if self._is_client:
            self._read()

    def data_received(self, data: bytes) -> None:
        """Continue the handshake, or decrypt and pass on."""
        if not self._closing:
            self._received.append(memoryview(data))
            self._read()

    def eof_received(self) -> None:
        """Close: TLS has no half-open connections."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closing = self._lost = True
        self._forget_waiting()
        self._end_handshake()
        if self._above is not None:
            self._above.connection_lost(exc)
        elif self._on_failure is not None:
            self._on_failure(self._reason or str(exc or "the client closed the connection"))

    def pause_writing(self) -> None:
        """The socket is full."""
        self._socket_full = True

    def resume_writing(self) -> None:
        """The socket accepts data again."""
        self._socket_full = False
        self._flush()
        self._push()

    # TLS

    def _read(self) -> None:
        try:
            if self._above is not None or self._shake_hands():
                self._pass_on()
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert, which tells the client why
            self._fail(str(error))

    def _feed(self) -> bool:
        """Pass some of the received bytes to OpenSSL. False: there are none."""
        if not self._received:
            return False
        first = self._received[0]
        self._incoming.write(first[:_RECEIVED_BYTES])
        if len(first) > _RECEIVED_BYTES:
            self._received[0] = first[_RECEIVED_BYTES:]
        else:
            self._received.popleft()
        return True

    def _shake_hands(self) -> bool:
        """Whether the handshake has ended."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._feed():
                    return False
        self._flush()
        self._end_handshake()  # a session is counted separately
        self._above = self._accept()
        self._above.connection_made(self)
        return True

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handshakes is not None:
            self._handshakes.end_handshake(self)

    def _pass_on(self) -> None:
        assert self._above is not None
        ended = False
        while not self._paused and not self._closing and not ended:
            size = 0
            while size < len(_PLAIN) and not ended:
                try:
                    more = self._decrypt(_PLAIN[size:])
                except ssl.SSLWantReadError:
                    if not self._feed():
                        break
                    continue
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
        # TLS itself may have data to send, e.g. new keys. A client that requests them and does not read must not fill
        # the memory.
        if not self._socket_full:
            self._flush()
        elif self._outgoing.pending > _SEALED_BYTES:
            self._fail("it requests new keys and does not read")

    def _decrypt(self, into: memoryview) -> int:
        """Read plaintext, at most one record; 0 at the end that the client announced. SSLWantReadError: none yet."""
        return cast(int, self._tls.read(len(into), cast(bytearray, into)))  # the type stubs know neither

    def _continue_reading(self) -> None:
        """Pass on the bytes that arrived before a pause."""
        if not self._paused and not self._closing:
            self._read()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, reason: str) -> None:
        self._reason = reason
        _log.debug("TLS with %s ends: %s", self._below.get_extra_info("peername"), reason)
        self.abort()

    # `Handshakes` may call these

    @property
    def is_ready(self) -> bool:
        """Whether the client was admitted: not before its handshake has ended."""
        return False

    def give_way(self) -> None:
        """End the handshake: another connection needs its place. Does nothing if it has ended meanwhile."""
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
        """Encrypt and send while the socket accepts it; then pause or resume the connection, or end a closed one."""
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
            self._loop.call_soon(self._end_tls)  # a socket must not be closed while it calls us

    def _pace(self) -> None:
        """Pause or resume the connection, by the bytes that wait."""
        if self._above is None:
            return
        waiting_bytes = self.get_write_buffer_size()
        if not self._above_paused and waiting_bytes > self._high_bytes:
            self._above_paused = True
            self._above.pause_writing()
        elif self._above_paused and waiting_bytes <= self._low_bytes:
            self._above_paused = False
            self._above.resume_writing()

    def _forget_waiting(self) -> None:
        self._received.clear()
        self._unsealed.clear()
        self._unsealed_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the verified certificate of the client for `peercert`, else what the socket returns."""
        if name == "peercert":
            return self._tls.getpeercert()
        return self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass plaintext to another connection from now on, which must be `Above`."""
        self._above = cast(Above, protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the connection is paused and resumed, in bytes; see `get_write_buffer_size`."""
        self._high_bytes = _SOCKET_HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the socket has not sent."""
        return self._unsealed_bytes + self._below.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._closing or self._below.is_closing()

    def is_reading(self) -> bool:
        """Whether the socket is read."""
        return not self._paused

    def pause_reading(self) -> None:
        """Stop reading the socket."""
        if not self._paused:
            self._paused = True
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        if self._paused:
            self._paused = False
            self._below.resume_reading()
            self._loop.call_soon(self._continue_reading)

    def close(self) -> None:
        """Send the waiting bytes, announce the end, and close."""
        if not self._closing:
            self._closing = True
            self._received.clear()
            if not self._unsealed:
                self._end_tls()

    def _end_tls(self) -> None:
        if self._below.is_closing():
            return
        try:
            self._tls.unwrap()
        except ssl.SSLError as error:  # the usual: the client's end is not waited for
            _log.debug("TLS with %s ends without the client's end: %s", self.get_extra_info("peername"), error)
        self._flush()
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        if not self._lost:
            self._closing = True
            self._forget_waiting()
            self._end_handshake()
            self._below.abort()
