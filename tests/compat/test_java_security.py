"""Tests of the stock Java client with secured bookies: TLS, certificate roles and tokens, in both protocol versions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.support.certificates import Authority, Pem
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, class_path, described

pytestmark = pytest.mark.compat

FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"
SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = jwt.encode({"sub": "broker"}, SECRET, "HS256")
GENERATIONS = {"v2": "true", "v3": "false"}
TOKEN_AUTH = "dev.quire.compat.TokenAuth"
ENTRIES, SIZE_BYTES = 200, 5000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Create the authority that both sides trust."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    """Start a JVM."""
    class_path()
    driver = JavaDriver(tmp_path_factory.mktemp("java"))
    yield driver
    driver.close()


def bookie_settings(authority: Authority, **more: str) -> dict[str, str]:
    """Return settings of a bookie with TLS, under BookKeeper's keys."""
    pem = authority.issue("bookie")
    return {
        "tlsProviderFactoryClass": FACTORY,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": pem.key,
        "tlsCertificatePath": pem.certificate,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": authority.trust,
        **more,
    }


def client_settings(authority: Authority, generation: str, own: Pem | None = None, **more: str) -> dict[str, str]:
    """Return the matching settings of a Java client."""
    settings = {
        "useV2WireProtocol": GENERATIONS[generation],
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": FACTORY,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": authority.trust,
        "tlsHostnameVerificationEnabled": "true",
        **more,
    }
    if own is not None:
        settings |= {
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": own.key,
            "tlsCertificatePath": own.certificate,
        }
    return settings


def serve(folder: Path, settings: dict[str, str]) -> Iterator[EtcdCluster]:
    """Run a cluster of one bookie with these settings."""
    class_path()  # skips the test before a process is started
    cluster = EtcdCluster(folder)
    try:
        cluster.add_bookies(1, **settings)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def with_roles(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdCluster]:
    """Run a cluster with mutual TLS, without plain connections, and only for brokers."""
    settings = bookie_settings(
        authority,
        tlsClientAuthentication="true",
        tlsRequired="true",
        bookieAuthProviderFactoryClass=ROLES,
        authorizedRoles="recovery,broker",
    )
    yield from serve(tmp_path_factory.mktemp("roles"), settings)


@pytest.fixture(scope="module")
def with_tokens(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[EtcdCluster]:
    """Run a cluster with tokens, with and without TLS."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "secret").write_text(SECRET)
    settings = bookie_settings(
        authority,
        bookieAuthProviderFactoryClass="token",
        tokenSecretKey=f"file://{folder}/secret",
        unauthenticatedTimeoutMs="2000",
    )
    yield from serve(folder / "cluster", settings)


class Opened:
    """The clients of one test, closed at its end."""

    def __init__(self, java: JavaDriver) -> None:
        self.java = java
        self._names: list[str] = []

    def client(self, cluster: EtcdCluster, settings: dict[str, str]) -> str:
        """Open a new client; return its name."""
        name = f"secured {len(self._names)}"
        timeouts = {"addEntryTimeoutSec": "10", "readEntryTimeoutSec": "10"}
        self.java.call("open_client", client=name, uri=cluster.java_uri, settings={**timeouts, **settings})
        self._names.append(name)
        return name

    def close(self) -> None:
        """Close all clients."""
        for name in self._names:
            self.java.call("close_client", client=name)


@pytest.fixture
def opened(java: JavaDriver) -> Iterator[Opened]:
    """Give a test its clients."""
    found = Opened(java)
    yield found
    found.close()


def create(java: JavaDriver, client: str) -> dict[str, Any]:
    quorums = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    made: dict[str, Any] = java.call("create", client=client, **quorums, digest="CRC32C", password="secret")
    return made


def works(java: JavaDriver, client: str, cluster: EtcdCluster) -> None:
    """Write and read a ledger, and send a request that only V3 has, on its own connection."""
    ledger = create(java, client)
    done = java.call("append", handle=ledger["handle"], count=ENTRIES, size=SIZE_BYTES)
    assert done["error"] == "OK"
    found = java.call("read", handle=ledger["handle"], first=0, last=ENTRIES - 1)
    assert found == [described(ledger["ledger"], entry, SIZE_BYTES) for entry in range(ENTRIES)]
    info = java.call("bookie_info", client=client, bookie=cluster.bookies[0].bookie_id, requested=3)
    assert info["code"] == "OK"


def refused(java: JavaDriver, client: str) -> str:
    """Return the error with which an append ends."""
    ledger = create(java, client)
    error: str = java.call("append", handle=ledger["handle"], count=1, size=10)["error"]
    return error


@pytest.mark.parametrize("generation", GENERATIONS)
def test_certificate_with_the_role_is_sufficient(
    java: JavaDriver, opened: Opened, with_roles: EtcdCluster, authority: Authority, generation: str
) -> None:
    own = authority.issue("broker", unit="0:broker;1:cluster")
    works(java, opened.client(with_roles, client_settings(authority, generation, own)), with_roles)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_client_without_such_a_certificate_is_refused(
    java: JavaDriver, opened: Opened, with_roles: EtcdCluster, authority: Authority, generation: str, tmp_path: Path
) -> None:
    guest = authority.issue("guest", unit="0:guest")
    stranger = Authority(tmp_path, "foreign").issue("stranger", unit="0:broker")
    clear = {"useV2WireProtocol": GENERATIONS[generation]}
    outcomes = {
        "role": refused(java, opened.client(with_roles, client_settings(authority, generation, guest))),
        "authority": refused(java, opened.client(with_roles, client_settings(authority, generation, stranger))),
        "none": refused(java, opened.client(with_roles, client_settings(authority, generation))),
        "clear": refused(java, opened.client(with_roles, clear)),
    }
    unauthorized, unreachable = "UnauthorizedAccess", "NotEnoughBookies"
    # The refusals of the handshake and of the first add are sent at once: a V2 client reports the one it gets first.
    assert outcomes.pop("role") in (unauthorized, unreachable)
    assert outcomes == {
        "authority": unreachable,
        "none": unreachable,
        "clear": unauthorized,
    }


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "clear"])
def test_token_is_sufficient(
    java: JavaDriver, opened: Opened, with_tokens: EtcdCluster, authority: Authority, generation: str, tls: bool
) -> None:
    settings = client_settings(authority, generation) if tls else {"useV2WireProtocol": GENERATIONS[generation]}
    settings |= {"clientAuthProviderFactoryClass": TOKEN_AUTH, "token": TOKEN}
    works(java, opened.client(with_tokens, settings), with_tokens)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_requests_without_a_valid_token_are_refused(
    java: JavaDriver, opened: Opened, with_tokens: EtcdCluster, generation: str
) -> None:
    settings = {"useV2WireProtocol": GENERATIONS[generation]}
    bad = {"clientAuthProviderFactoryClass": TOKEN_AUTH, "token": TOKEN[:-3] + "AAA"}
    outcomes = [refused(java, opened.client(with_tokens, {**settings, **more})) for more in ({}, bad)]
    # A failed exchange has no answer over V2: the connection ends.
    assert outcomes == ["UnauthorizedAccess", "NotEnoughBookies" if generation == "v2" else "UnauthorizedAccess"]
    log = with_tokens.bookies[0].log.read_text()
    assert not any(part in log for part in (*TOKEN.split("."), SECRET))
