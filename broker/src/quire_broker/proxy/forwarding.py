"""Forwards HTTP requests to a live broker, and its response to the client as it arrives.

The client's token goes with the request; a client that proved its role otherwise is represented by the proxy's own
credentials. `X-Original-Principal` names its role in both cases; a header of the client that names another is dropped.
Redirects to other brokers are followed here, since the client cannot reach them. Must never send a request to a host
that is not a broker.
"""

import asyncio
import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from quire_bookie.admin.answers import failure
from quire_bookie.admin.origin import PROXIED
from quire_bookie.errors import QuireError
from quire_broker.admin.forwarding import FORWARDED
from quire_broker.admin.routes import ORIGINAL
from quire_broker.proxy.parts import ProxyParts
from quire_broker.security.credentials import PASSED_ON, Client

log = logging.getLogger("quire.proxy")
_HOPS_MAX = 5
_OF_ONE_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
_OF_THE_CLIENT = _OF_ONE_HOP | {
    *("host", "content-length", "cookie", "accept-encoding", "expect"),
    *(ORIGINAL.lower(), FORWARDED.lower()),
}
"""Headers of a request that are not passed on."""


class BrokerHttp:
    """Forwards requests over connections that it keeps. End it with `close`."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self._session: aiohttp.ClientSession | None = None
        self._running = 0

    async def forward(self, request: web.Request, client: Client | None) -> web.StreamResponse:
        """Return the response of a broker. `client`: whose role was proved; None without authentication."""
        stats, bounds = self._parts.stats, self._parts.limits
        stats.http_requests += 1
        if self._running >= bounds.http_requests_max:
            stats.http_failures += 1
            return failure(503, "too many requests at once (httpProxyMaxRequests): try again")
        self._running += 1
        try:
            return await self._forward(request, client)
        except (aiohttp.ClientError, OSError, TimeoutError, QuireError) as error:
            stats.http_failures += 1
            reason = str(error) or f"no response in {bounds.http_timeout_s:g} s"
            log.warning("%s %s: no broker answers: %s", request.method, request.rel_url.raw_path, reason)
            return failure(502, f"no broker answers: {reason}")
        finally:
            self._running -= 1

    async def _forward(self, request: web.Request, client: Client | None) -> web.StreamResponse:
        body = await request.read()
        headers = await self.headers(request, client)
        bases = [broker.web for broker in self._parts.book.brokers() if broker.web]
        if not bases:
            return failure(503, "the proxy knows no broker with a port for HTTP")
        for number, base in enumerate(bases, 1):
            try:
                answer = await self._follow(request.method, base, request.rel_url.raw_path_qs, body, headers)
            except aiohttp.ClientConnectorError as error:
                if number == len(bases):
                    raise
                log.info("another broker is asked: %s", error)
                continue
            async with answer:
                return await _streamed(request, answer)
        raise AssertionError("the last broker returns or raises")

    async def _follow(
        self, method: str, base: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Send the request, and again to the brokers to which it is redirected."""
        known = {_origin(broker.web) for broker in self._parts.book.brokers()}
        url = URL(base + path, encoded=True)
        for _ in range(_HOPS_MAX):
            answer = await self._send(method, url, body, headers)
            location = answer.headers.get("Location", "")
            if answer.status not in (302, 307, 308) or not location:
                return answer
            answer.release()
            url = url.join(URL(location, encoded=True))
            if not self._is_broker(_origin(str(url)), known):
                raise aiohttp.ClientError(f"redirected to {url.host}:{url.port}, which is no registered broker")
        raise aiohttp.ClientError(f"redirected {_HOPS_MAX} times")

    def _is_broker(self, origin: tuple[str, str, int | None], known: set[tuple[str, str, int | None]]) -> bool:
        """Return whether it is the REST of a broker: a known one, or a permitted host at the scheme and port of one."""
        scheme, host, port = origin
        same_port = any((scheme, port) == (other, number) for other, _, number in known)
        return origin in known or (same_port and self._parts.targets.names(host))

    async def _send(self, method: str, url: URL, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._parts.limits.http_requests_max),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        context = await self._parts.connector.tls_context() if url.scheme == "https" else None
        async with asyncio.timeout(self._parts.limits.http_timeout_s):
            return await self._session.request(
                method,
                url,
                data=body or None,
                headers=headers,
                ssl=context if context is not None else True,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_read=self._parts.limits.http_timeout_s),
            )

    async def headers(self, request: web.Request, client: Client | None) -> CIMultiDict[str]:
        """Return the headers with which a client's request goes to a broker."""
        named = {name.strip().lower() for name in request.headers.get("Connection", "").split(",")}
        found = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in _OF_THE_CLIENT | named
        )
        found["Accept-Encoding"] = "identity"
        if request.remote:
            found.add("X-Forwarded-For", request.remote)
        if client is None:
            return found
        found[ORIGINAL] = client.role
        if client.method not in PASSED_ON:
            found.popall("Authorization", None)
            found.popall(PROXIED, None)
            if own := await self._parts.connector.authorization():
                found["Authorization"] = own
        return found

    async def close(self, _: object = None) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port


async def _streamed(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Send the response of a broker as it arrives: at most one piece waits for a client that reads slowly."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    named = {name.strip().lower() for name in answer.headers.get("Connection", "").split(",")}
    for name, value in answer.headers.items():
        if name.lower() not in _OF_ONE_HOP | named:
            response.headers.add(name, value)
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        # Its status is sent already: only the end of the connection tells the client that something is missing.
        log.warning("%s %s: the response broke off: %s", request.method, request.rel_url.raw_path, error)
        if request.transport is not None:
            request.transport.abort()
    return response
