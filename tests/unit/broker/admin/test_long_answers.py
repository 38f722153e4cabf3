"""Long answers: they are written in pieces, and a client may leave in the middle."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web

from quire_broker.admin.answers import answer_list, errors_as_json


async def test_a_client_that_leaves_in_the_middle_of_a_list_ends_it_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = asyncio.Event()

    def values() -> Iterator[str]:
        try:
            while True:
                yield "x" * 1000
        finally:
            ended.set()

    async def endless(request: web.Request) -> web.StreamResponse:
        return await answer_list(request, values())

    app = web.Application(middlewares=[errors_as_json])
    app.router.add_get("/", endless)
    runner = web.AppRunner(app, access_log=None)  # as the admin server: it cancels no handler
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).endswith(b"200 OK\r\n")
        writer.close()
        async with asyncio.timeout(30):
            await ended.wait()
            await asyncio.sleep(0.1)
    finally:
        await runner.cleanup()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
