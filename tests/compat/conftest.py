"""One cluster of three bookies on a real etcd, and one JVM with the stock Java client, for all tests of this folder."""

import time
from collections.abc import Iterator

import pytest

from tests.support.etcd_cluster import ClusterBookie, EtcdCluster
from tests.support.java_driver import JavaDriver, class_path

GENERATIONS = {"v2": "true", "v3": "false"}
REACHED_TIMEOUT_S = 90
FIRST_TEST_TIMEOUT_S = 1200
TIMEOUTS = {"addEntryTimeoutSec": "30", "readEntryTimeoutSec": "30"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with Java take minutes: CI runs them as slow ones. The first with a JVM may have to wait for the jars."""
    for item in items:
        if item.path.name.startswith("test_java_"):
            item.add_marker(pytest.mark.slow)
        if "java" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(FIRST_TEST_TIMEOUT_S))


def open_clients(java: JavaDriver, cluster: EtcdCluster, **settings: str) -> None:
    """Clients `v2` and `v3` of the driver, on that cluster."""
    for name, v2 in GENERATIONS.items():
        wanted = {"useV2WireProtocol": v2, **TIMEOUTS, **settings}
        java.call("open_client", client=name, uri=cluster.java_uri, settings=wanted)


def wait_reached(java: JavaDriver, client: str, bookie: ClusterBookie) -> None:
    """Until that Java client gets answers from a bookie that was started again.

    The registration of the killed run is deleted and made anew, and the client learns both by events.
    """
    deadline = time.monotonic() + REACHED_TIMEOUT_S
    while java.call("bookie_info", client=client, bookie=bookie.bookie_id, requested=1)["code"] != "OK":
        assert time.monotonic() < deadline, f"{client} does not reach {bookie.bookie_id}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    class_path()  # skips before anything is started
    cluster = EtcdCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.add_bookies(3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def java(cluster: EtcdCluster) -> Iterator[JavaDriver]:
    """With the clients `v2` and `v3` open."""
    driver = JavaDriver(cluster.folder)
    try:
        open_clients(driver, cluster)
        yield driver
    finally:
        driver.close()


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest) -> str:
    """Names the Java client to use: once each protocol generation."""
    name: str = request.param
    return name
