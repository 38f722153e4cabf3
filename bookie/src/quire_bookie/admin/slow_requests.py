"""Logs requests to an admin HTTP port that took long. Streams of events and WebSocket sessions last as wanted."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from quire_bookie.admin.answers import Handler
from quire_bookie.env.slow_log import SlowLog, Value


def slow_requests(log: Callable[[], SlowLog | None]) -> Middleware:
    """Return the middleware; it must be the outermost. `log` returns None while nothing is logged."""

    @web.middleware
    async def timed(request: web.Request, handler: Handler) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        response = await handler(request)
        took_s, slow = loop.time() - began_s, log()
        is_lasting = response.status == HTTPStatus.SWITCHING_PROTOCOLS or response.content_type == "text/event-stream"
        if slow is not None and took_s >= slow.after_s and not is_lasting:
            fields: dict[str, Value] = {
                "method": request.method,
                "path": request.path,
                "status": response.status,
                "client": request.remote or "",
            }
            slow.note("admin", took_s, fields)
        return response

    return timed
