"""A bookie with TLS and authentication, started as a whole, and our ledger client: written, recovered, read."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jwt
import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError, LedgerError
from quire_bookie.limits import KIB
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import DigestType, EntryId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.security import AuthKind, RoleSettings, SecuritySettings, ServerTlsSettings
from quire_bookie.settings.tls import ClientSecuritySettings, TlsFiles
from quire_bookie.settings.tokens import TokenSettings
from tests.sim.metadata import SimMetadataStore
from tests.support.bookie_world import BookieWorld
from tests.support.certificates import Authority, Pem

SECRET = "0123456789abcdef0123456789abcdef"
PASSWORD = b"a password that no log should show"


def server_tls(pem: Pem, authority: Authority, **more: bool) -> ServerTlsSettings:
    """TLS with the certificate."""
    return ServerTlsSettings(TlsFiles(pem.certificate, pem.key, trust=authority.trust), **more)


@asynccontextmanager
async def secured(settings: SecuritySettings) -> AsyncIterator[BookieWorld]:
    """A bookie that serves."""
    world = BookieWorld().with_settings(security=settings)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


@asynccontextmanager
async def client(world: BookieWorld, settings: ClientSecuritySettings) -> AsyncIterator[LedgerClient]:
    """Our client in that world."""
    metadata = SimMetadataStore(world.metadata)
    found = await LedgerClient.open(
        metadata,
        ClientSettings(add_timeout_s=5, read_timeout_s=5, security=settings),
        clock=SystemClock(),
        chance=SystemChance(),
    )
    try:
        yield found
    finally:
        await found.close()


async def write_recover_and_read(world: BookieWorld, settings: ClientSecuritySettings) -> None:
    """A ledger whose writer goes away, recovered and read by another client."""
    payloads = [b"%d" % number + bytes(10 * KIB) for number in range(300)]
    async with client(world, settings) as writing:
        writer = await writing.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, password=PASSWORD
        )
        writer.submit(payloads)
        await writer.append(b"last")
        assert await writer.tell_lac() == len(payloads)
        ledger = writer.ledger_id
        assert await (
            await writing.open_ledger(ledger, digest_type=DigestType.CRC32C, password=PASSWORD, recover=False)
        ).read_explicit_lac() == len(payloads)
    async with client(world, settings) as reading:
        reader = await reading.open_ledger(ledger, digest_type=DigestType.CRC32C, password=PASSWORD, recover=True)
        assert reader.last_add_confirmed == len(payloads)
        found = [bytes(entry.payload) for entry in await reader.read(EntryId(0), EntryId(len(payloads)))]
        assert found == [*payloads, b"last"]


async def test_mutual_tls_with_a_role(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("broker", unit="0:broker")
    settings = SecuritySettings(
        server_tls(authority.issue("bookie"), authority, client_certificates=True, required=True),
        RoleSettings(AuthKind.CERTIFICATE_ROLES, ("broker",)),
    )
    async with secured(settings) as world:
        tls = TlsFiles(own.certificate, own.key, trust=authority.trust)
        await write_recover_and_read(world, ClientSecuritySettings(tls))
        assert world.running is not None
        assert world.running.guard.stats.authenticated >= 2
        assert world.running.guard.stats.requests_unauthorized == 0
        registry = await BookieRegistry.open(SimMetadataStore(world.metadata))
        info = await SimMetadataStore(world.metadata).get(f"/ledgers/available/{world.running.bookie_id}")
        assert info is not None and b"tls" in info.value
        assert registry.writable == {world.running.bookie_id}


async def test_a_token_over_tls_and_nothing_secret_in_any_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    authority = Authority(tmp_path)
    settings = SecuritySettings(
        server_tls(authority.issue("bookie"), authority),
        RoleSettings(AuthKind.TOKEN, token=TokenSettings(secret_key="/keys/secret")),
    )
    world = BookieWorld().with_settings(security=settings)
    await world.disk.make_dirs("/keys")
    await world.disk.replace_file("/keys/secret", SECRET.encode())
    token = jwt.encode({"sub": "broker"}, SECRET, "HS256")
    await world.start()
    try:
        tls = TlsFiles(trust=authority.trust)
        await write_recover_and_read(world, ClientSecuritySettings(tls, token=token))
        with pytest.raises(LedgerError):
            await write_recover_and_read(world, ClientSecuritySettings(tls, token=token[:-4] + "AAAA"))
    finally:
        await world.stop()
    assert "is authenticated as 'broker' over TLS" in caplog.text
    for secret in (SECRET, PASSWORD.decode(), *token.split(".")):
        assert secret not in caplog.text
    assert SECRET not in repr(settings)


async def test_a_client_without_a_token_gets_nothing(tmp_path: Path) -> None:
    settings = SecuritySettings(roles=RoleSettings(AuthKind.TOKEN, token=TokenSettings(tokens_path="/keys/tokens")))
    world = BookieWorld().with_settings(security=settings)
    await world.disk.make_dirs("/keys")
    await world.disk.replace_file("/keys/tokens", b"broker 0123456789abcdef\n")
    await world.start()
    try:
        with pytest.raises(LedgerError):
            await write_recover_and_read(world, ClientSecuritySettings())
        assert world.running is not None
        assert world.running.bookie.stats.add_entries == 0
        await write_recover_and_read(world, ClientSecuritySettings(token="0123456789abcdef"))
    finally:
        await world.stop()


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (TokenSettings(secret_key="file:///keys/none"), "tokenSecretKey: the file /keys/none cannot be read"),
        (TokenSettings(public_key="not!a!key"), "tokenPublicKey is neither the path"),
        (TokenSettings(secret_key="data:;base64,c2hvcnQ="), "5 bytes"),
        (TokenSettings(tokens_path="/keys/none"), "tokenStaticFile: the file /keys/none cannot be read"),
    ],
)
async def test_a_key_that_cannot_be_read_keeps_the_bookie_from_starting(token: TokenSettings, words: str) -> None:
    world = BookieWorld().with_settings(security=SecuritySettings(roles=RoleSettings(AuthKind.TOKEN, token=token)))
    with pytest.raises(ConfigError, match=words):
        await world.start()
