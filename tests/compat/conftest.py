"""Fixtures: three bookies on an etcd, a JVM with the stock Java client, and a broker with the stock Python client."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.etcd_cluster import ClusterBookie, EtcdCluster
from tests.support.java_driver import JavaDriver, class_path
from tests.support.polling import until
from tests.support.stock_clients import JavaSession

GENERATIONS = {"v2": "true", "v3": "false"}
REACHED_TIMEOUT_S = 90
FIRST_TEST_TIMEOUT_S = 1200
TIMEOUTS = {"addEntryTimeoutSec": "30", "readEntryTimeoutSec": "30"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with Java as slow, since they take minutes; the first one may also wait for the download of the
    jars."""
    for item in items:
        if item.path.name.startswith("test_java_"):
            item.add_marker(pytest.mark.slow)
        if "java" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(FIRST_TEST_TIMEOUT_S))


def path_of(topic: str, suffix: str = "") -> str:
    """Return the path of a topic of the default namespace in the admin API."""
    return f"/admin/v2/persistent/public/default/{topic.rsplit('/', 1)[1]}{suffix}"


def open_clients(java: JavaDriver, cluster: EtcdCluster, **settings: str) -> None:
    """Open the clients `v2` and `v3` of the driver on the cluster."""
    for name, v2 in GENERATIONS.items():
        wanted = {"useV2WireProtocol": v2, **TIMEOUTS, **settings}
        java.call("open_client", client=name, uri=cluster.java_uri, settings=wanted)


def wait_reached(java: JavaDriver, client: str, bookie: ClusterBookie) -> None:
    """Wait until the Java client gets answers from a bookie that was restarted.

    The registration of the killed run is deleted and created again, and the client learns of both by events.
    """
    until(
        lambda: java.call("bookie_info", client=client, bookie=bookie.bookie_id, requested=1)["code"] == "OK",
        f"{client} does not reach {bookie.bookie_id}",
        timeout_s=REACHED_TIMEOUT_S,
    )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    class_path()  # skips the test before a process is started
    cluster = EtcdCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.add_bookies(3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def java(cluster: EtcdCluster) -> Iterator[JavaDriver]:
    """Start the driver with open clients `v2` and `v3`."""
    driver = JavaDriver(cluster.folder)
    try:
        open_clients(driver, cluster)
        yield driver
    finally:
        driver.close()


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest) -> str:
    """Return the name of the Java client; the tests run once for each protocol version."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    yield process
    process.close()


@pytest.fixture
def python_client(broker: BrokerProcess) -> Iterator[Any]:
    pulsar = pytest.importorskip("pulsar")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
    made = pulsar.Client(broker.url, operation_timeout_seconds=60, logger=logger)
    yield made
    made.close()


@pytest.fixture(scope="module")
def java_session(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaSession]:
    """A stock Java client of the broker."""
    session = JavaSession(tmp_path_factory.mktemp("java") / "log", broker.url)
    yield session
    session.close()
