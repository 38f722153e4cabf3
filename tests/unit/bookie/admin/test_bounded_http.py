"""Limits of the connections of one client on an HTTP port: real sockets, in plaintext and over TLS."""

import asyncio
import gc
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from quire_bookie import limits
from quire_bookie.admin.bounded_http import BoundedHttp
from quire_bookie.admin.listening import listen, port_of
from quire_bookie.settings.http import HttpLimits
from tests.support.certificates import Authority

SHORT = HttpLimits(header_timeout_s=0.2, connections_per_address_max=3)
GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy(), uvloop.EventLoopPolicy()], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Run each test on both kinds of loop: they differ in when a socket is read."""
    found: asyncio.AbstractEventLoopPolicy = request.param
    return found


@asynccontextmanager
async def served(
    bounds: HttpLimits, authority: Authority | None = None, response_bytes: int = 0
) -> AsyncIterator[tuple[Open, asyncio.Event]]:
    """Yield a function that connects, and the event that a GET waits for; a POST returns the length of its body."""
    go_on = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response(body=bytes(response_bytes)) if response_bytes else web.Response(text="done")

    async def measure(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application()
    app.router.add_get("/", wait)
    app.router.add_post("/", measure)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    bounded = BoundedHttp(runner, bounds)
    context, trusting = None, None
    if authority is not None:
        pem = authority.issue("http", "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem.certificate, pem.key)
        trusting = ssl.create_default_context(cafile=authority.trust)
    listening = listen("127.0.0.1", 0)
    port = port_of(listening)
    bounded.listen(listening, context)
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port, ssl=trusting), go_on
    finally:
        await bounded.close()
        await runner.cleanup()


async def end_of(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes received until the server closed."""
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    header = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    return (
        header.split(b"\r\n")[0] + b" " + await reader.readexactly(int(header.lower().split(b"length: ")[1].split()[0]))
    )


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET[:-2]], ids=["nothing", "half a line", "half a header"])
@pytest.mark.parametrize("tls", [False, True])
async def test_a_connection_without_a_complete_header_is_closed(tmp_path: Path, sent: bytes, tls: bool) -> None:
    async with served(SHORT, Authority(tmp_path) if tls else None) as (connect, _):
        reader, writer = await connect()
        writer.write(sent)
        assert await end_of(reader) == b""


async def test_a_stalled_handshake_is_closed(tmp_path: Path) -> None:
    async with served(SHORT, Authority(tmp_path)) as (connect, _):
        secured, writer = await connect()
        port = writer.get_extra_info("peername")[1]
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await end_of(reader) == b""
        assert await end_of(secured) == b""


@pytest.mark.parametrize("tls", [False, True])
async def test_a_response_may_take_longer_than_the_header(tmp_path: Path, tls: bool) -> None:
    async with served(SHORT, Authority(tmp_path) if tls else None) as (connect, go_on):
        reader, writer = await connect()
        writer.write(GET)
        stalled, other = await connect()
        other.write(b"GET")
        assert await end_of(stalled) == b"", "the timeout of a header has passed"
        writer.write(GET)  # the next request arrives early, and is answered too
        third, _ = await connect()
        assert await end_of(third) == b""
        go_on.set()
        assert await answer_of(reader) == b"HTTP/1.1 200 OK done"
        assert await answer_of(reader) == b"HTTP/1.1 200 OK done"


async def test_an_incomplete_later_header_is_closed_and_an_idle_connection_is_not() -> None:
    async with served(SHORT) as (connect, go_on):
        go_on.set()
        reader, writer = await connect()
        writer.write(GET)
        await answer_of(reader)
        stalled, _ = await connect()
        assert await end_of(stalled) == b"", "the timeout of a header has passed"
        writer.write(GET)
        assert await answer_of(reader) == b"HTTP/1.1 200 OK done"
        writer.write(GET[:9])
        assert await end_of(reader) == b""


async def test_a_body_has_a_separate_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    post = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 6\r\n\r\nabc"
    async with served(SHORT) as (connect, _):
        reader, writer = await connect()
        writer.write(post)
        stalled, _ = await connect()
        assert await end_of(stalled) == b"", "the timeout of a header has passed"
        writer.write(b"def")
        assert await answer_of(reader) == b"HTTP/1.1 200 OK 6"
        monkeypatch.setattr(limits, "HTTP_BODY_TIMEOUT_S", 0.2)
        writer.write(post)
        assert await end_of(reader) == b""


@pytest.mark.parametrize("tls", [False, True])
async def test_connections_of_an_address_are_counted(
    tmp_path: Path, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(HttpLimits(0, 3), Authority(tmp_path) if tls else None) as (connect, go_on):
        go_on.set()
        held = [await connect() for _ in range(3)]
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            reader, writer = await connect()
            writer.write(GET)
            await answer_of(reader)
        assert "3 of this address are open (httpServerMaxConnectionsPerAddress)" in caplog.text
        held[0][1].write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert (await end_of(held[0][0])).endswith(b"done")
        held[0][1].close()
        await held[0][1].wait_closed()
        reader, writer = await connect()
        writer.write(GET)
        assert await answer_of(reader) == b"HTTP/1.1 200 OK done"
        for _, each in held[1:]:
            each.close()


async def begin_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request whose body is missing, and wait until the server knows it."""
    writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).startswith(b"HTTP/1.1 100")


@pytest.mark.parametrize("tls", [False, True])
async def test_at_the_limit_of_all_addresses_idle_connections_make_room(
    tmp_path: Path, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = HttpLimits(0, 0, connections_max=2)
    async with served(bounds, Authority(tmp_path) if tls else None) as (connect, _):
        silent, _writer = await connect()
        busy = await connect()
        await begin_request(*busy)
        newer = await connect()
        assert await end_of(silent) == b"", "the oldest one without a request is closed"
        assert "closed an idle HTTP connection of 127.0.0.1 for a new one: 2 are open" in caplog.text
        await begin_request(*newer)
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await begin_request(*await connect())  # both have a request: the newest one is closed
        busy[1].write(b"abc")
        assert await answer_of(busy[0]) == b"HTTP/1.1 200 OK 3"
        last = await connect()
        await begin_request(*last)
        assert await end_of(busy[0]) == b"", "its request is answered: it is idle"
        for _, each in (newer, last):
            each.close()


async def test_a_stalled_handshake_makes_room(tmp_path: Path) -> None:
    async with served(HttpLimits(0, 0, connections_max=2), Authority(tmp_path)) as (connect, _):
        first = await connect()
        await begin_request(*first)
        port = first[1].get_extra_info("peername")[1]
        stalled, _writer = await asyncio.open_connection("127.0.0.1", port)
        second = await connect()
        assert await end_of(stalled) == b""
        await begin_request(*second)
        for _, each in (first, second):
            each.close()


async def test_a_client_that_reads_no_response_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_TIMEOUT_S", 0.2)
    async with served(HttpLimits(0, 0), response_bytes=64 * 1024 * 1024) as (connect, go_on):
        go_on.set()
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET)
        while not writer.transport.is_closing():
            writer.write(b"\r\n")  # a write to a connection that the server closed fails, sooner or later
            await asyncio.sleep(0.05)


async def test_a_failed_accept_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with served(HttpLimits(0, 0)) as (connect, go_on):
        go_on.set()
        client = socket.socket()
        port = (await connect())[1].get_extra_info("peername")[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        taken = every_free_handle()
        try:
            await asyncio.get_running_loop().sock_connect(setblocking(client), ("127.0.0.1", port))
            async with asyncio.timeout(30):
                while "could not accept an HTTP connection: Too many open files" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for handle in taken:
                os.close(handle)
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(GET)
        assert await answer_of(reader) == b"HTTP/1.1 200 OK done"
        assert "failed" not in caplog.text, "the accepting task continues"


def every_free_handle() -> list[int]:
    """Take the file handles below the limit of the process that objects of earlier tests have given back."""
    gc.collect()
    taken = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return taken


def setblocking(client: socket.socket) -> socket.socket:
    client.setblocking(False)
    return client
