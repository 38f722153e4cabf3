"""The stock Python client through `quire proxy`, which is the only address that it knows; two brokers on one etcd."""

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.broker_cluster import BrokerCluster, Publishing, broker_cluster, read_back  # noqa: E402
from tests.support.certificates import Authority  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402  after the check that there is a client
from tests.support.ports import free_ports  # noqa: E402  after the check that there is a client
from tests.support.proxy_process import ProxyProcess, proxy_process  # noqa: E402

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(300)]

SECRET = b"a secret of tests that is long enough for HS256"
RECEIVE_MS = 20_000
# The C++ core does not report an ERROR that answers its CONNECT: it retries until its timeout.
KEPT_OUT = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.Timeout, pulsar.ConnectError)
_names = itertools.count()


def topic() -> str:
    """Return a new topic."""
    return f"persistent://public/default/through-{next(_names)}"


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("cluster"), brokers=2, brokerDeduplicationEnabled="true") as found:
        yield found


@pytest.fixture(scope="module")
def proxy(cluster: BrokerCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    where = f"etcd://{cluster.storage.etcd.endpoint}"
    with proxy_process(tmp_path_factory.mktemp("proxy"), metadataStoreUrl=where) as found:
        yield found


@pytest.fixture
def client(proxy: ProxyProcess) -> Iterator[Any]:
    found = pulsar.Client(proxy.url, operation_timeout_seconds=20)
    yield found
    found.close()


def test_messages_that_are_not_stored_come_through(client: Any) -> None:
    name = f"non-persistent://public/default/through-{next(_names)}"
    consumer, producer = client.subscribe(name, "s"), client.create_producer(name)
    got: list[bytes] = []

    def arrived() -> bool:
        """Send one more message: those before the consumer has granted permits are lost."""
        producer.send(b"%d" % len(got))
        with suppress(pulsar.Timeout):
            got.append(consumer.receive(200).data())
        return len(got) >= 5

    until(arrived, timeout_s=60)
    consumer.close()


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_messages_of_each_subscription_type_pass(client: Any, kind: str) -> None:
    name = topic()
    consumer = client.subscribe(name, "s", getattr(pulsar.ConsumerType, kind))
    producer = client.create_producer(name)
    for number in range(500):
        producer.send_async(b"%d" % number, None, partition_key=str(number % 7))
    producer.flush()
    found = set()
    for _ in range(500):
        message = consumer.receive(RECEIVE_MS)
        found.add(int(message.data()))
        consumer.acknowledge(message)
    assert found == set(range(500))


def test_partitioned_topics_of_both_brokers_pass(client: Any, proxy: ProxyProcess, cluster: BrokerCluster) -> None:
    name = topic()
    path = name.replace("://", "/")
    assert proxy.call("PUT", f"/admin/v2/{path}/partitions", 8)[0] == 204
    producer = client.create_producer(name, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    consumer = client.subscribe(name, "s")
    for number in range(800):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    found = set()
    for _ in range(800):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        found.add(int(message.data()))
    assert found == set(range(800))
    status, stats = proxy.call("GET", f"/admin/v2/{path}/partitioned-stats")
    assert (status, stats["msgInCounter"]) == (200, 800)
    assert any(name.rsplit("/", 1)[1] in listed for listed in client.get_topic_partitions(name))


def test_readers_large_messages_and_patterns_pass(client: Any) -> None:
    name = topic()
    producer = client.create_producer(name, chunking_enabled=True, batching_enabled=False)
    large = [bytes([number]) * size for number, size in enumerate((1, 100_000, 5_000_000, 12_000_000))]
    for data in large:
        producer.send(data)
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    assert [reader.read_next(RECEIVE_MS).data() for _ in large] == large
    assert not reader.has_message_available()
    consumer = client.subscribe(re.compile(name + ".*"), "pattern", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(RECEIVE_MS).data() == large[0]


def test_nothing_is_lost_while_topics_move_between_brokers(
    client: Any, proxy: ProxyProcess, cluster: BrokerCluster
) -> None:
    names = [topic() for _ in range(4)]
    load = Publishing(client, names, 0.005)
    try:
        for _ in range(4):
            for name in names:
                begun = time.monotonic()
                status, found = proxy.call("PUT", f"/admin/v2/{name.replace('://', '/')}/unload")
                assert status in (200, 204), found
                load.wait_for(name, begun)
            status, found = proxy.call("PUT", "/admin/v2/namespaces/public/default/unload")
            assert status in (200, 204), found
            for name in names:
                load.wait_for(name, time.monotonic())
    finally:
        load.end()
    for name in names:
        assert read_back(pulsar, client, name, load.sent - 1) == list(range(load.sent))


def test_a_consumer_that_does_not_read_holds_no_memory_of_the_proxy(client: Any, proxy: ProxyProcess) -> None:
    name = topic()
    producer = client.create_producer(name, block_if_queue_full=True)
    for _ in range(3000):
        producer.send_async(b"x" * 20_000, None)
    producer.flush()

    def memory() -> int:
        pages = Path(f"/proc/{proxy.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    before = memory()
    slow = [
        client.subscribe(
            name, f"slow-{number}", receiver_queue_size=100, initial_position=pulsar.InitialPosition.Earliest
        )
        for number in range(10)
    ]
    for consumer in slow:
        for _ in range(50):
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
    assert memory() - before < 32 << 20, "60 MB for each of them passed, or wait at the broker"
    for consumer in slow:
        consumer.close()


def test_a_stopped_proxy_ends_in_order(cluster: BrokerCluster, tmp_path: Path) -> None:
    where = f"etcd://{cluster.storage.etcd.endpoint}"
    with proxy_process(tmp_path, metadataStoreUrl=where, proxyShutdownTimeoutMs="500") as leaving:
        client = pulsar.Client(leaving.url, operation_timeout_seconds=5)
        producer = client.create_producer(topic())
        producer.send(b"x")
        leaving.process.terminate()
        assert leaving.process.wait(20) == 0
        with suppress(pulsar.PulsarException):
            client.close()


# security


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerCluster, dict[str, str], Authority]]:
    """Brokers that require tokens, check permissions and serve TLS; settings of a proxy in front of them."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    files = authority.issue("broker", "127.0.0.1")
    key = folder / "secret.key"
    key.write_bytes(SECRET)
    own = folder / "proxy.token"
    own.write_text(token("gate"))
    both = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "authenticationRefreshCheckSeconds": "1",
        "tokenSecretKey": f"file://{key}",
        "tlsCertificateFilePath": files.certificate,
        "tlsKeyFilePath": files.key,
    }
    tls = {"brokerServicePortTls": "0", "webServicePortTls": "0"}
    permissions = {"authorizationEnabled": "true", "superUserRoles": "admin,gate", "proxyRoles": "gate"}
    checked = {"authenticateOriginalAuthData": "true"}
    all_of_it: Any = both | tls | permissions | checked
    with broker_cluster(folder, brokers=2, **all_of_it) as found:
        towards = {
            "metadataStoreUrl": f"etcd://{found.storage.etcd.endpoint}",
            "tlsEnabledWithBroker": "true",
            "brokerClientTrustCertsFilePath": authority.trust,
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"file://{own}",
            "forwardAuthorizationCredentials": "true",
        }
        yield found, both | towards, authority


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role)}"}


def test_a_client_has_its_own_rights_behind_a_proxy_with_more(
    secured: tuple[BrokerCluster, dict[str, str], Authority], tmp_path: Path
) -> None:
    _, settings, authority = secured
    port, http = free_ports(2)
    ports = {"servicePortTls": str(port), "webServicePortTls": str(http)}
    with proxy_process(tmp_path, **settings, **ports) as proxy:
        for path, body in (
            ("/admin/v2/tenants/acme", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}),
            ("/admin/v2/namespaces/acme/orders", None),
        ):
            status, found = proxy.call("PUT", path, body, bearer("admin"))
            assert status == 204, found
        granted = "/admin/v2/namespaces/acme/orders/permissions/app"
        assert proxy.call("POST", granted, ["produce", "consume"], bearer("app"))[0] == 403
        assert proxy.call("POST", granted, ["produce", "consume"])[0] == 401
        assert proxy.call("POST", granted, ["produce", "consume"], bearer("boss"))[0] == 204
        name = "persistent://acme/orders/t"
        for url in (proxy.url, f"pulsar+ssl://127.0.0.1:{port}"):
            client = pulsar.Client(
                url,
                authentication=pulsar.AuthenticationToken(token("app")),
                tls_trust_certs_file_path=authority.trust,
                operation_timeout_seconds=20,
            )
            consumer = client.subscribe(name, "s")
            producer = client.create_producer(name)
            for number in range(200):
                producer.send(b"%d" % number)
            assert [int(consumer.receive(RECEIVE_MS).data()) for _ in range(200)] == list(range(200))
            client.close()
        status, found = proxy.call("GET", "/admin/v2/persistent/acme/orders/t/stats", None, bearer("app"))
        assert (status, found["msgInCounter"]) == (200, 400), found
        for role, secret in (("stranger", SECRET), ("app", b"another secret that is long enough for it")):
            shown = jwt.encode({"sub": role}, secret, algorithm="HS256")
            client = pulsar.Client(
                proxy.url, authentication=pulsar.AuthenticationToken(shown), operation_timeout_seconds=3
            )
            with pytest.raises(KEPT_OUT):
                client.create_producer(name)
            client.close()


def test_a_client_with_new_tokens_continues_when_one_expires(
    secured: tuple[BrokerCluster, dict[str, str], Authority], tmp_path: Path
) -> None:
    _, settings, _ = secured
    shown: list[float] = []

    def fresh() -> str:
        shown.append(time.time())
        return jwt.encode({"sub": "admin", "exp": time.time() + 4}, SECRET, algorithm="HS256")

    with proxy_process(tmp_path, **settings) as proxy:
        client = pulsar.Client(
            proxy.url, authentication=pulsar.AuthenticationToken(fresh), operation_timeout_seconds=20
        )
        producer = client.create_producer("persistent://public/default/expires")
        sent = 0
        connections = len(shown)

        def replaced() -> bool:
            nonlocal sent
            producer.send(b"%d" % sent)
            sent += 1
            return len(shown) >= connections + 2

        until(replaced, "the token was not replaced", timeout_s=60.0)
        reader = client.create_reader("persistent://public/default/expires", pulsar.MessageId.earliest)
        found = [int(reader.read_next(RECEIVE_MS).data()) for _ in range(sent)]
        assert sorted(set(found)) == list(range(sent))
        client.close()
