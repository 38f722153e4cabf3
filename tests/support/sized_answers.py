"""A real HTTP server whose every response is a JSON text with a given number of bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

HOST = "127.0.0.1"


@asynccontextmanager
async def sized_answers(size_bytes: int, *, announced: bool = True) -> AsyncIterator[int]:
    """Yield the port of the server. `announced`: with Content-Length; else in chunks."""
    body = b'"' + b"x" * (size_bytes - 2) + b'"'

    async def answer(request: web.Request) -> web.StreamResponse:
        if announced:
            return web.Response(body=body, content_type="application/json")
        streamed = web.StreamResponse()
        await streamed.prepare(request)
        try:
            await streamed.write(body)
            await streamed.write_eof()
        except ConnectionError:  # the client refused the rest
            return streamed
        return streamed

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
