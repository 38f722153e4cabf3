"""An unreadable body is the sender's mistake: 400, on bookies and brokers."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from quire_bookie.admin.answers import errors, json_object, json_of
from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.origin import from_no_other_site
from quire_bookie.admin.serving import HttpServing
from quire_broker.admin.answers import errors_as_json, object_of
from tests.support.unreadable_requests import sent

BODIES = {
    "no gzip": (b"Content-Encoding: gzip", b"secretsecr"),
    "no UTF-8": (b"X: 1", b"\xff\xfe{"),
    "no such charset": (b"Content-Type: application/json; charset=secret", b"{}"),
    "half a letter": (b"Content-Type: application/json; charset=utf-16", b"{}x"),
    "too deep": (b"X: 1", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number of 5000 digits": (b"X: 1", b'{"a":' + b"1" * 5000 + b"}"),
    "half a letter in a text": (b"X: 1", b'{"a": ["\\ud800"]}'),
    "half a letter in a name": (b"X: 1", b'{"\\uDFFF": 1}'),
    "a list": (b"X: 1", b"[]"),
    "no JSON": (b"X: 1", b"{"),
}


@pytest.mark.parametrize("text", ['{"a": "\\ud83d\\ude00"}', '{"a": "\\\\ud800"}', '{"a": "😀"}'])
def test_valid_unicode_is_accepted(text: str) -> None:
    assert json_of(text) == json.loads(text)


@pytest.mark.parametrize(("middleware", "read"), [(errors, json_object), (errors_as_json, object_of)])
@pytest.mark.parametrize("what", sorted(BODIES))
async def test_an_unreadable_body_is_refused(
    what: str, middleware: Any, read: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(await read(request))

    app = web.Application(middlewares=[middleware])
    app.router.add_post("/", handler)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening)
    header, body = BODIES[what]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listening))
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (header, len(body)) + body)
        answer = (await reader.read()).decode()
        writer.close()
    finally:
        await serving.close()
    assert answer.split(" ")[1] == "400", answer
    assert '"reason"' in answer
    assert "secret" not in answer + caplog.text


@pytest.mark.parametrize(("middleware", "read"), [(errors, json_object), (errors_as_json, object_of)])
async def test_a_client_that_disconnects_within_its_body_causes_no_log(
    middleware: Any, read: Any, caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        began.set()
        try:
            return web.json_response(await read(request))
        finally:
            ended.set()

    app = web.Application(middlewares=[middleware])
    app.router.add_post("/", handler)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(listening))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        await began.wait()
        writer.transport.abort()
        await ended.wait()
    finally:
        await serving.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_compressed_body_is_refused_before_it_is_read() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(await json_object(request))

    app = web.Application(middlewares=[errors, from_no_other_site])
    app.router.add_post("/", handler)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 6\r\n"
    try:
        for encoding, status in (("gzip", "415"), ("deflate", "415"), ("x", "415"), ("Identity", "200")):
            body = b"[[[[[[" if status == "415" else b"{}    "
            request = head + f"Content-Encoding: {encoding}\r\n\r\n".encode() + body
            assert (await sent(port_of(listening), request)).split(" ")[1] == status
    finally:
        await serving.close()
