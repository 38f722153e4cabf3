"""Clients that open connections and then say nothing: a real standalone drops them and serves the others."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.certificates import Authority
from tests.support.ports import free_ports
from tests.support.standalone import StandaloneProcess

HELD_MAX = 6
CONNECT = encode(pb.BaseCommand(type=Kind.CONNECT, connect=pb.CommandConnect(client_version="t", protocol_version=19)))
PING = encode(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TlsStandalone(StandaloneProcess):
    """One that answers over HTTPS as well."""

    https: str
    context: ssl.SSLContext


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["TlsStandalone"]:
    folder: Path = tmp_path_factory.mktemp("held")
    authority = Authority(folder)
    pem, [https] = authority.issue("http", "127.0.0.1"), free_ports(1)
    found = TlsStandalone(
        folder,
        settings=(
            "httpServerHeaderTimeoutMs=500",
            f"httpServerMaxConnectionsPerAddress={HELD_MAX}",
            f"brokerMaxConnections={HELD_MAX}",
            f"webServicePortTls={https}",
            f"tlsCertificateFilePath={pem.certificate}",
            f"tlsKeyFilePath={pem.key}",
        ),
    )
    found.https = f"https://127.0.0.1:{https}"
    found.context = ssl.create_default_context(cafile=authority.trust)
    found.start()
    yield found
    found.close()


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[Streams]]:
    """Open `count` connections, and close them at the end."""
    parts = urlsplit(url)
    found = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(count)]
    try:
        yield found
    finally:
        for _, writer in found:
            writer.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes it within 30 s; bytes that it sends until then are passed over."""
    try:
        async with asyncio.timeout(30):
            while await reader.read(4096):
                continue
    except ConnectionResetError:
        return True
    return True


async def status_of(streams: Streams) -> bytes:
    reader, writer = streams
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(30):
        header = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(header.lower().split(b"content-length: ")[1].split()[0]))
    return header[: header.index(b"\n") + 1]


async def test_half_a_header_is_dropped_and_a_whole_one_answered(server: StandaloneProcess) -> None:
    async with connections(server.http, 2) as (stalled, healthy):
        stalled[1].write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert await status_of(healthy) == b"HTTP/1.1 200 OK\r\n"
        assert await is_closed(stalled[0])
        assert await status_of(healthy) == b"HTTP/1.1 200 OK\r\n", "one that rests between requests stays"


async def test_https_is_answered_and_a_handshake_that_stops_is_dropped(server: TlsStandalone) -> None:
    async with connections(server.https, 1) as [stalled]:
        stalled[1].write(b"\x16\x03\x01")
        port = urlsplit(server.https).port
        healthy = await asyncio.open_connection("127.0.0.1", port, ssl=server.context)
        assert await status_of(healthy) == b"HTTP/1.1 200 OK\r\n"
        assert await is_closed(stalled[0])
        assert await status_of(healthy) == b"HTTP/1.1 200 OK\r\n"
        healthy[1].close()


async def test_an_address_that_holds_its_share_of_http_gets_no_more(server: StandaloneProcess) -> None:
    async with connections(server.http, HELD_MAX) as held:
        for each in held:
            assert await status_of(each) == b"HTTP/1.1 200 OK\r\n"
        async with connections(server.http, 1) as [more]:
            assert await is_closed(more[0])
    assert "httpServerMaxConnectionsPerAddress" in server.log.read_text()


async def test_silent_connections_do_not_keep_a_client_of_the_broker_out(server: StandaloneProcess) -> None:
    async with connections(server.url, 2) as let_in:
        for reader, writer in let_in:
            writer.write(CONNECT)
            assert await reader.read(4096)
        async with connections(server.url, 3 * HELD_MAX) as silent, connections(server.url, 1) as [late]:
            late[1].write(CONNECT)
            async with asyncio.timeout(30):
                assert await late[0].read(4096), "the newest client is let in"
            for reader, _ in silent[:HELD_MAX]:
                assert await is_closed(reader)
            for reader, writer in let_in:
                writer.write(PING)
                async with asyncio.timeout(30):
                    assert await reader.read(4096), "one that was let in stays"
    assert "brokerMaxConnections" in server.log.read_text()
