"""Tests of authentication over real sockets: requests before and after it, timeouts, sizes, logs and counters."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import jwt
import pytest

from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import TlsContext, client_context, server_context
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.server.security.tokens import TokenAuthentication
from quire_bookie.settings.security import ConnectionLimitSettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.tokens.checks import SignedTokens, secret_algorithms
from quire_bookie.wire import client_v3
from quire_bookie.wire.client_codec import v2_auth
from quire_bookie.wire.messages import AddResponse, AuthResponse, ReadResponse, Status
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from tests.support.certificates import Authority, Pem
from tests.support.loops import LOOPS, run_on
from tests.unit.bookie.server.security.served import FIRST, LEDGER, Port, served, start_tls, v2_add, v2_read

SECRET = b"a secret that must never appear in any logs"
TOKEN = jwt.encode({"sub": "broker-7"}, SECRET, "HS256").encode()
BAD_TOKEN = jwt.encode({"sub": "intruder"}, SECRET[1:], "HS256").encode()
both_loops = pytest.mark.parametrize("loop", LOOPS)


def tokens() -> AuthProvider:
    """Return a provider of tokens signed with SECRET."""
    return TokenAuthentication(SignedTokens(SECRET, secret_algorithms(), SystemClock()))


def play(
    loop: str,
    scene: Callable[[Port], Awaitable[None]],
    provider: AuthProvider | None,
    *,
    limits: ConnectionLimitSettings | None = None,
    pem: Pem | None = None,
    trust: str = "",
    settings: ServiceSettings | None = None,
) -> Guard:
    """Serve while the scene acts; return the guard, for its counters."""

    async def go() -> Guard:
        tls = None
        if pem is not None:
            make = partial(server_context, client_certificates=bool(trust))
            tls = TlsContext(TlsFiles(pem.certificate, pem.key, trust=trust), make, 0, SystemClock())
            await tls.open()
        guard = Guard(limits, tls=tls, provider=provider)
        async with served(guard, settings) as port:
            await scene(port)
        return guard

    return run_on(loop, go())


@both_loops
def test_a_token_opens_a_v2_connection(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scene(port: Port) -> None:
        client = await port.client()
        answer = await client.ask_v2(v2_add())
        assert isinstance(answer, AddResponse) and answer.status is Status.UNAUTHORIZED
        answer = await client.ask_v2(v2_auth("token", TOKEN))
        assert answer == AuthResponse(Status.OK, "token", b"")
        answer = await client.ask_v2(v2_add())
        assert isinstance(answer, AddResponse) and answer.status is Status.OK
        assert len(port.handler.requests) == 1

    guard = play(loop, scene, tokens())
    assert (guard.stats.authenticated, guard.stats.requests_unauthorized) == (1, 1)
    assert "is authenticated as 'broker-7'" in caplog.text


def test_a_token_opens_a_v3_connection_and_later_requests_in_the_same_buffer_pass() -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        before, after = client_v3.read(1, LEDGER, FIRST), client_v3.read(3, LEDGER, FIRST)
        client.writer.write(before + client_v3.auth(2, "token", TOKEN) + after + after)
        statuses = [pb.Response.FromString(await client.frame()).status for _ in range(4)]
        assert statuses == [pb.EUA, pb.EOK, pb.EOK, pb.EOK]

    play("asyncio", scene, tokens())


def test_a_second_authentication_is_answered_as_by_a_bookie_without_authentication() -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        await client.ask_v2(v2_auth("token", TOKEN))
        assert await client.ask_v2(v2_auth("token", TOKEN)) == AuthResponse(Status.OK, "AuthDisabledPlugin", b"")

    play("asyncio", scene, tokens())


@pytest.mark.parametrize("generation", [2, 3])
def test_a_bad_token_is_refused_and_never_logged(generation: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scene(port: Port) -> None:
        client = await port.client()
        if generation == 3:
            answer = await client.ask_v3(client_v3.auth(2, "token", BAD_TOKEN))
            assert (answer.status, answer.HasField("authResponse")) == (pb.EUA, False)
        else:
            client.writer.write(v2_auth("token", BAD_TOKEN))
        assert await client.is_closed()
        assert port.handler.requests == []

    guard = play("asyncio", scene, tokens())
    assert guard.stats.authentication_failures == 1
    assert "authentication of" in caplog.text
    for secret in (BAD_TOKEN, TOKEN, SECRET):
        assert not any(part in caplog.text for part in secret.decode().split("."))


def test_repeated_failures_of_a_client_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(port: Port) -> None:
        client = await port.client()
        for transaction in range(5):
            assert (await client.ask_v3(client_v3.auth(transaction, "other", b""))).status == pb.EUA
        assert port.guard.stats.authentication_failures == 5

    caplog.set_level(logging.INFO)
    play("asyncio", scene, tokens())
    assert sum("authentication of" in record.getMessage() for record in caplog.records) == 1


def test_no_bytes_of_unauthenticated_clients_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Master keys, payloads and plugin names of such clients could be anything."""
    caplog.set_level(logging.DEBUG)
    marks = (b"MASTERKEYMASTERKEY20", b"payload-of-an-add", b"plugin\nforged line")

    async def scene(port: Port) -> None:
        client = await port.client()
        frame = v2_add(marks[1])
        await client.ask_v2(frame[:8] + marks[0] + frame[28:])
        client.writer.write(v2_auth(marks[2].decode(), TOKEN))
        assert await client.is_closed()
        client = await port.client()
        client.writer.write(b"\0\0\0\x08" + marks[0][:8])
        assert await client.is_closed()

    play("asyncio", scene, tokens())
    assert not any(mark.decode() in caplog.text for mark in marks)


@both_loops
def test_a_connection_that_does_not_authenticate_in_time_is_closed(loop: str) -> None:
    limits = ConnectionLimitSettings(unauthenticated_s=0.05)

    async def scene(port: Port) -> None:
        silent, talking, good = [await port.client() for _ in range(3)]
        await good.ask_v2(v2_auth("token", TOKEN))
        await talking.ask_v2(v2_read())
        assert await silent.is_closed()
        assert await talking.is_closed()
        assert isinstance(await good.ask_v2(v2_read()), ReadResponse)

    guard = play(loop, scene, tokens(), limits=limits)
    assert guard.stats.unauthenticated_timeouts == 2


def test_before_authentication_frames_are_small() -> None:
    limits = ConnectionLimitSettings(unauthenticated_frame_bytes_max=4096)

    async def scene(port: Port) -> None:
        client = await port.client()
        client.writer.write((5000).to_bytes(4, "big"))
        assert await client.is_closed()
        client = await port.client()
        await client.ask_v2(v2_auth("token", TOKEN))
        answer = await client.ask_v2(v2_add(bytes(100_000)))
        assert isinstance(answer, AddResponse) and answer.status is Status.OK

    play("asyncio", scene, tokens(), limits=limits)


def test_concurrent_connections_are_bounded_and_counted_down(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimitSettings(connections_max=3)

    async def scene(port: Port) -> None:
        clients = [await port.client() for _ in range(3)]
        for client in clients:
            assert await client.ask_v2(v2_read())
        for _ in range(4):
            assert await (await port.client()).is_closed()
        clients[0].close()
        while len(port.open) > 2:
            port.open._changed.clear()
            await port.open._changed.wait()
        assert await (await port.client()).ask_v2(v2_read())

    guard = play("asyncio", scene, None, limits=limits)
    assert guard.stats.connections_refused == 4
    assert caplog.text.count("maxConnections") == 1, "many refusals must not fill the log"


def test_silent_connections_are_closed_in_favour_of_a_client_that_authenticates() -> None:
    limits = ConnectionLimitSettings(connections_max=3, connections_per_address_max=0)

    async def scene(port: Port) -> None:
        proved = await port.client()
        await proved.ask_v2(v2_auth("token", TOKEN))
        silent = [await port.client() for _ in range(5)]
        late = await port.client()
        await late.ask_v2(v2_auth("token", TOKEN))
        for client in silent[:4]:
            assert await client.is_closed()
        for client in (proved, late):
            assert isinstance(await client.ask_v2(v2_read()), ReadResponse)

    guard = play("asyncio", scene, tokens(), limits=limits)
    assert guard.stats.authenticated == 2


def test_connections_of_one_address_are_bounded() -> None:
    guard = Guard(ConnectionLimitSettings(connections_max=10, connections_per_address_max=2))

    async def go() -> None:
        assert [guard.admits("a") for _ in range(3)] == [True, True, False]
        assert guard.admits("b")
        guard.left("a")
        assert guard.admits("a")
        for address in ("a", "a", "b"):
            guard.left(address)
        assert guard._by_address == {}
        unbounded = Guard(ConnectionLimitSettings(connections_max=0, connections_per_address_max=0))
        assert all(unbounded.admits("a") for _ in range(50_000))

    run_on("asyncio", go())


@both_loops
def test_a_role_in_the_certificate_opens_the_connection(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("bookie")
    allowed = authority.issue("allowed", unit="0:broker;1:cluster")

    async def scene(port: Port) -> None:
        client = await port.client()
        answer = await client.ask_v2(v2_read())
        assert isinstance(answer, ReadResponse) and answer.status is Status.UNAUTHORIZED
        client = await port.client()
        files = TlsFiles(allowed.certificate, allowed.key, trust=authority.trust)
        await client.start_tls(client_context(files, check_host_name=True))
        answer = await client.ask_v2(v2_read())
        assert isinstance(answer, ReadResponse) and answer.status is Status.OK

    guard = play(loop, scene, CertificateRoles(("broker",)), pem=pem, trust=authority.trust)
    assert guard.stats.authenticated == 1


@both_loops
@pytest.mark.parametrize("unit", ["0:guest", "broker", None])
def test_a_certificate_without_the_role_gets_eio_and_every_request_is_unauthorized(
    loop: str, unit: str | None, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pem, refused = authority.issue("bookie"), authority.issue("refused", unit=unit)

    async def scene(port: Port) -> None:
        client = await port.client()
        files = TlsFiles(refused.certificate, refused.key, trust=authority.trust)
        await client.start_tls(client_context(files, check_host_name=True), transaction=8)
        late = pb.Response.FromString(await client.frame())
        assert (late.status, late.header.operation, late.header.txnId) == (pb.EIO, pb.START_TLS, 8)
        answer = await client.ask_v3(client_v3.read(9, LEDGER, FIRST))
        assert (answer.status, answer.header.txnId) == (pb.EUA, 9)
        answer = await client.ask_v3(client_v3.auth(10, "BookieAuthZFactory", b"broker"))
        assert answer.status == pb.EUA
        assert await client.is_closed()

    guard = play(loop, scene, CertificateRoles(("broker",)), pem=pem, trust=authority.trust)
    assert (guard.stats.authenticated, guard.stats.authentication_failures) == (0, 2)


@both_loops
def test_a_token_inside_tls(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("bookie")

    async def scene(port: Port) -> None:
        client = await port.client()
        await client.start_tls(client_context(TlsFiles(trust=authority.trust), check_host_name=True))
        answer = await client.ask_v2(v2_add())
        assert isinstance(answer, AddResponse) and answer.status is Status.UNAUTHORIZED
        assert await client.ask_v2(v2_auth("token", TOKEN)) == AuthResponse(Status.OK, "token", b"")
        assert isinstance(await client.ask_v2(v2_read()), ReadResponse)
        # A stock client whose provider does not wait for TLS sends its token first.
        early = await port.client()
        early.writer.write(client_v3.auth(1, "token", TOKEN))
        assert pb.Response.FromString(await early.frame()).status == pb.EOK
        assert (await early.ask_v3(start_tls())).status == pb.EOK

    guard = play(loop, scene, tokens(), pem=pem)
    assert guard.stats.authenticated == 2
