"""HTTP of one bookie: /healthz (alive), /readyz (takes adds), /metrics. Answers from memory, changes nothing."""

import asyncio
import os

from aiohttp import web

from quire_bookie.admin.readings import BookieReadings
from quire_bookie.errors import StartupError
from quire_bookie.metrics import CONTENT_TYPE, render
from quire_bookie.server.process import BookieState, RunningBookie


class BookieWeb:
    """`bind` takes the port before the bookie starts, `serve` answers for it, `close` ends."""

    def __init__(self) -> None:
        self._bookie: RunningBookie | None = None
        self._readings = BookieReadings()
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        self._server: asyncio.Server | None = None

    async def bind(self, host: str, port: int) -> int:
        """Take the port (0: a free one) and return it; StartupError when it is taken."""
        await self._runner.setup()
        factory = self._runner.server
        assert factory is not None
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(factory, host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartupError(
                f"port {port} on {host} cannot be listened on: {reason}; "
                "stop the other process or choose another --http-port"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    def serve(self, bookie: RunningBookie) -> None:
        """Answer for this bookie from now on; before, everything is 503."""
        self._bookie = bookie

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _state(self) -> BookieState | None:
        return None if self._bookie is None else self._bookie.state

    async def _health(self, _: web.Request) -> web.Response:
        state = self._state()
        if state in (BookieState.WRITABLE, BookieState.READ_ONLY):
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"{'starting' if state is None else state.value}\n")

    async def _ready(self, _: web.Request) -> web.Response:
        state = self._state()
        if state is BookieState.WRITABLE:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"{'starting' if state is None else state.value}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        now_s = asyncio.get_running_loop().time()
        text = "" if self._bookie is None else render(self._readings.of(self._bookie, now_s))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})
