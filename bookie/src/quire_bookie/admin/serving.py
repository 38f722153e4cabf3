"""Serves HTTP on a socket that is already open, in plaintext or with TLS, whose certificate files it follows."""

import asyncio
import logging
import socket

from aiohttp import web

from quire_bookie.admin.bounded_http import BoundedHttp
from quire_bookie.env.background import start_background
from quire_bookie.env.tls import ServedContext
from quire_bookie.settings.http import HttpLimits

_log = logging.getLogger("quire.admin")


class HttpServing:
    """Serves the runner's application from `open` to `close`."""

    def __init__(self, runner: web.AppRunner, bounds: HttpLimits | None = None) -> None:
        self._runner = runner
        self._bounds = bounds
        self._bounded: BoundedHttp | None = None
        self._following: asyncio.Task[None] | None = None

    async def open(self, listening: socket.socket, tls: ServedContext | None = None) -> None:
        """Serve on a socket opened by `listening.listen`; it is closed with the server."""
        await self._runner.setup()
        self._bounded = BoundedHttp(self._runner, self._bounds)
        self._bounded.listen(listening, None if tls is None else tls.context)
        if tls is not None and tls.refresh_s > 0:
            self._following = start_background(tls.follow(), "TLS files of the HTTP port", _log)

    async def close(self) -> None:
        """Stop listening."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._bounded is not None:
            await self._bounded.close()
        await self._runner.cleanup()
