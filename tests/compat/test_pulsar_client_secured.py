"""Tests of the stock Python client (C++ core) with a broker with TLS, tokens, certificates and permissions.

One process serves all tests; each test has its own topics, and its own namespace if it grants permissions.
"""

import asyncio
import itertools
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jwt
import pytest

pulsar = pytest.importorskip("pulsar")

from quire_bookie.cli.client_access import ClientAccess  # noqa: E402  after the check that there is a client
from quire_client import BrokerRefusedError, Client, DeniedByBrokerError, MessageId  # noqa: E402
from quire_jobs.errors import SourceUnavailableError  # noqa: E402
from quire_jobs.sink.options import parse_sink_options  # noqa: E402
from quire_jobs.sink.publishing import Publisher  # noqa: E402
from quire_jobs.sink.rows import Outgoing  # noqa: E402
from tests.support.certificates import Authority  # noqa: E402
from tests.support.polling import until  # noqa: E402  after the check that there is a client
from tests.support.ports import free_ports  # noqa: E402
from tests.support.standalone import StandaloneProcess  # noqa: E402

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SECRET = b"a secret of tests that is long enough for HS256"
RECEIVE_MS = 20_000
OPERATION_S = 4
# The C++ core does not report an ERROR that answers its CONNECT: it retries until its timeout.
KEPT_OUT = (pulsar.AuthenticationError, pulsar.Timeout)
_names = itertools.count()


def token(role: str, *, lasts_s: float | None = None, secret: bytes = SECRET) -> str:
    claims: dict[str, Any] = {"sub": role}
    if lasts_s is not None:
        claims["exp"] = time.time() + lasts_s
    return jwt.encode(claims, secret, algorithm="HS256")


class Secured:
    """A standalone with all security features on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.files = self.authority.issue("broker", "127.0.0.1")
        key = folder / "secret.key"
        key.write_bytes(SECRET)
        port, http = free_ports(2)
        settings = {
            "brokerServicePortTls": port,
            "webServicePortTls": http,
            "tlsCertificateFilePath": self.files.certificate,
            "tlsKeyFilePath": self.files.key,
            "tlsTrustCertsFilePath": self.authority.trust,
            "tlsCertRefreshCheckDurationSec": 1,
            "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,"
            "org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
            "authenticationRefreshCheckSeconds": 1,
            "tokenSecretKey": f"file://{key}",
            "authorizationEnabled": "true",
            "superUserRoles": "admin,ops",
        }
        self.process = StandaloneProcess(folder, settings=tuple(f"{name}={value}" for name, value in settings.items()))
        self.process.start()
        self.url = f"pulsar+ssl://127.0.0.1:{port}"
        self.http = f"https://127.0.0.1:{http}"

    def rest(self, method: str, path: str, body: Any = None, *, auth: str | None = None) -> Any:
        """Send a REST request over TLS. HTTPError for codes from 400 on."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({} if auth is None else {"Authorization": f"Bearer {auth}"})
        request = Request(self.http + path, data, headers, method=method)
        context = ssl.create_default_context(cafile=self.authority.trust)
        with urlopen(request, timeout=30, context=context) as answer:
            text = answer.read().decode()
        return json.loads(text) if text else None

    def namespace(self, **granted: list[str]) -> str:
        """Create a namespace in which these roles have these permissions; return its name."""
        name = f"public/n{next(_names)}"
        self.rest("PUT", f"/admin/v2/namespaces/{name}", auth=token("admin"))
        for role, actions in granted.items():
            self.rest("POST", f"/admin/v2/namespaces/{name}/permissions/{role}", actions, auth=token("admin"))
        return name


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured"))
    yield found
    found.process.close()


@pytest.fixture
def connect(broker: Secured) -> Iterator[Callable[..., Any]]:
    """Return a function that creates clients that trust the broker's authority, with given credentials."""
    clients = []

    def make(authentication: Any = None, *, url: str = broker.url, trust: str = broker.authority.trust) -> Any:
        client = pulsar.Client(
            url,
            authentication=authentication,
            tls_trust_certs_file_path=trust,
            tls_validate_hostname=True,
            operation_timeout_seconds=OPERATION_S,
            connection_timeout_ms=3000,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def with_token(role: str, **how: Any) -> Any:
    return pulsar.AuthenticationToken(token(role, **how))


def send_and_receive(client: Any, topic: str, count: int = 10) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send(f"m{number}".encode())
    for number in range(count):
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == f"m{number}".encode()
        consumer.acknowledge(message)


def test_a_client_with_tls_and_a_token_of_a_permitted_role_produces_and_consumes(
    broker: Secured, connect: Callable[..., Any]
) -> None:
    namespace = broker.namespace(app=["produce", "consume"])
    send_and_receive(connect(with_token("app")), f"persistent://{namespace}/t", 200)


def test_our_client_connects_with_tls_and_a_token_of_a_permitted_role_alone(broker: Secured, tmp_path: Path) -> None:
    topic = f"persistent://{broker.namespace(app=['produce', 'consume'])}/t"
    authority, plain = broker.authority.trust, broker.process.url
    stranger = Authority(tmp_path, "stranger").trust

    async def store(url: str, access: ClientAccess) -> MessageId:
        async with Client(url, access) as client, client.producer(topic) as producer:
            return await producer.send(b"m")

    assert asyncio.run(store(broker.url, ClientAccess(token("app"), trust=authority))).entry_id == 0
    for url, access, error in (
        (broker.url, ClientAccess("no.to.ken", trust=authority), DeniedByBrokerError),
        (broker.url, ClientAccess(trust=authority), DeniedByBrokerError),
        (broker.url, ClientAccess(token("other"), trust=authority), DeniedByBrokerError),
        (broker.url, ClientAccess(token("app"), trust=stranger), BrokerRefusedError),
        (broker.url.replace("127.0.0.1", "localhost"), ClientAccess(token("app"), trust=authority), BrokerRefusedError),
        (plain, ClientAccess(), DeniedByBrokerError),
    ):
        with pytest.raises(error):
            asyncio.run(store(url, access))


def test_sink_of_spark_connects_only_to_the_host_of_the_certificate(broker: Secured) -> None:
    topic = f"persistent://{broker.namespace(app=['produce', 'consume'])}/t"
    access = ClientAccess(token("app"), trust=broker.authority.trust)

    def sink(url: str) -> Publisher:
        options = {"serviceUrl": url, "topic": topic, "deduplication": "off", "timeoutS": str(2 * OPERATION_S)}
        return Publisher(parse_sink_options(options), "p", None, access)

    with sink(broker.url) as publisher:
        assert publisher.send([Outgoing(b"x", None, None, None, None)], 1) == 2
    with pytest.raises(SourceUnavailableError, match=r"quire sink"), sink(broker.url.replace("127.0.0.1", "localhost")):
        pytest.fail("localhost is not in the certificate")


def test_plain_port_requires_the_same_credentials(broker: Secured, connect: Callable[..., Any]) -> None:
    namespace = broker.namespace(app=["produce", "consume"])
    send_and_receive(connect(with_token("app"), url=broker.process.url), f"persistent://{namespace}/t")
    with pytest.raises(KEPT_OUT):
        connect(url=broker.process.url).create_producer(f"persistent://{namespace}/t")


def test_probe_that_only_connects_to_the_tls_port_is_not_counted(broker: Secured) -> None:
    before = open_connections(broker)
    host, port = broker.url.removeprefix("pulsar+ssl://").split(":")
    for _ in range(20):
        socket.create_connection((host, int(port)), timeout=30).close()
    # Connections are handled in order, so each probe has ended before a later connection.
    with socket.create_connection((host, int(port)), timeout=30) as later:
        context = ssl.create_default_context(cafile=broker.authority.trust)
        context.wrap_socket(later, server_hostname=host).close()
    assert open_connections(broker) <= before + 1


def open_connections(broker: Secured) -> float:
    """Return the open connections by the metrics: created minus closed."""
    context = ssl.create_default_context(cafile=broker.authority.trust)
    request = Request(broker.http + "/metrics", headers={"Authorization": f"Bearer {token('admin')}"})
    with urlopen(request, timeout=30, context=context) as answer:
        lines = answer.read().decode().splitlines()
    counted = {
        kind: sum(float(line.split()[-1]) for line in lines if line.startswith(f"pulsar_connection_{kind}_total_count"))
        for kind in ("created", "closed")
    }
    return counted["created"] - counted["closed"]


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(None, id="nothing"),
        pytest.param({"secret": b"another secret that is long enough for HS256"}, id="signed by another"),
        pytest.param({"lasts_s": -60.0}, id="expired"),
    ],
)
def test_client_without_valid_credentials_gets_an_error(
    broker: Secured, connect: Callable[..., Any], shown: dict[str, Any] | None
) -> None:
    client = connect(None if shown is None else with_token("admin", **shown))
    with pytest.raises(KEPT_OUT):
        client.create_producer("persistent://public/default/t")
    assert "is disconnected: " in broker.process.tail()


def test_a_client_that_trusts_another_authority_does_not_connect(
    broker: Secured, connect: Callable[..., Any], tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    began = time.monotonic()
    with pytest.raises(pulsar.PulsarException):
        connect(with_token("admin"), trust=stranger.trust).create_producer("persistent://public/default/t")
    assert time.monotonic() - began < 60


def test_role_has_only_the_granted_permissions(broker: Secured, connect: Callable[..., Any]) -> None:
    namespace = broker.namespace(writer=["produce"], reader=["consume"])
    topic = f"persistent://{namespace}/t"
    writer, reader, other = (connect(with_token(role)) for role in ("writer", "reader", "other"))
    producer = writer.create_producer(topic)
    consumer = reader.subscribe(topic, "s")
    producer.send(b"x")
    assert consumer.receive(RECEIVE_MS).data() == b"x"
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: writer.subscribe(topic, "mine"),
        lambda: reader.create_producer(topic),
        lambda: other.create_producer(topic),
        lambda: other.subscribe(topic, "mine"),
        lambda: other.get_topic_partitions(topic),
    )
    for attempt in attempts:
        with pytest.raises(pulsar.AuthorizationError):
            attempt()


def test_grant_on_a_topic_includes_its_partitions_and_no_other_topic(
    broker: Secured, connect: Callable[..., Any]
) -> None:
    namespace = broker.namespace()
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/one/partitions", 2, auth=token("admin"))
    path = f"/admin/v2/persistent/{namespace}/one/permissions"
    broker.rest("POST", f"{path}/app", ["produce", "consume"], auth=token("admin"))
    assert broker.rest("GET", path, auth=token("admin")) == {"app": ["produce", "consume"]}
    client = connect(with_token("app"))
    producer = client.create_producer(f"persistent://{namespace}/one")
    for _ in range(4):
        producer.send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(f"persistent://{namespace}/two")
    broker.rest("DELETE", f"{path}/app", auth=token("admin"))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(f"persistent://{namespace}/one")


def test_admin_of_a_tenant_has_all_permissions_in_it(broker: Secured, connect: Callable[..., Any]) -> None:
    info = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    broker.rest("PUT", "/admin/v2/tenants/acme", info, auth=token("admin"))
    broker.rest("PUT", "/admin/v2/namespaces/acme/own", auth=token("boss"))
    send_and_receive(connect(with_token("boss")), "persistent://acme/own/t")
    with pytest.raises(HTTPError) as refused:
        broker.rest("PUT", "/admin/v2/namespaces/public/stolen", auth=token("boss"))
    assert refused.value.code == 403


def test_certificate_gives_a_role(broker: Secured, connect: Callable[..., Any], tmp_path: Path) -> None:
    own = broker.authority.issue("ops", "ops.example", unit="team")
    client = connect(pulsar.AuthenticationTLS(own.certificate, own.key))
    send_and_receive(client, f"persistent://{broker.namespace()}/t")
    stranger = Authority(tmp_path, "stranger").issue("ops", "ops.example", unit="team")
    with pytest.raises(pulsar.PulsarException):
        connect(pulsar.AuthenticationTLS(stranger.certificate, stranger.key)).create_producer("public/default/t")


def test_expiring_token_is_replaced_on_the_open_connection(broker: Secured, connect: Callable[..., Any]) -> None:
    topic = f"persistent://{broker.namespace(app=['produce', 'consume'])}/t"
    asked = []

    def fresh() -> str:
        asked.append(time.monotonic())
        return token("app", lasts_s=2)

    client = connect(pulsar.AuthenticationToken(fresh))
    producer = client.create_producer(topic)
    before = len(asked)
    ends = time.monotonic() + 6
    while time.monotonic() < ends:
        producer.send(b"x")
        time.sleep(0.1)
    assert len(asked) > before, "the broker requested another token"
    assert producer.is_connected()


def test_expired_token_that_is_not_replaced_ends_the_connection(broker: Secured, connect: Callable[..., Any]) -> None:
    topic = f"persistent://{broker.namespace(app=['produce'])}/t"
    producer = connect(with_token("app", lasts_s=2)).create_producer(topic, send_timeout_millis=2000)
    producer.send(b"x")
    with pytest.raises(pulsar.PulsarException):
        for _ in range(100):
            producer.send(b"x")
            time.sleep(0.1)


def test_rest_requires_a_token_and_a_permitted_role(broker: Secured) -> None:
    for auth, code in ((None, 401), (token("app", secret=b"x" * 40), 401), (token("app"), 403)):
        with pytest.raises(HTTPError) as refused:
            broker.rest("GET", "/admin/v2/tenants", auth=auth)
        assert refused.value.code == code
        assert "reason" in json.loads(refused.value.read())
    assert "public" in broker.rest("GET", "/admin/v2/tenants", auth=token("admin"))
    namespace = broker.namespace(app=["consume"])
    permissions = f"/admin/v2/namespaces/{namespace}/permissions"
    assert broker.rest("GET", permissions, auth=token("ops")) == {"app": ["consume"]}
    broker.rest("DELETE", f"{permissions}/app", auth=token("ops"))
    assert broker.rest("GET", permissions, auth=token("ops")) == {}
    with pytest.raises(HTTPError) as refused:
        broker.rest("POST", f"{permissions}/app", ["fly"], auth=token("ops"))
    assert refused.value.code == 412


def test_subscription_with_roles_admits_only_those(broker: Secured, connect: Callable[..., Any]) -> None:
    namespace = broker.namespace(first=["consume"], second=["consume"])
    path = f"/admin/v2/namespaces/{namespace}/permissions/subscription/s"
    broker.rest("POST", path, ["first"], auth=token("admin"))
    topic = f"persistent://{namespace}/t"
    connect(with_token("first")).subscribe(topic, "s").close()
    with pytest.raises(pulsar.AuthorizationError):
        connect(with_token("second")).subscribe(topic, "s")
    broker.rest("DELETE", f"{path}/first", auth=token("admin"))
    connect(with_token("second")).subscribe(topic, "s").close()


def test_new_certificates_are_served_without_a_restart(
    broker: Secured, connect: Callable[..., Any], tmp_path: Path
) -> None:
    topic = f"persistent://{broker.namespace(app=['produce'])}/t"
    held = connect(with_token("app")).create_producer(topic)
    before = {path: Path(path).read_bytes() for path in (broker.files.certificate, broker.files.key)}
    other = Authority(tmp_path, "other")
    pem = other.issue("broker", "127.0.0.1")
    try:
        for path, new in ((broker.files.certificate, pem.certificate), (broker.files.key, pem.key)):
            Path(path).write_bytes(Path(new).read_bytes())

        def is_served() -> bool:
            try:
                connect(with_token("app"), trust=other.trust).create_producer(topic).send(b"x")
            except pulsar.PulsarException:
                return False
            return True

        until(is_served, "the new certificate is not served", poll_s=0.2)
        held.send(b"what was open goes on")
    finally:
        for path, content in before.items():
            Path(path).write_bytes(content)
        time.sleep(2.5)  # another process, so there is no event to wait for


def test_our_commands_read_tls_and_token_settings_from_the_environment(broker: Secured, tmp_path: Path) -> None:
    import os
    import subprocess

    from tests.support.standalone import QUIRE

    namespace = broker.namespace(app=["produce", "consume"])
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")

    def quire(*words: str, **shown: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"QUIRE_TLS_TRUST_CERTS": broker.authority.trust} | shown
        return subprocess.run([QUIRE, *words], env=environment, capture_output=True, text=True, timeout=60, check=False)

    where = (f"persistent://{namespace}/t", "--broker", broker.url)
    good = {"QUIRE_TOKEN": token("app")}
    produced = quire("produce", where[0], str(lines), *where[1:], **good)
    assert produced.returncode == 0, produced.stderr
    assert quire("consume", *where, **good).stdout == "one\ntwo\n"
    for shown, said in (
        ({}, "AUTHENTICATION"),
        ({"QUIRE_TOKEN": token("app", lasts_s=-5)}, "has expired"),
        ({"QUIRE_TOKEN": token("other")}, "not authorized"),
        (good | {"QUIRE_TLS_TRUST_CERTS": broker.files.certificate}, "no TLS"),
    ):
        refused = quire("consume", *where, **shown)
        assert refused.returncode != 0
        assert said in refused.stderr
        assert "eyJ" not in refused.stderr and "Traceback" not in refused.stderr
    listed = quire("topic", "list", namespace, "--http", broker.http, QUIRE_TOKEN=token("admin"))
    assert f"persistent://{namespace}/t" in listed.stdout, listed.stderr


def test_no_token_is_in_the_log(broker: Secured) -> None:
    text = broker.process.log.read_text()
    assert "eyJ" not in text
    assert SECRET.decode() not in text
    assert "'app'" in text
    assert "Traceback" not in text
