"""Every request of a bookie's protocols V3 and V2, sent by each kind of client to a bookie that serves on a port.

A new operation of V3 fails here until it stands in one of the groups; so does each opcode of V2 that begins to be
answered, and each operation that carries a master key.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jwt
import pytest

from quire_bookie.env.tls import client_context
from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.settings.security import AuthKind, RoleSettings, SecuritySettings, ServerTlsSettings
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.settings.tokens import TokenSettings
from quire_bookie.wire import client_codec, client_v3, v2
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddResponse, AuthResponse, BatchReadResponse, ReadResponse, Response, Status
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from tests.support.bookie_world import BookieWorld
from tests.support.certificates import Authority
from tests.unit.bookie.server.security.served import Client

SECRET = b"a secret of tests that is long enough for HS256"
LEDGER, OTHER = LedgerId(7), LedgerId(8)
"""A ledger with entry 0 and the key KEY, and one that was never created."""
KEY, WRONG_KEY = master_key(b""), master_key(b"guessed")
DIGEST = Digest(DigestType.CRC32C, b"")


def entry(number: int, ledger: LedgerId = LEDGER) -> bytes:
    """Return a complete entry."""
    payload = b"payload"
    return DIGEST.encode_entry(ledger, EntryId(number), NO_ENTRY, 7, [payload]) + payload


def signed(role: str, secret: bytes = SECRET, **claims: int) -> bytes:
    """Return a token of the role."""
    return jwt.encode({"sub": role, **claims}, secret, "HS256").encode()


def v3_of(operation: int) -> bytes:
    """Return a request that is a header alone."""
    header = pb.PacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=9)  # type: ignore[arg-type]
    body = pb.Request(header=header).SerializeToString()
    return len(body).to_bytes(4, "big") + body


V3_SERVED: dict[int, bytes] = {
    pb.ADD_ENTRY: client_v3.add(9, LEDGER, EntryId(1), KEY, entry(1)),
    pb.READ_ENTRY: client_v3.read(9, LEDGER, EntryId(0)),
    pb.WRITE_LAC: client_v3.write_lac(9, LEDGER, EntryId(0), KEY, DIGEST.encode_lac(LEDGER, EntryId(0))),
    pb.READ_LAC: client_v3.read_lac(9, LEDGER),
    pb.GET_BOOKIE_INFO: client_v3.ledger_token(9, OTHER, b"a token", KEY),
    pb.FORCE_LEDGER: client_v3.force(9, LEDGER),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: client_v3.list_entries(9, LEDGER),
}
"""Operations that succeed for admitted clients."""
V3_OF_THE_CONNECTION: dict[int, bytes] = {
    pb.AUTH: client_v3.auth(9, "token", b"no token"),
    pb.START_TLS: client_v3.start_tls(9),
}
V3_NOT_SERVED = {pb.RANGE_READ_ENTRY, pb.RANGE_ADD_ENTRY, pb.BATCH_READ_ENTRY}
"""Operations refused as bad requests. Stock clients send batch reads over V2."""
V2_SERVED: dict[int, bytes] = {
    v2.ADD: b"".join(client_codec.v2_adds(KEY, [(entry(1),)])),
    v2.READ: client_codec.v2_read(LEDGER, EntryId(0)),
    v2.BATCH_READ: client_codec.v2_batch_read(LEDGER, EntryId(0), 1, 10, 1000),
}
V2_OPCODES = {*V2_SERVED, v2.AUTH}
WITH_KEY: dict[str, bytes] = {
    "addRequest": client_v3.add(9, LEDGER, EntryId(1), WRONG_KEY, entry(1)),
    "addRequest of recovery": client_v3.add(9, LEDGER, EntryId(1), WRONG_KEY, entry(1), recovery=True),
    "addRequest of high priority": client_v3.add(9, LEDGER, EntryId(1), WRONG_KEY, entry(1), priority=100),
    "addRequest without sync": client_v3.add(9, LEDGER, EntryId(1), WRONG_KEY, entry(1), deferred_sync=True),
    "addRequest with a short key": client_v3.add(9, LEDGER, EntryId(1), b"", entry(1)),
    "readRequest that fences": client_v3.read(9, LEDGER, EntryId(0), fence_with=WRONG_KEY),
    "readRequest that fences with a short key": client_v3.read(9, LEDGER, EntryId(0), fence_with=b""),
    "writeLacRequest": client_v3.write_lac(9, LEDGER, EntryId(0), WRONG_KEY, DIGEST.encode_lac(LEDGER, EntryId(0))),
}
"""Requests of V3 with a master key that is not the ledger's. A name begins with the field of the request."""
CLAIMS_A_TOKEN = "getBookieInfoRequest"
"""With the right key it gives a new ledger its token; it has its own test below."""
V2_WITH_KEY: dict[str, bytes] = {
    "add": b"".join(client_codec.v2_adds(WRONG_KEY, [(entry(1),)])),
    "add of recovery": b"".join(client_codec.v2_adds(WRONG_KEY, [(entry(1),)], recovery=True)),
    "add of high priority": b"".join(client_codec.v2_adds(WRONG_KEY, [(entry(1),)], high_priority=True)),
    "read that fences": client_codec.v2_read(LEDGER, EntryId(0), fence_with=WRONG_KEY),
    "batch read that fences": client_codec.v2_batch_read(LEDGER, EntryId(0), 1, 10, 1000, fence_with=WRONG_KEY),
}


@dataclass(frozen=True)
class Port:
    """A running bookie, and the credentials of its clients."""

    world: BookieWorld
    authority: Authority

    async def client(self) -> Client:
        """Open a connection without sending anything."""
        assert self.world.running is not None
        return Client(*await asyncio.open_connection("127.0.0.1", self.world.running.port))

    def context(self, certificate: str = "", *, of: Authority | None = None) -> ssl.SSLContext:
        """Return a client's TLS context, with a certificate of the role if given."""
        files = TlsFiles(trust=self.authority.trust)
        if certificate:
            pem = (of or self.authority).issue(certificate, unit=f"0:{certificate}")
            files = TlsFiles(pem.certificate, pem.key, trust=self.authority.trust)
        return client_context(files, check_host_name=True)


@asynccontextmanager
async def serving(security: SecuritySettings, authority: Authority) -> AsyncIterator[Port]:
    """Serve with LEDGER stored; check at the end that LEDGER is unchanged and OTHER does not exist."""
    world = BookieWorld().with_settings(security=SecuritySettings())
    await world.start()
    port = Port(world, authority)
    writer = await port.client()
    stored = await writer.ask_v3(client_v3.add(1, LEDGER, EntryId(0), KEY, entry(0)))
    assert stored.status == pb.EOK
    writer.close()
    await world.stop()
    world.with_settings(security=security)
    await world.start()
    try:
        yield port
    finally:
        await world.stop()


async def check_untouched(world: BookieWorld) -> None:
    """Check that LEDGER has only its entry 0 and accepts another, and that no request created OTHER."""
    await world.stop()
    world.with_settings(security=SecuritySettings())
    running = await world.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", running.port))
    read = await client.ask_v3(client_v3.read(1, LEDGER, EntryId(0)))
    assert (read.status, read.readResponse.body) == (pb.EOK, entry(0))
    assert (await client.ask_v3(client_v3.read(2, LEDGER, EntryId(1)))).status == pb.ENOENTRY
    assert not (await client.ask_v3(client_v3.read_lac(3, LEDGER))).readLacResponse.HasField("lacBody")
    known = await client.ask_v3(client_v3.id_marks(4, OTHER))
    assert not known.getBookieInfoResponse.quireIdMarks.ledgerKnown
    written = await client.ask_v3(client_v3.add(5, LEDGER, EntryId(1), KEY, entry(1)))
    assert written.status == pb.EOK, "no request fenced it"
    client.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority trusted by the bookie and its clients."""
    return Authority(tmp_path)


def security_of(kind: str, authority: Authority) -> SecuritySettings:
    """`open`, `token`, `certificate`, or `token over TLS`."""
    pem = authority.issue("bookie")
    files = TlsFiles(pem.certificate, pem.key, trust=authority.trust)
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    token = RoleSettings(AuthKind.TOKEN, ("broker",), TokenSettings(secret_key=key))
    if kind == "open":
        return SecuritySettings()
    if kind == "token":
        return SecuritySettings(roles=token)
    if kind == "certificate":
        roles = RoleSettings(AuthKind.CERTIFICATE_ROLES, ("broker",))
        return SecuritySettings(ServerTlsSettings(files, client_certificates=True), roles)
    return SecuritySettings(ServerTlsSettings(files, required=True), token)


async def show_nothing(port: Port, client: Client) -> None:
    """Connect without credentials."""


async def show(token: bytes, port: Port, client: Client, *, plugin: str = "token") -> None:
    """Send a token over V3."""
    await client.ask_v3(client_v3.auth(1, plugin, token))


async def secure(certificate: str, port: Port, client: Client) -> None:
    """Begin TLS, with a certificate of the role if given; a refusal comes after the handshake."""
    await client.start_tls(port.context(certificate))
    if certificate == "guest":
        assert pb.Response.FromString(await client.frame()).status == pb.EIO


async def secure_and_show(token: bytes, port: Port, client: Client) -> None:
    """Begin TLS and send a token in it."""
    await client.start_tls(port.context())
    await show(token, port, client)


SHUT_OUT: dict[tuple[str, str], Callable[[Port, Client], Awaitable[None]]] = {
    ("token", "nothing shown"): show_nothing,
    ("token", "another way to authenticate"): partial(show, signed("broker"), plugin="sasl"),
    ("certificate", "in clear"): show_nothing,
    ("certificate", "a token in clear"): partial(show, signed("broker")),
    ("certificate", "a certificate of another role"): partial(secure, "guest"),
    ("token over TLS", "nothing shown"): show_nothing,
    ("token over TLS", "a token in clear"): partial(show, signed("broker")),
    ("token over TLS", "TLS without a token"): partial(secure, ""),
}
"""Kinds of bookies and credentials with which each request is unauthorized."""
THROWN_OUT: dict[tuple[str, str], Callable[[Port, Client], Awaitable[None]]] = {
    ("token", "a token signed with another key"): partial(show, signed("broker", b"x" * 32)),
    ("token", "a token that ran out"): partial(show, signed("broker", exp=1)),
    ("token", "a token of another role"): partial(show, signed("guest")),
    ("token", "no token"): partial(show, b"\xff\x00"),
    ("token over TLS", "a token of another role in TLS"): partial(secure_and_show, signed("guest")),
}
"""Kinds of bookies and credentials whose failure ends the connection."""
LET_IN: dict[tuple[str, str], Callable[[Port, Client], Awaitable[None]]] = {
    ("open", "nothing shown"): show_nothing,
    ("token", "a token of the role"): partial(show, signed("broker")),
    ("certificate", "a certificate of the role"): partial(secure, "broker"),
    ("token over TLS", "a token of the role in TLS"): partial(secure_and_show, signed("broker")),
}
V3_REQUESTS = V3_SERVED | {operation: v3_of(operation) for operation in V3_NOT_SERVED}


def named(case: tuple[str, str]) -> str:
    """Return the id of a test."""
    return f"{case[0]}: {case[1]}"


def status_of(answer: Response | None) -> Status | None:
    """Return the status of a V2 response, or None if the connection ended."""
    assert answer is None or isinstance(answer, AddResponse | ReadResponse | BatchReadResponse | AuthResponse)
    return None if answer is None else answer.status


def test_every_operation_of_v3_is_in_one_group() -> None:
    grouped: list[int] = [*V3_SERVED, *V3_OF_THE_CONNECTION, *V3_NOT_SERVED]
    assert sorted(grouped) == sorted(pb.OperationType.values())


def test_every_request_of_v3_with_a_master_key_is_in_the_list() -> None:
    with_key = {
        field.name
        for field in pb.Request.DESCRIPTOR.fields
        if field.message_type is not None and any("asterKey" in one.name for one in field.message_type.fields)
    }
    assert {name.split(" ")[0] for name in WITH_KEY} | {CLAIMS_A_TOKEN} == with_key


@pytest.mark.parametrize("case", SHUT_OUT, ids=named)
async def test_an_unauthorized_client_gets_no_v3_operation(case: tuple[str, str], authority: Authority) -> None:
    async with serving(security_of(case[0], authority), authority) as port:
        for operation, request in V3_REQUESTS.items():
            client = await port.client()
            await SHUT_OUT[case](port, client)
            answer = await client.ask_v3(request)
            told = pb.OperationType.Name(operation)
            assert (answer.status, answer.header.operation, answer.header.txnId) == (pb.EUA, operation, 9), told
            assert [field.name for field, _ in answer.ListFields()] == ["header", "status"], told
            client.close()
        await check_untouched(port.world)


@pytest.mark.parametrize("case", SHUT_OUT, ids=named)
async def test_an_unauthorized_client_gets_no_v2_operation(case: tuple[str, str], authority: Authority) -> None:
    async with serving(security_of(case[0], authority), authority) as port:
        for opcode, request in {**V2_SERVED, v2.AUTH: client_codec.v2_auth("token", b"no token")}.items():
            client = await port.client()
            await SHUT_OUT[case](port, client)
            expected = Status.UNAUTHORIZED if opcode in (v2.ADD, v2.READ) else None
            assert status_of(await client.ask_v2(request)) is expected, opcode
            client.close()
        await check_untouched(port.world)


@pytest.mark.parametrize("case", THROWN_OUT, ids=named)
async def test_failed_authentication_ends_the_connection(case: tuple[str, str], authority: Authority) -> None:
    async with serving(security_of(case[0], authority), authority) as port:
        for request in (*V3_REQUESTS.values(), *V2_SERVED.values(), client_v3.auth(2, "token", signed("broker"))):
            client = await port.client()
            await THROWN_OUT[case](port, client)
            client.writer.write(request)
            assert await client.is_closed()
        await check_untouched(port.world)


@pytest.mark.parametrize("case", LET_IN, ids=named)
async def test_an_admitted_client_gets_each_v3_operation(case: tuple[str, str], authority: Authority) -> None:
    async with serving(security_of(case[0], authority), authority) as port:
        client = await port.client()
        await LET_IN[case](port, client)
        for operation, request in V3_SERVED.items():
            answer = await client.ask_v3(request)
            assert (answer.status, answer.header.operation) == (pb.EOK, operation)
        for operation in V3_NOT_SERVED:
            assert (await client.ask_v3(v3_of(operation))).status == pb.EBADREQ
        again = await client.ask_v3(V3_OF_THE_CONNECTION[pb.AUTH])
        assert again.authResponse.authPluginName == "AuthDisabledPlugin", "a second proof is not looked at"
        if case[0] in ("certificate", "token over TLS"):
            assert (await client.ask_v3(V3_OF_THE_CONNECTION[pb.START_TLS])).status == pb.EBADREQ, "TLS in TLS"
        client.close()


@pytest.mark.parametrize("case", LET_IN, ids=named)
async def test_an_admitted_client_gets_each_v2_operation(case: tuple[str, str], authority: Authority) -> None:
    async with serving(security_of(case[0], authority), authority) as port:
        client = await port.client()
        await LET_IN[case](port, client)
        for request in (*V2_SERVED.values(), client_codec.v2_auth("token", b"no token")):
            assert status_of(await client.ask_v2(request)) is Status.OK
        client.close()


@pytest.mark.parametrize("case", LET_IN | {("token", "nothing shown"): show_nothing}, ids=named)
async def test_no_other_opcode_of_v2_is_answered(case: tuple[str, str], authority: Authority) -> None:
    entering = (LET_IN | SHUT_OUT)[case]
    async with serving(security_of(case[0], authority), authority) as port:
        for opcode in set(range(256)) - V2_OPCODES if case[0] in ("open", "token") else {0, 4, 5, 6, 8, 255}:
            client = await port.client()
            await entering(port, client)
            body = bytes((v2.VERSION, opcode, 0, 0)) + bytes(60)
            client.writer.write(len(body).to_bytes(4, "big") + body)
            assert await client.is_closed(), opcode
            client.close()
        await check_untouched(port.world)


@pytest.mark.parametrize("case", LET_IN, ids=named)
async def test_a_wrong_master_key_neither_writes_nor_fences(case: tuple[str, str], authority: Authority) -> None:
    async with serving(security_of(case[0], authority), authority) as port:
        client = await port.client()
        await LET_IN[case](port, client)
        for name, request in WITH_KEY.items():
            assert (await client.ask_v3(request)).status == pb.EUA, name
        client.close()
        client = await port.client()
        await LET_IN[case](port, client)
        for name, request in V2_WITH_KEY.items():
            assert status_of(await client.ask_v2(request)) is Status.UNAUTHORIZED, name
        client.close()
        await check_untouched(port.world)


async def test_a_wrong_master_key_gives_a_ledger_no_token(authority: Authority) -> None:
    async with serving(security_of("open", authority), authority) as port:
        client = await port.client()
        await client.ask_v3(client_v3.ledger_token(1, OTHER, b"own", KEY))
        for ledger, own in ((OTHER, b"own"), (LEDGER, b"")):
            answer = await client.ask_v3(client_v3.ledger_token(2, ledger, b"forged", WRONG_KEY))
            assert answer.getBookieInfoResponse.quireToken == own
            answer = await client.ask_v3(client_v3.id_marks(3, ledger))
            assert answer.getBookieInfoResponse.quireToken == own
        client.close()


async def test_a_certificate_of_another_authority_ends_the_handshake(authority: Authority, tmp_path: Path) -> None:
    async with serving(security_of("certificate", authority), authority) as port:
        for certificate, of in (("broker", Authority(tmp_path, "stranger")), ("", authority)):
            client = await port.client()
            assert (await client.ask_v3(client_v3.start_tls(1))).status == pb.EOK
            try:
                await client.writer.start_tls(port.context(certificate, of=of), server_hostname="localhost")
                client.writer.write(V3_SERVED[pb.READ_ENTRY])
            except (ssl.SSLError, ConnectionError):
                continue
            assert await client.is_closed()
            client.close()
        await check_untouched(port.world)


async def test_plaintext_after_start_tls_ends_the_connection(authority: Authority) -> None:
    async with serving(security_of("token over TLS", authority), authority) as port:
        for behind in (*V3_SERVED.values(), V2_SERVED[v2.ADD]):
            client = await port.client()
            client.writer.write(V3_OF_THE_CONNECTION[pb.START_TLS] + behind)
            assert await client.is_closed()
        await check_untouched(port.world)
