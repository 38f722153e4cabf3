"""Joins a client's WebSocket with one of a live broker: every broker serves every topic.

ask      a broker, with the client's own credentials; the next one if it does not accept connections
refused  the client gets the status and the reason of the broker
joined   texts, pings and pongs pass in both directions, in order
end      the side that is left is closed with the code and the reason of the other one
"""

import asyncio
import logging

import aiohttp
from aiohttp import WSMsgType, web
from multidict import CIMultiDict
from yarl import URL

from quire_bookie.admin.answers import RefusedError, failure
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import QuireError
from quire_broker import limits
from quire_broker.proxy.forwarding import BrokerHttp
from quire_broker.proxy.parts import ProxyParts
from quire_broker.security.credentials import PASSED_ON, Client

log = logging.getLogger("quire.proxy")
_CHECKED_HERE = ("origin", "sec-fetch-", "sec-websocket-")
"""Beginnings of headers that concern the connection of the client to the proxy."""
_ABNORMAL = 1006
_NO_CODE = (None, 1005)
Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(frozen=True, slots=True)
class _End:
    """How a side ended: what the other one is closed with."""

    code: int
    reason: bytes = b""


_STOPS = _End(aiohttp.WSCloseCode.GOING_AWAY, b"the proxy stops")


class _RefusedByBrokerError(Exception):
    """A broker answered the handshake with another status than 101."""

    def __init__(self, status: int, body: bytes, kind: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.body, self.kind = status, body, kind


class BrokerSockets:
    """Owns the joined WebSockets of a proxy. End them with `close`."""

    def __init__(self, parts: ProxyParts, http: BrokerHttp) -> None:
        self._parts = parts
        self._http = http
        self._session: aiohttp.ClientSession | None = None
        self._seats = 0
        self._clients: set[web.WebSocketResponse] = set()
        self._stopped = False

    async def join(self, request: web.Request, client: Client | None) -> web.StreamResponse:
        """Serve a client until either side ends. `client`: whose role was proved; None without authentication.

        RefusedError: the request opens no WebSocket, or cannot be passed on.
        """
        if request.method != "GET" or not web.WebSocketResponse().can_prepare(request).ok:
            raise RefusedError(400, "this path serves WebSockets: connect with a WebSocket client")
        if client is not None and client.method not in PASSED_ON:
            raise RefusedError(403, "a WebSocket through a proxy needs the client's own token or password: send one")
        if self._stopped:
            raise RefusedError(503, "the proxy stops: connect again")
        sessions_max = self._parts.limits.websockets_max
        if self._seats >= sessions_max:
            raise RefusedError(503, f"{self._seats} WebSockets are open (webSocketMaxSessions): try again")
        self._seats += 1
        try:
            return await self._join(request, client)
        finally:
            self._seats -= 1

    async def _join(self, request: web.Request, client: Client | None) -> web.StreamResponse:
        stats = self._parts.stats
        try:
            broker = await self._connect(request, client)
        except _RefusedByBrokerError as error:
            return web.Response(status=error.status, body=error.body, headers={"Content-Type": error.kind})
        except (aiohttp.ClientError, OSError, TimeoutError, QuireError) as error:
            stats.http_failures += 1
            reason = str(error) or f"no response in {self._parts.limits.http_timeout_s:g} s"
            log.warning("WebSocket of %s: no broker answers: %s", request.remote, reason)
            return failure(502, f"no broker answers: {reason}")
        socket = web.WebSocketResponse(
            autoping=False,
            compress=False,
            max_msg_size=limits.PROXY_SOCKET_TEXT_BYTES_MAX,
            timeout=limits.CLOSE_FLUSH_S,
        )
        try:
            await socket.prepare(request)
            stats.websockets += 1
            self._clients.add(socket)
            end = _STOPS if self._stopped else await _exchanged(socket, broker)
            if self._stopped:
                end = _STOPS  # it came while the frames passed
            await asyncio.gather(_closed(socket, end), _closed(broker, end))
            return socket
        finally:
            self._clients.discard(socket)
            await broker.close()

    async def _connect(self, request: web.Request, client: Client | None) -> aiohttp.ClientWebSocketResponse:
        headers = await self._http.headers(request, client)
        for name in [name for name in headers if name.lower().startswith(_CHECKED_HERE)]:
            headers.popall(name, None)
        bases = [broker.web for broker in self._parts.book.brokers() if broker.web]
        if not bases:
            raise RefusedError(503, "the proxy knows no broker with a port for HTTP")
        for number, base in enumerate(bases, 1):
            url = URL(base + request.rel_url.raw_path_qs, encoded=True)
            try:
                return await self._open(url, headers)
            except aiohttp.ClientConnectorError as error:
                if number == len(bases):
                    raise
                log.info("another broker is asked: %s", error)
        raise AssertionError("the last broker returns or raises")

    async def _open(self, url: URL, headers: CIMultiDict[str]) -> aiohttp.ClientWebSocketResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                raise_for_status=_require_upgrade,
            )
        context = await self._parts.connector.tls_context() if url.scheme == "https" else None
        async with asyncio.timeout(self._parts.limits.http_timeout_s):
            return await self._session.ws_connect(
                url,
                headers=headers,
                ssl=context if context is not None else True,
                autoping=False,
                compress=0,
                max_msg_size=limits.PROXY_SOCKET_MESSAGE_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=limits.CLOSE_FLUSH_S),
            )

    async def stop(self, _: object = None) -> None:
        """Close the WebSockets of all clients, and join no more."""
        self._stopped = True
        await asyncio.gather(*(_closed(one, _STOPS) for one in list(self._clients)))

    async def close(self, _: object = None) -> None:
        """Close the connections to brokers."""
        if self._session is not None:
            await self._session.close()


async def _require_upgrade(answer: aiohttp.ClientResponse) -> None:
    """Raise _RefusedByBrokerError, with the beginning of its body, for a response that is no WebSocket."""
    if answer.status != 101:
        body = await answer.content.read(limits.PROXY_SOCKET_REFUSAL_BYTES_MAX)
        raise _RefusedByBrokerError(answer.status, body, answer.headers.get("Content-Type", "text/plain"))


async def _exchanged(client: Socket, broker: Socket) -> _End:
    """Pass on what both sides send until one of them ends; return how."""
    passing = [asyncio.create_task(_passed(client, broker)), asyncio.create_task(_passed(broker, client))]
    try:
        done, _ = await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


async def _passed(source: Socket, sink: Socket) -> _End:
    """Pass on the frames of one side until it ends, or the other takes none for a while."""
    while True:
        frame = await source.receive()
        try:
            async with asyncio.timeout(limits.PROXY_SOCKET_SEND_S):
                if frame.type is WSMsgType.TEXT:
                    await sink.send_str(frame.data)
                elif frame.type is WSMsgType.BINARY:
                    await sink.send_bytes(frame.data)
                elif frame.type is WSMsgType.PING:
                    await sink.ping(frame.data)
                elif frame.type is WSMsgType.PONG:
                    await sink.pong(frame.data)
                else:
                    return _end_of(source, frame)
        except TimeoutError:
            return _End(aiohttp.WSCloseCode.POLICY_VIOLATION, b"the other side reads too slowly")
        except ConnectionError:
            return _End(aiohttp.WSCloseCode.GOING_AWAY, b"the connection broke")


def _end_of(source: Socket, frame: aiohttp.WSMessage) -> _End:
    if frame.type is WSMsgType.CLOSE:
        return _End(int(frame.data) if frame.data else 1000, str(frame.extra or "").encode())
    code = source.close_code
    if code in _NO_CODE or code == _ABNORMAL:
        return _End(aiohttp.WSCloseCode.GOING_AWAY, b"the connection broke")
    return _End(int(code), b"")


async def _closed(socket: Socket, end: _End) -> None:
    """Close a side, unless it has ended."""
    if not socket.closed:
        await socket.close(code=end.code, message=end.reason)
