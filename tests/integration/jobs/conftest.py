"""One Spark session and one standalone cluster, its metadata in a real etcd, for all tests of a process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")
pulsar = pytest.importorskip("pulsar")

from pyspark.sql import SparkSession  # noqa: E402  after the check that it is there

from quire_jobs.source import register  # noqa: E402
from tests.support.etcd_server import EtcdServer, require_etcd  # noqa: E402
from tests.support.spark_session import spark_session  # noqa: E402
from tests.support.standalone import StandaloneProcess  # noqa: E402

SETTINGS = ("managedLedgerMaxEntriesPerLedger=200", "managedLedgerMinLedgerRolloverTimeMinutes=0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder: each file is one xdist group, so that its tests share the session and the
    cluster."""
    for item in items:
        if "integration/jobs" in item.path.as_posix():
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(f"spark {item.path.stem}"))
            item.add_marker(pytest.mark.timeout(600))


@dataclass(frozen=True)
class Cluster:
    """A running standalone of three bookies."""

    process: StandaloneProcess
    metadata: str

    @property
    def options(self) -> dict[str, str]:
        """Options that every read needs."""
        return {"metadata": self.metadata}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that starts a new ledger every 200 entries."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "etcd").mkdir()
    etcd = EtcdServer(require_etcd(), folder / "etcd")
    etcd.start()
    metadata = f"etcd://{etcd.endpoint}"
    process = StandaloneProcess(folder, bookies=3, settings=SETTINGS, metadata=metadata)
    try:
        process.start()
        yield Cluster(process, metadata)
    finally:
        process.close()
        etcd.kill()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A local session with two cores and the registered source."""
    session = spark_session(tmp_path_factory.mktemp("python"), **{"session.timeZone": "UTC"})
    register(session)
    return session


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[Any]:
    """A stock client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(cluster.process.url, operation_timeout_seconds=60, logger=logger)
    yield client
    client.close()


@pytest.fixture(scope="session")
def publish(client: Any) -> Callable[..., None]:
    """`publish(topic, payloads, **producer options)`: send all payloads and wait for the acknowledgements."""

    def all_of(topic: str, payloads: list[bytes], keys: Sequence[str | None] | None = None, **options: Any) -> None:
        send(client, topic, zip(keys or [None] * len(payloads), payloads, strict=True), **options)

    return all_of


def send(client: Any, topic: str, messages: Iterable[tuple[str | None, bytes]], **options: Any) -> None:
    """Send keys and payloads with a producer of these options, and wait for the acknowledgements."""
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    failed: list[Any] = []
    for key, payload in messages:
        producer.send_async(
            payload,
            lambda result, _id: None if result == pulsar.Result.Ok else failed.append(result),
            **({} if key is None else {"partition_key": key}),
        )
    producer.flush()
    producer.close()
    assert not failed, failed
