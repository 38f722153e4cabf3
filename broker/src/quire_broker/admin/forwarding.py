"""Sends admin requests to the brokers that own their topics and bundles, for clients that asked another broker.

The client's token goes with the request, and the owner checks its permissions as if the client had asked there. A
broker's own certificate is never presented: its role may have more rights than the client's. A forwarded request is
never forwarded again, so two brokers that name each other end in an error, not in a loop. Time, size and number of
forwarded requests are bounded, also for each broker: one that hangs stops no request to the others.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from aiohttp import web
from yarl import URL

from quire_bookie.admin.answers import RefusedError
from quire_bookie.admin.origin import PROXIED
from quire_bookie.dataclass import dataclass
from quire_bookie.env.bounded_body import IDENTITY, read_body
from quire_bookie.env.tls import TlsContext, client_context
from quire_bookie.errors import PeerProtocolError
from quire_broker.admin.routes import ORIGINAL
from quire_broker.limits import (
    FORWARD_ANSWER_BYTES_MAX,
    FORWARD_S,
    FORWARD_SMALL_BYTES,
    FORWARDS_LARGE_MAX,
    FORWARDS_MAX,
    FORWARDS_PER_BROKER_MAX,
)
from quire_broker.server.broker import RunningBroker

FORWARDED = "Quire-Forwarded"
"""Header of a forwarded request; its value is the sender's broker id."""
_PASSED_ON = ("Authorization", PROXIED, ORIGINAL)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to another broker. `path`: encoded, with its query."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answered:
    """The response of another broker."""

    status: int
    content_type: str
    body: bytes

    def result(self) -> Any:
        """Return the decoded JSON; None without a body. RefusedError for a failure, with the owner's reason."""
        text = self.body.decode("utf-8", "replace").strip()
        try:
            value = json.loads(text) if text else None
        except ValueError:
            value = text
        if self.status < 300:
            return value
        reason = str((value.get("reason") if isinstance(value, dict) else None) or text[:200] or f"HTTP {self.status}")
        if self.status == 401:
            reason += " (brokers pass on a client's token, never its certificate: send a token, or ask the owner)"
        raise RefusedError(self.status, reason)


class Forwarding:
    """Forwards requests over connections that it keeps. End it with `close`."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._tls: TlsContext | None = None
        self._session: aiohttp.ClientSession | None = None
        self._running = asyncio.Semaphore(FORWARDS_MAX)
        self._large = asyncio.Semaphore(FORWARDS_LARGE_MAX)
        self._of_broker: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def send(self, request: web.Request, base: str, call: Call) -> Answered:
        """Send `call` to the broker at `base` with the credentials of `request`. RefusedError 503 if it is silent."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=IDENTITY, auto_decompress=False)
        headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
        headers[FORWARDED] = self._broker.broker_id
        if call.body:
            headers["Content-Type"] = "application/json"
        of_broker = self._of_broker.setdefault(base, asyncio.Semaphore(FORWARDS_PER_BROKER_MAX))
        try:
            async with asyncio.timeout(FORWARD_S), of_broker, self._running:
                tls = await self.context() if base.startswith("https:") else True
                async with self._session.request(
                    call.method,
                    URL(base + call.path, encoded=True),
                    data=call.body or None,
                    headers=headers,
                    ssl=tls,
                    allow_redirects=False,
                ) as answer:
                    return Answered(answer.status, answer.content_type, await self._body(answer))
        except (aiohttp.ClientError, PeerProtocolError, OSError, TimeoutError) as error:
            reason = str(error) or f"no response in {FORWARD_S:.0f} s"
            raise RefusedError(503, f"the broker at {base} did not answer: {reason}") from error

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        """Return the body. Few large ones are received at once, or they would fill the memory."""
        if answer.content_length is not None and answer.content_length <= FORWARD_SMALL_BYTES:
            return await read_body(answer, FORWARD_SMALL_BYTES)
        async with self._large:
            return await read_body(answer, FORWARD_ANSWER_BYTES_MAX)

    async def context(self) -> ssl.SSLContext:
        """Return the context for TLS with other brokers."""
        if self._tls is None:
            peers = self._broker.settings.access.peers
            make = partial(client_context, check_host_name=True)
            tls = TlsContext(peers.files, make, peers.refresh_s, self._broker.clock)
            await tls.open()
            self._tls = tls
        return await self._tls.current()

    async def close(self, _: object = None) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


FORWARDING = web.AppKey("forwarding", Forwarding)


class ElsewhereError(RefusedError):
    """The request belongs to the broker at `base`, and the client has already been redirected once."""

    def __init__(self, base: str) -> None:
        super().__init__(503, f"the broker at {base} owns it; send the request there")
        self.base = base


def is_forwarded(request: web.Request) -> bool:
    """Return whether another broker sent the request for its client."""
    return FORWARDED in request.headers


@web.middleware
async def forwarded_to_owner(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Let the owner answer a request that was redirected here although this broker does not own its topic."""
    try:
        return await handler(request)
    except ElsewhereError as elsewhere:
        call = Call(request.method, request.rel_url.raw_path_qs, await request.read())
        found = await request.app[FORWARDING].send(request, elsewhere.base, call)
        return web.Response(status=found.status, body=found.body or None, content_type=found.content_type)
