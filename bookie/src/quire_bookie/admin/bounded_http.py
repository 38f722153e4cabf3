"""Limits what one client can hold of an HTTP port: connections per address, and requests that never end.

    accepted            counted by address and in total. Above the limit of its address a connection is closed at once;
                        in total, the one that has been without a request for longest is closed in its place
    cannot be accepted  retried after a pause, e.g. if the process has no free file handle
    TLS handshake       within the header timeout, ten seconds at most
    first header        within the header timeout
    next header         within the header timeout of its first byte; between requests a connection may be idle
    body                within `HTTP_BODY_TIMEOUT_S` of its header
    response            no limit: a long poll may take long; its client reads within `HTTP_BODY_TIMEOUT_S`

Sits between the socket and aiohttp, which has no such limits. Must never close a connection whose request is complete.
"""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

from quire_bookie import limits
from quire_bookie.admin.unreadable import connections
from quire_bookie.env.background import Background
from quire_bookie.settings.http import HttpLimits

_log = logging.getLogger("quire.admin")


class BoundedHttp:
    """Owns the connections of one runner's ports. Call `listen` after the runner's `setup`."""

    def __init__(self, runner: web.AppRunner, bounds: HttpLimits | None = None) -> None:
        assert runner.server is not None, "setup comes first"
        self.limits = bounds or HttpLimits()
        self.make_handler: Callable[[], asyncio.Protocol] = connections(runner)
        self._by_handler: dict[object, _HttpConnection] = {}
        self._idle: dict[_HttpConnection, None] = {}
        """Connections without a complete request, by the time since which they are so."""
        self._listening: list[socket.socket] = []
        self._tasks = Background(_log)
        self._by_address: Counter[str] = Counter()
        self._open = 0
        self._refused = 0
        self._logged_s = float("-inf")
        self._watch(runner.server)

    def listen(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve on a listening socket until `close` closes it.

        Accepts sockets itself: a server of the event loop hides sockets during their handshake.
        """
        self._listening.append(listening)
        self._tasks.keep(lambda: self._accept(listening, tls), "accepting HTTP connections")

    async def close(self) -> None:
        """Stop listening and end handshakes; aiohttp ends the connections that it serves."""
        await self._tasks.close()
        for listening in self._listening:
            listening.close()

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, name = await loop.sock_accept(listening)
            except OSError as error:
                self._report(f"could not accept an HTTP connection: {error.strerror or error}")
                await asyncio.sleep(limits.ACCEPT_PAUSE_S)
                continue
            address = str(name[0]) if isinstance(name, tuple) else str(name)
            if self.admits(address):
                connection = _HttpConnection(self, address, accepted)
                self.is_idle(connection)
                self._tasks.start(self._begin(accepted, tls, connection), f"an HTTP connection of {address}")
            else:
                accepted.close()

    async def _begin(self, accepted: socket.socket, tls: ssl.SSLContext | None, connection: "_HttpConnection") -> None:
        handshake_s = min(self.limits.header_timeout_s or math.inf, limits.TLS_HANDSHAKE_TIMEOUT_S)
        options: dict[str, Any] = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": handshake_s}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **options)
        except (OSError, ssl.CertificateError) as error:
            _log.debug("the HTTP connection of %s failed to start: %s", connection.address, error)
            connection.end()
        except asyncio.CancelledError:
            connection.end()
            raise

    def _watch(self, server: Any) -> None:
        """Wrap aiohttp's callbacks, to detect complete headers and finished handlers."""
        make_request, handle = server.request_factory, server.request_handler

        def begun(message: Any, payload: Any, protocol: Any, *others: Any) -> web.BaseRequest:
            if (connection := self._by_handler.get(protocol)) is not None:
                connection.header_complete(payload)
            return cast(web.BaseRequest, make_request(message, payload, protocol, *others))

        async def handled(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return cast(web.StreamResponse, await handle(request))
            finally:
                if (connection := self._by_handler.get(request.protocol)) is not None:
                    connection.answering = False
                    self.is_idle(connection)

        server.request_factory, server.request_handler = begun, handled

    def admits(self, address: str) -> bool:
        """Count a new connection unless a limit is reached. `left` must follow when it ends."""
        reason = ""
        if 0 < self.limits.connections_per_address_max <= self._by_address.get(address, 0):
            reason = f"{self._by_address[address]} of this address are open (httpServerMaxConnectionsPerAddress)"
        elif 0 < self.limits.connections_max <= self._open and not self._make_room():
            reason = f"{self._open} with requests are open (the limit is an eighth of `ulimit -n`)"
        if reason:
            self._refused += 1
            self._report(f"refused an HTTP connection of {address}: {reason}; {self._refused} refused so far")
            return False
        self._open += 1
        self._by_address[address] += 1
        return True

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, so that idle ones keep no probe and no client out."""
        idle = next(iter(self._idle), None)
        if idle is None:
            return False
        self._refused += 1
        self._report(
            f"closed an idle HTTP connection of {idle.address} for a new one: {self._open} are open (the limit is an "
            f"eighth of `ulimit -n`); {self._refused} closed or refused so far"
        )
        idle.drop()
        return True

    def is_idle(self, connection: "_HttpConnection") -> None:
        """Note that a connection has no complete request from now on."""
        self._idle.pop(connection, None)
        if connection.is_counted:
            self._idle[connection] = None

    def is_busy(self, connection: "_HttpConnection") -> None:
        """Note that a connection has a request, or has ended."""
        self._idle.pop(connection, None)

    def left(self, address: str) -> None:
        """Uncount an admitted connection that has ended."""
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def serves(self, handler: object, connection: "_HttpConnection") -> None:
        """Report the handler's events to this connection, until `forget`."""
        self._by_handler[handler] = connection

    def forget(self, handler: object) -> None:
        """Stop reporting, because the handler's connection has ended."""
        self._by_handler.pop(handler, None)

    def _report(self, what: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= limits.CONNECTION_REFUSED_LOG_S:
            self._logged_s = now_s
            _log.warning("%s", what)


class _HttpConnection(asyncio.Protocol):
    """Protocol of one accepted socket; forwards to a handler of aiohttp."""

    def __init__(self, port: BoundedHttp, address: str, accepted: socket.socket) -> None:
        self._port = port
        self._accepted = accepted
        self.address = address
        self.is_counted = True
        self._handler: asyncio.Protocol | None = None
        """None before the end of the handshake, and after the end of the connection."""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        """Runs while the client does not read."""
        self._awaits_body = False
        self.answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start HTTP."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        self._wait(self._port.limits.header_timeout_s)
        self._handler = self._port.make_handler()
        self._port.serves(self._handler, self)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Forward data; the first bytes after a request start the timeout of the next header."""
        if self._handler is None:
            return
        if self._timer is None and not self._awaits_body:
            self._wait(self._port.limits.header_timeout_s)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more data."""
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        """The client does not read the response."""
        if self._read_timer is None:
            self._read_timer = asyncio.get_running_loop().call_later(limits.HTTP_BODY_TIMEOUT_S, self._unread)
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client resumed reading."""
        self._stop_read_timer()
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        handler, self._handler = self._handler, None
        self.end()
        if handler is not None:
            self._port.forget(handler)
            handler.connection_lost(exc)

    def end(self) -> None:
        """Uncount the connection. A second call does nothing."""
        self._stop_timer()
        self._stop_read_timer()
        if self.is_counted:
            self.is_counted = False
            self._port.is_busy(self)
            self._port.left(self.address)

    def drop(self) -> None:
        """Close the connection, also during its handshake, and uncount it now."""
        self.end()
        if self._handler is not None:
            self._transport.abort()
            return
        with contextlib.suppress(OSError):
            self._accepted.shutdown(socket.SHUT_RDWR)

    def header_complete(self, payload: Any) -> None:
        """Handle a complete request header; `payload` is the stream of the body."""
        self._stop_timer()
        self._port.is_busy(self)
        self.answering = True
        self._awaits_body = not payload.is_eof()
        if self._awaits_body:
            self._wait(limits.HTTP_BODY_TIMEOUT_S)
            payload.on_eof(self._body_complete)

    def _body_complete(self) -> None:
        self._awaits_body = False
        self._stop_timer()

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _unread(self) -> None:
        _log.info("closing an HTTP connection of %s: it reads no response", self.address)
        self._transport.abort()

    def _too_late(self, seconds: float) -> None:
        self._timer = None
        if self.answering and not self._awaits_body:
            self._wait(seconds)  # the next header arrived early; check it after the response
            return
        what = "body" if self._awaits_body else "header"
        _log.info("closing an HTTP connection of %s: no complete %s within %.0f s", self.address, what, seconds)
        self._transport.abort()
