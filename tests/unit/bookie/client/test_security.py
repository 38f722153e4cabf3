"""Tests the client at a secured bookie port over real sockets: TLS, certificates, tokens, and errors of refusals."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import jwt
import pytest

from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.links.pool import ConnectionPool
from quire_bookie.client.links.single_requests import BookieSpace, ask_space
from quire_bookie.client.security import ClientSecurity
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import TlsContext, server_context
from quire_bookie.errors import BookieUnavailableError, ConfigError, LedgerError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import BookieId, Buffer
from quire_bookie.server.security.auth import AuthProvider
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.server.security.tokens import TokenAuthentication
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.security import ConnectionLimitSettings
from quire_bookie.settings.tls import ClientSecuritySettings, TlsFiles
from quire_bookie.tokens.checks import SignedTokens, secret_algorithms
from quire_bookie.wire import server_v3
from quire_bookie.wire.client_codec import v3_read
from quire_bookie.wire.messages import AuthResponse, ReadResponse, Response, Status, V3Origin
from tests.support.certificates import Authority, Pem
from tests.support.loops import LOOPS, run_on
from tests.unit.bookie.server.security.served import ENTRY, FIRST, LEDGER, Port, served

SECRET = b"a secret that must never appear in a log"
TOKEN = jwt.encode({"sub": "broker"}, SECRET, "HS256")
BOOKIE = BookieId("bookie")
Read: TypeAlias = Callable[[], Awaitable[Buffer | LedgerError]]
both_loops = pytest.mark.parametrize("loop", LOOPS)


def tokens() -> AuthProvider:
    """Return authentication by tokens signed with SECRET."""
    return TokenAuthentication(SignedTokens(SECRET, secret_algorithms(), SystemClock()))


@asynccontextmanager
async def reader(port: Port, security: ClientSecuritySettings, host: str = "localhost", v3: bool = False):  # type: ignore[no-untyped-def]
    """Yield a function that reads the entry through a separate pool, by V2 or V3."""
    pool = ConnectionPool(
        lambda _: BookieAddress(host, port.number),
        ClientSettings(connect_timeout_s=5),
        await ClientSecurity.open(security, SystemClock()),
    )

    async def read() -> Buffer | LedgerError:
        answer: asyncio.Future[Buffer | LedgerError] = asyncio.get_running_loop().create_future()
        if v3:
            response: asyncio.Future[Response | LedgerError] = asyncio.get_running_loop().create_future()
            pool.v3_link(BOOKIE).ask(lambda transaction: v3_read(transaction, LEDGER, FIRST), response.set_result)
            found = await response
            return cast(bytes, found.data) if isinstance(found, ReadResponse) else cast(LedgerError, found)
        pool.link(BOOKIE, Purpose.READ).read(LEDGER, FIRST, answer.set_result, fence_key=None, high_priority=False)
        return await answer

    try:
        yield read
    finally:
        await pool.close()


def first_answers(
    loop: str,
    security: ClientSecuritySettings,
    *,
    pem: Pem | None = None,
    trust: str = "",
    provider: AuthProvider | None = None,
    required: bool = False,
    host: str = "localhost",
    reads: int = 1,
    limits: ConnectionLimitSettings | None = None,
    v3: bool = False,
) -> list[bytes | str]:
    """Read the entry several times. Return its bytes or the error text of each read."""

    async def go() -> list[bytes | str]:
        tls = None
        if pem is not None:
            make = partial(server_context, client_certificates=bool(trust))
            tls = TlsContext(TlsFiles(pem.certificate, pem.key, trust=trust), make, 0, SystemClock())
            await tls.open()
        found: list[bytes | str] = []
        guard = Guard(limits, tls=tls, provider=provider, tls_required=required)
        async with served(guard) as port, reader(port, security, host, v3) as read:
            for _ in range(reads):
                answer = await read()
                if isinstance(answer, LedgerError):
                    assert isinstance(answer, BookieUnavailableError), answer
                    found.append(str(answer))
                else:
                    found.append(bytes(answer))
        return found

    return run_on(loop, go())


@both_loops
def test_with_tls_and_a_token(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = ClientSecuritySettings(TlsFiles(trust=authority.trust), token=TOKEN)
    answers = first_answers(loop, security, pem=authority.issue("bookie"), provider=tokens(), required=True, reads=3)
    assert answers == [ENTRY] * 3


@both_loops
@pytest.mark.parametrize("with_tls", [True, False])
def test_a_token_over_v3(loop: str, with_tls: bool, tmp_path: Path) -> None:
    """A bookie accepts no V3 requests on a connection that has used V2, so the token is sent in V3 as well."""
    authority = Authority(tmp_path)
    security = ClientSecuritySettings(TlsFiles(trust=authority.trust) if with_tls else None, token=TOKEN)
    pem = authority.issue("bookie") if with_tls else None
    assert first_answers(loop, security, pem=pem, provider=tokens(), reads=2, v3=True) == [ENTRY] * 2


@both_loops
@pytest.mark.parametrize("with_token", [True, False])
def test_a_single_request_is_secured_as_well(loop: str, with_token: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("bookie")

    async def go() -> BookieSpace:
        tls = TlsContext(
            TlsFiles(pem.certificate, pem.key), partial(server_context, client_certificates=False), 0, SystemClock()
        )
        await tls.open()
        settings = ClientSecuritySettings(TlsFiles(trust=authority.trust), token=TOKEN if with_token else "")
        async with served(Guard(tls=tls, provider=tokens(), tls_required=True)) as port:
            address = BookieAddress("localhost", port.number)
            return await ask_space(address, 5, await ClientSecurity.open(settings, SystemClock()))

    if with_token:
        assert run_on(loop, go()) == BookieSpace(free_bytes=20, total_bytes=30)
    else:
        with pytest.raises(LedgerError):
            run_on(loop, go())


@both_loops
def test_a_wrong_token_over_v3(loop: str) -> None:
    wrong = jwt.encode({"sub": "broker"}, b"another secret that is long enough", "HS256")
    (answer,) = first_answers(loop, ClientSecuritySettings(token=wrong), provider=tokens(), v3=True)
    assert isinstance(answer, str) and "refused this client's token" in answer


@both_loops
def test_with_a_certificate_that_has_the_role(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("client", unit="0:broker")
    security = ClientSecuritySettings(TlsFiles(own.certificate, own.key, trust=authority.trust))
    pem = authority.issue("bookie")
    answers = first_answers(loop, security, pem=pem, trust=authority.trust, provider=CertificateRoles(("broker",)))
    assert answers == [ENTRY]


@both_loops
def test_a_certificate_without_the_role_is_named_as_the_reason(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("client", unit="0:guest")
    security = ClientSecuritySettings(TlsFiles(own.certificate, own.key, trust=authority.trust))
    pem = authority.issue("bookie")
    (answer,) = first_answers(loop, security, pem=pem, trust=authority.trust, provider=CertificateRoles(("broker",)))
    assert isinstance(answer, str) and "certificate or its role" in answer


@both_loops
def test_an_untrusted_bookie_gets_no_token(loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    authority = Authority(tmp_path)
    foreign = Authority(tmp_path, "foreign").issue("stranger")
    elsewhere = authority.issue("elsewhere", "elsewhere.example")
    security = ClientSecuritySettings(TlsFiles(trust=authority.trust), token=TOKEN)
    for pem, words in ((foreign, "unable to get local issuer"), (elsewhere, "Hostname mismatch")):
        (answer,) = first_answers(loop, security, pem=pem, provider=tokens())
        assert isinstance(answer, str) and words in answer
    assert "authenticated" not in caplog.text
    lax = ClientSecuritySettings(TlsFiles(trust=authority.trust), check_host_name=False)
    assert first_answers(loop, lax, pem=elsewhere) == [ENTRY]


def test_no_plaintext_request_is_sent_to_a_bookie_without_tls_if_tls_is_configured(tmp_path: Path) -> None:
    security = ClientSecuritySettings(TlsFiles(trust=Authority(tmp_path).trust), token=TOKEN)
    (answer,) = first_answers("asyncio", security, provider=tokens())
    assert isinstance(answer, str) and "does not offer TLS" in answer


def test_the_connection_to_a_refused_bookie_is_closed(tmp_path: Path) -> None:
    async def go() -> None:
        security = ClientSecuritySettings(TlsFiles(trust=Authority(tmp_path).trust))
        async with served(Guard()) as port, reader(port, security) as read:
            assert isinstance(await read(), LedgerError)
            await port.open.wait_until_none()

    run_on("asyncio", go(), timeout_s=5)


def test_a_token_is_sent_as_plaintext_without_tls() -> None:
    assert first_answers("asyncio", ClientSecuritySettings(token=TOKEN), provider=tokens(), reads=2) == [ENTRY] * 2


def test_a_bookie_without_authentication_accepts_a_client_with_a_token() -> None:
    assert first_answers("asyncio", ClientSecuritySettings(token=TOKEN)) == [ENTRY]


def test_a_refused_token_is_named_as_the_reason_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bad = jwt.encode({"sub": "x"}, SECRET[::-1], "HS256")
    (answer,) = first_answers("asyncio", ClientSecuritySettings(token=bad), provider=tokens())
    assert isinstance(answer, str) and "refused this client's token" in answer
    assert not any(part in caplog.text + answer for part in bad.split("."))
    assert bad not in repr(ClientSettings(security=ClientSecuritySettings(token=bad)))


def test_another_plugin_is_named_as_the_reason() -> None:
    security = ClientSecuritySettings(token=TOKEN, plugin="riddle")
    (answer,) = first_answers("asyncio", security, provider=tokens())
    assert isinstance(answer, str) and "refused this client's token" in answer


def test_a_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(jwt.encode({"sub": "x"}, SECRET[::-1], "HS256"))

    async def go() -> None:
        security = ClientSecuritySettings(token_path=str(file))
        async with served(Guard(provider=tokens())) as port, reader(port, security) as read:
            assert isinstance(await read(), LedgerError)
            await asyncio.to_thread(file.write_text, TOKEN + "\n")
            assert bytes(await read()) == ENTRY
            await asyncio.to_thread(file.unlink)
            for connection in list(port.open):
                connection.abort()
            await port.open.wait_until_none()
            failure = await read()
            while "No such file" not in str(failure):
                failure = await read()  # the first read may still have used the connection that ended

    run_on("asyncio", go())


@both_loops
def test_a_bookie_that_closes_the_connection_or_is_silent_is_given_up(loop: str, tmp_path: Path) -> None:
    security = ClientSecuritySettings(TlsFiles(trust=Authority(tmp_path).trust))

    class Deaf(asyncio.Protocol):
        """Never responds."""

    class Rude(asyncio.Protocol):
        """Closes the connection at the first byte."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Remember the socket."""
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            """Close the connection."""
            self.transport.close()

    async def go(kind: type[asyncio.Protocol], timeout_s: float) -> str:
        server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = ConnectionPool(
            lambda _: BookieAddress("localhost", port),
            ClientSettings(connect_timeout_s=timeout_s),
            await ClientSecurity.open(security, SystemClock()),
        )
        answer: asyncio.Future[Buffer | LedgerError] = asyncio.get_running_loop().create_future()
        pool.link(BOOKIE, Purpose.READ).read(LEDGER, FIRST, answer.set_result, fence_key=None, high_priority=False)
        found = await answer
        await pool.close()
        server.close()
        assert isinstance(found, BookieUnavailableError)
        return str(found)

    assert "timed out" in run_on(loop, go(Deaf, 0.1))
    assert "closed the connection" in run_on(loop, go(Rude, 20.0))


def test_plaintext_responses_after_start_tls_are_not_accepted(tmp_path: Path) -> None:
    security = ClientSecuritySettings(TlsFiles(trust=Authority(tmp_path).trust), token=TOKEN)
    clear = server_v3.encode_start_tls(V3Origin(9, 0))
    forged = server_v3.encode_auth(V3Origin(5, 1), AuthResponse(Status.OK, "token", b""))

    class Forger(asyncio.Protocol):
        """Responds to START_TLS, and at once to the request that the client will send in TLS."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Remember the socket."""
            self.transport = cast(asyncio.Transport, transport)

        def data_received(self, data: bytes) -> None:
            """Send both responses in one buffer."""
            self.transport.write(clear + forged)

    async def go() -> str:
        server = await asyncio.get_running_loop().create_server(Forger, "127.0.0.1", 0)
        port = Port(Guard())
        port.number = server.sockets[0].getsockname()[1]
        async with reader(port, security) as read:
            answer = await read()
        server.close()
        assert isinstance(answer, BookieUnavailableError)
        return str(answer)

    assert "plaintext bytes after its response to START_TLS" in run_on("asyncio", go())


async def test_without_settings_there_is_no_security_and_invalid_settings_are_refused(tmp_path: Path) -> None:
    assert await ClientSecurity.open(ClientSecuritySettings(), SystemClock()) is None
    with pytest.raises(ConfigError, match="set only one of them"):
        ClientSecuritySettings(token="a", token_path="b")
    with pytest.raises(ConfigError, match="cannot be read"):
        await ClientSecurity.open(ClientSecuritySettings(TlsFiles(trust=str(tmp_path / "none"))), SystemClock())
