"""A request that is not valid HTTP is refused: neither response nor log contains a part of it."""

import aiohttp
import pytest
from aiohttp import web

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.serving import HttpServing
from tests.support.unreadable_requests import check_refusals, sent


async def metrics(_: web.Request) -> web.Response:
    return web.Response(text="counted\n")


async def test_the_port_of_a_bookie_shows_and_logs_no_token_of_such_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = web.Application()
    app.router.add_get("/metrics", metrics)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening)
    try:
        await check_refusals(port_of(listening), caplog)
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": "Bearer " + "x" * 8000}
            async with session.get(f"http://127.0.0.1:{port_of(listening)}/metrics", headers=headers) as answer:
                assert (answer.status, await answer.text()) == (200, "counted\n")
    finally:
        await serving.close()


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nno gzip..",
        b"Content-Encoding: deflate\r\nContent-Length: 9\r\n\r\n[[[[[[[[[",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nno chunk\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
async def test_an_unreadable_body_that_no_handler_reads_causes_no_log(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = web.Application()
    app.router.add_put("/metrics", metrics)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening)
    try:
        head = b"PUT /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        await sent(port_of(listening), head + body)
    finally:
        await serving.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_failure_of_a_handler_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise ValueError("a defect")

    app = web.Application()
    app.router.add_get("/", broken)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port_of(listening)}/") as answer,
        ):
            assert answer.status == 500
    finally:
        await serving.close()
    assert "ValueError: a defect" in caplog.text
