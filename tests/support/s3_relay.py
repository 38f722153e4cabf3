"""A faulty S3 service: a proxy between a client and the real server, on the test's own loop.

Requests are forwarded with their signatures, unless `faults` returns a fault for them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web

_NOT_PASSED = ("transfer-encoding", "content-length", "connection")


@dataclass(frozen=True, slots=True)
class Refuse:
    """Respond with this instead of forwarding the request."""

    status: int
    code: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection after this number of bytes of the body, and forward nothing."""

    after_bytes: int


Fault = Refuse | Cut | None


class S3Relay:
    """Listens from `open` on and forwards to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.faults: Callable[[str, str], Fault] = lambda method, path: None
        """Returns the fault for a method and a path with its query, or None."""
        self.seen: list[tuple[str, str]] = []
        self.ranges: list[str] = []
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """The relay's URL."""
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen on a free port."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop the relay."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def fail(self, times: int, fault: Fault, method: str = "", part: str = "") -> None:
        """Apply a fault to the next `times` requests with this method and this text in their path."""
        left = [times]

        def faults(asked: str, path: str) -> Fault:
            if left[0] > 0 and asked.startswith(method) and part in path:
                left[0] -= 1
                return fault
            return None

        self.faults = faults

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        self.seen.append((request.method, request.path_qs))
        if "Range" in request.headers:
            self.ranges.append(request.headers["Range"])
        fault = self.faults(request.method, request.path_qs)
        if isinstance(fault, Refuse):
            await request.read()
            body = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>"
            return web.Response(status=fault.status, text=body, content_type="application/xml")
        if isinstance(fault, Cut):
            await request.content.read(fault.after_bytes)
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED}
        async with self._session.request(
            request.method,
            f"http://127.0.0.1:{self.target_port}{request.raw_path}",
            headers=headers,
            data=await request.read(),
            allow_redirects=False,
        ) as found:
            kept = {name: value for name, value in found.headers.items() if name.lower() not in _NOT_PASSED}
            return web.Response(status=found.status, headers=kept, body=await found.read())
