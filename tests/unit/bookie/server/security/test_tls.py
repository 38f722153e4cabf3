"""Tests of START_TLS over real sockets: as stock clients use it, refusals, and failed handshakes."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import TlsContext, client_context, server_context
from quire_bookie.limits import KIB, MIB
from quire_bookie.server.requests.connections import PAUSED_BY_ADDS
from quire_bookie.server.security.guard import Guard
from quire_bookie.settings.security import ConnectionLimitSettings
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.wire import client_v3
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from tests.support.certificates import Authority, replace
from tests.support.loops import LOOPS, run_on
from tests.unit.bookie.server.security.served import (
    ENTRY,
    FIRST,
    LEDGER,
    Client,
    Port,
    served,
    start_tls,
    v2_add,
    v2_read,
)

Scene = Callable[[Port], Awaitable[None]]
both_loops = pytest.mark.parametrize("loop", LOOPS)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return the authority that both sides trust."""
    return Authority(tmp_path)


def trusting(authority: Authority, **own: str) -> ssl.SSLContext:
    """Return a client's context."""
    return client_context(TlsFiles(trust=authority.trust, **own), check_host_name=True)


async def opened(files: TlsFiles, *, client_certificates: bool = False, refresh_s: float = 0) -> TlsContext:
    """Return a loaded server context."""
    make = partial(server_context, client_certificates=client_certificates)
    context = TlsContext(files, make, refresh_s, SystemClock())
    await context.open()
    return context


async def turns() -> None:
    """Wait some loop iterations, until bytes sent over the loopback have arrived."""
    for _ in range(50):
        await asyncio.sleep(0)


def play(
    loop: str,
    authority: Authority,
    scene: Scene,
    *,
    required: bool = False,
    client_certificates: bool = False,
    limits: ConnectionLimitSettings | None = None,
) -> Guard:
    """Serve with TLS while the scene acts; return the guard, for its counters."""
    pem = authority.issue("bookie")

    async def go() -> Guard:
        files = TlsFiles(pem.certificate, pem.key, trust=authority.trust)
        tls = await opened(files, client_certificates=client_certificates)
        guard = Guard(limits, tls=tls, tls_required=required)
        async with served(guard) as port:
            await scene(port)
        return guard

    return run_on(loop, go())


@both_loops
def test_a_v2_client_requests_tls_in_v3_and_continues_in_v2(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.start_tls(trusting(authority), transaction=77)
        answer = await client.ask_v2(v2_add())
        assert isinstance(answer, AddResponse) and answer.status is Status.OK
        answer = await client.ask_v2(v2_read())
        assert isinstance(answer, ReadResponse) and bytes(answer.data or b"") == ENTRY
        assert port.guard.stats.tls_connections_open == 1
        client.close()

    guard = play(loop, authority, scene)
    assert guard.stats.tls_handshakes == 1
    assert guard.stats.tls_handshakes_failed == 0


@both_loops
def test_a_v3_client_continues_in_v3(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.start_tls(trusting(authority))
        answer = await client.ask_v3(client_v3.read(5, LEDGER, FIRST))
        assert (answer.status, answer.readResponse.body) == (pb.EOK, ENTRY)

    play(loop, authority, scene)


@both_loops
def test_large_frames_pass_through_tls_whole_and_in_order(loop: str, authority: Authority) -> None:
    payload = bytes(range(256)) * 8192  # 2 MiB: many TLS records, read in pieces

    async def scene(port: Port) -> None:
        client = await port.client()
        await client.start_tls(trusting(authority))
        for _ in range(3):
            answer = await client.ask_v2(v2_add(payload))
            assert isinstance(answer, AddResponse) and answer.status is Status.OK
        stored = [bytes(request.run.entries[0]) for request in port.handler.requests]  # type: ignore[union-attr]
        assert stored == [ENTRY[:32] + payload] * 3

    play(loop, authority, scene)


@both_loops
def test_requests_sent_with_the_last_bytes_of_the_handshake_are_not_lost(loop: str, authority: Authority) -> None:
    """The client's last message and its first requests come in one read of the socket."""

    async def scene(port: Port) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        client = Client(reader, writer)
        await client.ask_v3(start_tls())
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        for _ in range(20):
            tls.write(v2_add())
        writer.write(outgoing.read())
        answers = b""
        while len(answers) < 20 * 28:
            incoming.write(await reader.read(65536))
            try:
                while True:
                    answers += tls.read(65536)
            except ssl.SSLWantReadError:
                continue
        assert len(answers) == 20 * 28

    play(loop, authority, scene)


def test_without_tls_start_tls_is_a_bad_request_and_the_connection_continues() -> None:
    async def go() -> None:
        async with served(Guard()) as port:
            client = await port.client()
            client.writer.write(start_tls(9) * 3)
            for _ in range(3):
                answer = pb.Response.FromString(await client.frame())
                assert (answer.status, answer.header.txnId, answer.header.operation) == (pb.EBADREQ, 9, pb.START_TLS)
                assert not answer.HasField("startTLSResponse")
            assert isinstance(await client.ask_v2(v2_read()), ReadResponse)

    run_on("asyncio", go())


@both_loops
def test_a_second_start_tls_inside_tls_is_a_bad_request(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.start_tls(trusting(authority))
        assert (await client.ask_v3(start_tls(2))).status == pb.EBADREQ
        assert (await client.ask_v3(client_v3.read(3, LEDGER, FIRST))).status == pb.EOK

    play(loop, authority, scene)


@both_loops
def test_plaintext_after_start_tls_ends_the_connection(loop: str, authority: Authority) -> None:
    """An attacker in between could inject requests that would count as the client's."""

    async def scene(port: Port) -> None:
        client = await port.client()
        client.writer.write(start_tls() + v2_add())
        assert await client.is_closed()
        assert port.handler.requests == []

    play(loop, authority, scene)


def test_no_responses_are_produced_during_a_handshake(authority: Authority) -> None:
    """A task that waits to produce some would otherwise check again in every loop iteration."""

    async def scene(port: Port) -> None:
        client = await port.client()
        (connection,) = port.open
        assert connection.takes_answers
        assert (await client.ask_v3(start_tls())).status == pb.EOK
        assert not connection.takes_answers
        await client.writer.start_tls(trusting(authority), server_hostname="localhost")
        await connection.wait_to_take_answers()
        assert connection.takes_answers
        client.writer.write(v2_read())
        assert await client.frame()

    play("asyncio", authority, scene)


@both_loops
def test_a_client_that_speaks_no_tls_after_start_tls_is_closed_and_counted(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.ask_v3(start_tls())
        client.writer.write(v2_add() * 50)
        # The server sends at most a TLS alert.
        while await client.reader.read(65536):
            pass
        await port.open.wait_until_none()

    guard = play(loop, authority, scene)
    assert (guard.stats.tls_handshakes, guard.stats.tls_handshakes_failed) == (1, 1)


@both_loops
def test_a_client_that_disconnects_during_the_handshake_leaves_no_connection(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        for _ in range(5):
            client = await port.client()
            await client.ask_v3(start_tls())
            client.close()
        await port.open.wait_until_none()
        client = await port.client()
        client.writer.write(start_tls())
        client.close()
        await port.open.wait_until_none()

    play(loop, authority, scene)


@both_loops
def test_a_stalled_handshake_times_out(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.ask_v3(start_tls())
        assert await client.is_closed()

    guard = play(loop, authority, scene, limits=ConnectionLimitSettings(handshake_timeout_s=0.1))
    assert guard.stats.tls_handshakes_failed == 1


@both_loops
def test_a_stop_during_a_handshake_ends_it(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.ask_v3(start_tls())
        for connection in list(port.open):
            connection.close_when_answered()
        assert await client.is_closed()
        await port.open.wait_until_none()

    play(loop, authority, scene)


@both_loops
def test_responses_produced_during_the_handshake_are_sent_over_tls(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.ask_v3(start_tls())
        (connection,) = port.open
        connection.unanswered += 1
        connection.send((b"\0\0\0\4late",))
        connection.pause(PAUSED_BY_ADDS)
        await turns()
        assert not client.reader._buffer  # type: ignore[attr-defined]
        await client.writer.start_tls(trusting(authority), server_hostname="localhost")
        assert await client.frame() == b"late"
        client.writer.write(v2_read())
        await turns()
        assert port.handler.requests == []
        connection.resume(PAUSED_BY_ADDS)
        assert await client.frame()

    play(loop, authority, scene)


@both_loops
def test_if_tls_is_required_no_other_request_is_answered_in_plaintext(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        answer = await client.ask_v3(client_v3.read(4, LEDGER, FIRST))
        assert (answer.status, answer.header.txnId) == (pb.EUA, 4)
        assert not answer.HasField("readResponse")
        answer = await client.ask_v3(client_v3.auth(5, "AuthDisabledPlugin", b""))
        assert answer.status == pb.EUA
        await client.start_tls(trusting(authority))
        assert (await client.ask_v3(client_v3.read(6, LEDGER, FIRST))).status == pb.EOK
        plain = await port.client()
        added = await plain.ask_v2(v2_add())
        assert isinstance(added, AddResponse) and added.status is Status.UNAUTHORIZED
        assert len(port.handler.requests) == 1

    guard = play(loop, authority, scene, required=True)
    assert guard.stats.requests_unauthorized == 2


@both_loops
def test_mutual_tls_admits_only_trusted_certificates(
    loop: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good = authority.issue("client")
    old = authority.issue("old", expired=True)
    foreign = Authority(tmp_path, "foreign").issue("stranger")

    async def scene(port: Port) -> None:
        client = await port.client()
        await client.start_tls(trusting(authority, certificate=good.certificate, key=good.key))
        assert isinstance(await client.ask_v2(v2_read()), ReadResponse)
        for pem in (old, foreign, None):
            own = {} if pem is None else {"certificate": pem.certificate, "key": pem.key}
            context = trusting(authority, **own)
            client = await port.client()
            try:
                await client.start_tls(context)
                assert await client.ask_v2(v2_read()) is None
            except (ssl.SSLError, ConnectionError):
                continue  # TLS 1.3 reports a refused client certificate only after the handshake

    guard = play(loop, authority, scene, client_certificates=True)
    assert guard.stats.tls_handshakes_failed == 3
    assert "TLS handshake with" in caplog.text


@both_loops
def test_a_client_refuses_a_bookie_whose_certificate_is_for_another_host(loop: str, authority: Authority) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        with pytest.raises(ssl.SSLCertVerificationError):
            answer = await client.ask_v3(start_tls())
            assert answer.status == pb.EOK
            await client.writer.start_tls(trusting(authority), server_hostname="elsewhere.example")
        await port.open.wait_until_none()

    play(loop, authority, scene)


@both_loops
def test_a_new_certificate_is_used_without_a_restart_and_a_bad_one_is_not(
    loop: str, authority: Authority, tmp_path: Path
) -> None:
    pem = authority.issue("bookie")

    async def served_certificate(port: Port) -> bytes:
        client = await port.client()
        await client.start_tls(trusting(authority))
        found = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(found, bytes)
        client.close()
        return found

    async def go() -> None:
        tls = await opened(TlsFiles(pem.certificate, pem.key), refresh_s=1e-9)
        async with served(Guard(tls=tls)) as port:
            first = await served_certificate(port)
            authority.issue("bookie")
            second = await served_certificate(port)
            assert second != first
            replace(pem.key, b"no key")
            assert await served_certificate(port) == second
            assert (tls.stats.loads, tls.stats.load_failures) == (2, 1)

    run_on(loop, go())


@both_loops
@pytest.mark.parametrize("size", [200 * KIB, 2 * MIB], ids=["below the limit of TLS", "above it"])
def test_plaintext_read_late_is_sent_before_tls_begins(loop: str, authority: Authority, size: int) -> None:
    """The socket holds bytes, and has perhaps paused the connection, when the TLS layer takes it over."""

    async def scene(port: Port) -> None:
        client = await port.client()
        (connection,) = port.open
        assert connection._transport is not None
        for transport in (connection._transport, client.writer.transport):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * KIB)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * KIB)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection.unanswered += 1
        connection.send((size.to_bytes(4, "big"), bytes(size)))
        connection.flush()
        client.writer.write(start_tls())
        await turns()
        assert connection._transport.get_write_buffer_size()
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await client.frame()) == size
        assert pb.Response.FromString(await client.frame()).status == pb.EOK
        await client.writer.start_tls(trusting(authority), server_hostname="localhost")
        for _ in range(2):
            connection.unanswered += 1
            connection.send((size.to_bytes(4, "big"), bytes(size)))
            assert len(await client.frame()) == size
        answer = await client.ask_v2(v2_add())
        assert isinstance(answer, AddResponse) and answer.status is Status.OK

    play(loop, authority, scene)
