"""TLS below a connection, against the TLS of the standard library on real sockets."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.env import tls_socket
from quire_bookie.env.tls import common_name
from quire_bookie.env.tls_socket import TlsSocket
from quire_bookie.limits import MIB
from tests.support.certificates import Authority

HIGH_BYTES, LOW_BYTES = MIB, MIB // 4


class Above:
    """A connection that records the bytes it receives and when it must wait."""

    def __init__(self) -> None:
        self.transport: Any
        self.received = bytearray()
        self.calls: list[str] = []
        self.lost = asyncio.Event()
        self.arrived = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.arrived.set()

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    async def wait_for(self, size: int) -> None:
        while len(self.received) < size:
            self.arrived.clear()
            await self.arrived.wait()


class Server:
    """A port with TLS. `accepted`: the connections whose handshake has ended."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        pem = self.authority.issue("broker")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pem.certificate, pem.key)
        self.accepted: list[Above] = []
        self.shaken = asyncio.Event()
        """A handshake has ended here; the client's ends earlier in TLS 1.3."""
        self.failures: list[str] = []
        self.handshake_timeout_s = 10.0
        self.port = 0

    def accept(self) -> Above:
        self.accepted.append(Above())
        self.shaken.set()
        return self.accepted[-1]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Server"]:
        def make() -> TlsSocket:
            return TlsSocket(
                self.accept,
                self.context,
                handshake_timeout_s=self.handshake_timeout_s,
                on_failure=self.failures.append,
            )

        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for each in self.accepted:
                each.transport.abort()

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Above]:
        """Connect a client; return its streams and the server's end."""
        context = ssl.create_default_context(cafile=self.authority.trust)
        context.check_hostname = False
        for name, value in options.items():
            getattr(context, name)(*value)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, limit=64 * 1024)
        await self.shaken.wait()
        return reader, writer, self.accepted[-1]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path).serving() as found:
        yield found


async def test_bytes_arrive_in_order_both_ways(server: Server) -> None:
    reader, writer, above = await server.connect()
    sent = os.urandom(5 * MIB)
    writer.write(sent)
    await above.wait_for(len(sent))
    assert bytes(above.received) == sent
    answers = [sent[at : at + 100_001] for at in range(0, len(sent), 100_001)]
    above.transport.write(answers[0])
    above.transport.writelines([memoryview(answer) for answer in answers[1:]])
    assert await reader.readexactly(len(sent)) == sent
    writer.close()
    await above.lost.wait()


async def test_a_client_that_does_not_read_holds_only_what_is_counted(server: Server) -> None:
    reader, writer, above = await server.connect()
    sent = bytes(16 * MIB)
    above.transport.write(sent)
    assert above.calls == ["pause"], "once, at once"
    await asyncio.sleep(0.2)  # the system's buffers fill
    below = above.transport._below.get_write_buffer_size()
    assert 0 < below <= tls_socket._SOCKET_HIGH_BYTES + tls_socket._SEALED_BYTES + tls_socket._RECORD_BYTES
    waiting = above.transport.get_write_buffer_size()
    assert HIGH_BYTES < waiting <= len(sent) + below
    assert above.transport._outgoing.pending == 0
    assert await reader.readexactly(len(sent)) == sent
    assert above.calls == ["pause", "resume"]
    assert above.transport.get_write_buffer_size() == 0
    writer.close()


async def test_closing_sends_buffered_bytes_and_announces_the_end(server: Server) -> None:
    reader, writer, above = await server.connect()
    above.transport.write(bytes(8 * MIB))
    above.transport.close()
    above.transport.write(b"too late")
    assert len(await reader.read(-1)) == 8 * MIB, "a missing close_notify would be an error here"
    writer.close()
    await above.lost.wait()


async def test_aborting_drops_buffered_bytes(server: Server) -> None:
    _, writer, above = await server.connect()
    above.transport.write(bytes(16 * MIB))
    above.transport.abort()
    await above.lost.wait()
    assert above.transport._unsealed_bytes == 0
    writer.transport.abort()


async def test_no_bytes_are_passed_on_while_reading_is_paused(server: Server) -> None:
    _, writer, above = await server.connect()
    above.transport.pause_reading()
    sent = os.urandom(3 * MIB)
    writer.write(sent)
    await asyncio.sleep(0.2)
    assert not above.received
    assert above.transport._incoming.pending == 0, "the socket itself is not read"
    above.transport.resume_reading()
    await above.wait_for(len(sent))
    assert bytes(above.received) == sent
    writer.close()


async def test_a_pause_within_a_buffer_keeps_the_rest(server: Server) -> None:
    _, writer, above = await server.connect()
    sent = os.urandom(2 * MIB)
    take = above.data_received

    def pausing(data: bytes) -> None:
        take(data)
        above.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.001, above.transport.resume_reading)

    above.data_received = pausing  # type: ignore[method-assign]
    writer.write(sent)
    await above.wait_for(len(sent))
    assert bytes(above.received) == sent
    writer.close()


async def test_the_certificate_of_a_client_is_returned(server: Server) -> None:
    server.context.verify_mode = ssl.CERT_REQUIRED
    server.context.load_verify_locations(server.authority.trust)
    pem = server.authority.issue("viewer", unit="people")
    _, writer, above = await server.connect(load_cert_chain=(pem.certificate, pem.key))
    assert common_name(above.transport.get_extra_info("peercert")) == "viewer"
    assert above.transport.get_extra_info("peername")[0] == "127.0.0.1"
    writer.close()


async def test_a_client_without_the_required_certificate_is_refused(server: Server) -> None:
    server.context.verify_mode = ssl.CERT_REQUIRED
    server.context.load_verify_locations(server.authority.trust)
    context = ssl.create_default_context(cafile=server.authority.trust)
    context.check_hostname = False
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await reader.readexactly(1)
    writer.transport.abort()
    assert not server.accepted


async def test_bytes_that_are_not_tls_are_dropped_before_the_connection_begins(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\0\0\0\x10 not TLS, but a frame in clear")
    assert (await reader.read(-1))[:1] in (b"", b"\x15"), "at most an alert"
    writer.close()
    assert not server.accepted


async def test_a_stalled_handshake_is_ended(server: Server) -> None:
    server.handshake_timeout_s = 0.05
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x16\x03\x01")
    assert await reader.read(-1) == b""
    writer.close()
    assert not server.accepted
    assert server.failures == ["it did not end in 0.05 s"]


async def test_a_client_that_requests_new_keys_and_does_not_read_is_dropped(server: Server) -> None:
    _, writer, above = await server.connect()
    above.transport.pause_writing()
    above.transport._outgoing.write(bytes(tls_socket._SEALED_BYTES + 1))  # responses of TLS itself
    writer.write(b"x")
    await above.lost.wait()
    writer.transport.abort()


async def test_a_large_buffer_reaches_openssl_in_small_parts(server: Server) -> None:
    """A `MemoryBIO` keeps the memory of its largest content as long as the connection is open."""
    _, writer, above = await server.connect()
    sizes: list[int] = []
    bio = above.transport._incoming

    class Watched:
        def write(self, data: memoryview) -> None:
            bio.write(data)
            sizes.append(bio.pending)

    above.transport._incoming = Watched()
    received: list[int] = []
    take = above.transport.data_received

    def data_received(data: bytes) -> None:
        received.append(len(data))
        take(data)

    above.transport._below.set_protocol(_Passing(above.transport, data_received))
    writer.write(bytes(4 * MIB))
    await above.wait_for(4 * MIB)
    assert max(received) > 2 * tls_socket._RECEIVED_BYTES, "the loop reads larger buffers"
    assert max(sizes) <= tls_socket._RECEIVED_BYTES + 2 * tls_socket._RECORD_BYTES
    writer.close()
    await above.lost.wait()


class _Passing(asyncio.Protocol):
    """Passes the bytes of a socket to a function, and its end to the TLS layer."""

    def __init__(self, tls: TlsSocket, receive: Callable[[bytes], None]) -> None:
        self._tls = tls
        self._receive = receive

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tls.connection_lost(exc)


@pytest.mark.parametrize("name", ["localhost", "another.example"])
async def test_the_client_side_verifies_the_host_and_moves_large_data(server: Server, name: str) -> None:
    context = ssl.create_default_context(cafile=server.authority.trust)
    above, failures = Above(), list[str]()

    def make() -> TlsSocket:
        return TlsSocket(lambda: above, context, server_hostname=name, on_failure=failures.append)

    transport, _ = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", server.port)
    if name != "localhost":
        async with asyncio.timeout(20):
            while not failures:  # noqa: ASYNC110  the socket reports it once
                await asyncio.sleep(0.01)
        assert "Hostname mismatch" in failures[0]
        return
    async with asyncio.timeout(20):
        await server.shaken.wait()
        sent = bytes(range(256)) * 8000
        server.accepted[-1].transport.write(sent)
        while len(above.received) < len(sent):  # noqa: ASYNC110  sockets have no event for it
            await asyncio.sleep(0.01)
        assert bytes(above.received) == sent
    transport.abort()
