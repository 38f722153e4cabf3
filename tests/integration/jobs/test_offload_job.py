"""`quire jobs run offload --local` against a cluster of processes, etcd, and a real S3 server."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire_bookie.model import LedgerId
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.names import parse_topic
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.target import OffloadTarget
from quire_broker.offload.windows import WindowCache
from quire_broker.wire.entry import peek
from quire_jobs.errors import NotFoundError, SourceUnavailableError
from quire_jobs.job import parse_parameters
from quire_jobs.offload.job import Parameters, _planned
from quire_jobs.source.cluster import open_cluster
from quire_jobs.source.filters import Filters
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.options import parse_options
from quire_jobs.source.planning import plan
from quire_jobs.tables import TableTarget, open_table
from quire_jobs.tables.data_files import read_files
from tests.integration.jobs import spark_processes
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.polling import until
from tests.support.s3_server import S3Server, require_s3
from tests.support.standalone import QUIRE, StandaloneProcess

GUARD_S = 240
BUCKET = "ledgers"
TABLES = "tables"
SETTINGS = (
    "managedLedgerMaxEntriesPerLedger=100",
    "managedLedgerMinLedgerRolloverTimeMinutes=0",
    "defaultRetentionTimeInMinutes=-1",
    "defaultRetentionSizeInMB=-1",
    "retentionCheckIntervalInSeconds=1",
)


@dataclass
class World:
    """A standalone of three bookies and a bucket."""

    process: StandaloneProcess
    metadata: str
    s3: S3Server
    environment: dict[str, str] = field(default_factory=dict)

    def arguments(self, topic: str, *more: str) -> list[str]:
        """Return the command of a run that offloads this topic."""
        words = [QUIRE, "jobs", "run", "offload", "--json", "--metadata", self.metadata, "--http", self.process.http]
        words += [] if "--master" in more else ["--local"]
        return [*words, f"target=s3://{BUCKET}", f"endpoint={self.s3.endpoint}", f"topics={topic}", *more]

    def offload(self, topic: str, *more: str, code: int = 0) -> dict[str, Any]:
        """Run the job to its end and return its summary."""
        done = subprocess.run(
            self.arguments(topic, *more),
            capture_output=True,
            text=True,
            timeout=GUARD_S,
            env=self.environment,
            check=False,
        )
        assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
        summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert self.s3.secret_key not in done.stdout + done.stderr
        return summary

    def subscriptions(self, topic: str) -> list[str]:
        """Return the subscriptions of a topic."""
        path = topic.replace("://", "/")
        return list(self.process.request("GET", f"/admin/v2/{path}/subscriptions"))

    @property
    def objects(self) -> ObjectStore:
        """The bucket."""
        return open_object_store(f"s3://{BUCKET}", self.environment)

    def names(self) -> set[str]:
        """Return the names of all objects."""
        return set(shared_loop().run(self.objects.names))

    def records(self, topic: str) -> list[LedgerRecord]:
        """Return the stored list of a topic's ledgers."""

        async def read() -> list[LedgerRecord]:
            async with open_cluster(parse_options({"metadata": self.metadata, "topic": topic})) as cluster:
                node = await cluster.metadata.get(node_path(parse_topic(topic).ledger_name))
                assert node is not None
                return list(decode_list(node.value).ledgers)

        return shared_loop().run(read)

    def offloaded_payloads(self, records: list[LedgerRecord]) -> list[list[bytes]]:
        """Return the messages of each offloaded ledger, read from the bucket only; none for other ledgers."""

        async def read() -> list[list[bytes]]:
            found: list[list[bytes]] = []
            cache = WindowCache()
            for record in records:
                found.append([])
                if record.offload is not None and record.offload.complete:
                    reader = await SegmentReader.open(
                        self.objects, LedgerId(record.ledger_id), record.offload.uuid, cache
                    )
                    async for run in reader.scan():
                        for entry in run:
                            payload = bytes(entry.payload)
                            found[-1].append(payload[peek(payload).payload_offset :])
            await cache.close()
            return found

        return shared_loop().run(read)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("offload")
    for name in ("etcd", "s3"):
        (folder / name).mkdir()
    s3 = S3Server(require_s3(), folder / "s3")
    etcd = EtcdServer(require_etcd(), folder / "etcd")
    s3.start()
    s3.make_bucket(BUCKET)
    s3.make_bucket(TABLES)
    etcd.start()
    metadata = f"etcd://{etcd.endpoint}"
    before = dict(os.environ)
    os.environ.update(s3.environment)  # the broker reads the bucket with the same keys
    process = StandaloneProcess(folder, bookies=3, settings=SETTINGS, metadata=metadata)
    try:
        process.start()
        yield World(process, metadata, s3, before | s3.environment)
    finally:
        process.close()
        etcd.kill()
        s3.stop()
        for key in s3.environment:
            os.environ.pop(key)
        os.environ.update(before)


@pytest.fixture(scope="module")
def stock(world: World) -> Iterator[Any]:
    client = pulsar.Client(
        world.process.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.close()


def produce(stock: Any, topic: str, count: int, size_bytes: int = 1024, keys: int = 0) -> list[bytes]:
    """Publish and wait for acknowledgements, with `keys` different keys in turn. Return the payloads, in order."""
    payloads = [(b"%d " % number).ljust(size_bytes, b"%d" % (number % 7)) for number in range(count)]
    producer = stock.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number, payload in enumerate(payloads):
        key = {"partition_key": f"k{number % keys}"} if keys else {}
        producer.send_async(payload, lambda _result, _id: None, **key)
    producer.flush()
    producer.close()
    return payloads


def consumed(stock: Any, topic: str, count: int) -> list[bytes]:
    """Return the messages that a stock reader receives from the earliest one on."""
    reader = stock.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]
    reader.close()
    return found


def test_closed_ledgers_are_offloaded_once_and_stay_readable(world: World, stock: Any) -> None:
    topic = "persistent://public/default/once"
    sent = produce(stock, topic, 450)
    before = world.names()
    summary = world.offload(topic)
    assert summary["outcome"] == "succeeded" and summary["problems"] == []
    counts = summary["counts"]
    assert (counts["ledgers_offloaded"], counts["ledgers_failed"], counts["entries"]) == (4, 0, 400)
    records = world.records(topic)
    assert [record.offloaded for record in records] == [True] * 4 + [False]
    assert counts["size_bytes"] == sum(record.size_bytes for record in records[:4])
    assert len(world.names() - before) == 8, "data and index of each, and no note"
    assert world.offloaded_payloads(records[:4]) == [sent[at : at + 100] for at in range(0, 400, 100)]

    again = world.offload(topic)
    assert (again["counts"]["ledgers_offloaded"], again["counts"]["ledgers_left"]) == (0, 5)
    assert len(world.names() - before) == 8
    assert world.records(topic) == records
    assert consumed(stock, topic, 450) == sent


def test_after_a_killed_driver_the_next_run_completes_the_offload(world: World, stock: Any) -> None:
    topic = "persistent://public/default/killed"
    sent = produce(stock, topic, 650)
    ledgers = [sent[at : at + 100] for at in range(0, 600, 100)]
    before = world.names()
    with (world.process.data.parent / "killed.log").open("wb") as log:
        # 600 KB at 100 KB per second in two tasks: most of the time it is in the middle of a ledger.
        driver = subprocess.Popen(
            world.arguments(topic, "rate=100k", "--master", "local[2]"), stdout=log, stderr=log, env=world.environment
        )
    until(
        lambda: any(record.offloaded for record in world.records(topic)),
        "no ledger is offloaded",
        timeout_s=GUARD_S,
        process=driver,
    )
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()

    records = world.records(topic)[:6]
    assert not all(record.offloaded for record in records), "the driver was killed too late"
    expected = [payloads if record.offloaded else [] for record, payloads in zip(records, ledgers, strict=True)]
    assert world.offloaded_payloads(records) == expected
    assert consumed(stock, topic, 650) == sent

    summary = world.offload(topic)
    assert summary["outcome"] == "succeeded", summary
    assert summary["counts"]["ledgers_offloaded"] >= 1
    records = world.records(topic)[:6]
    assert world.offloaded_payloads(records) == ledgers
    uuids = {record.offload.uuid for record in records if record.offload is not None}
    objects = {name for name in world.names() - before if not name.startswith(".quire/")}
    assert {name[:36] for name in objects} == uuids and len(objects) == 12, "no unknown object remains"
    assert consumed(stock, topic, 650) == sent


def test_rejected_credentials_are_reported_before_anything_begins(world: World, stock: Any) -> None:
    topic = "persistent://public/default/refused"
    produce(stock, topic, 150)
    wrong = World(world.process, world.metadata, world.s3, world.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    failed = wrong.offload(topic, code=1)
    assert "the target cannot be written" in failed["error"] and "credentials are not accepted" in failed["error"]
    assert [record.offload for record in world.records(topic)] == [None, None]
    target = OffloadTarget.from_url(f"s3://{BUCKET}", endpoint=world.s3.endpoint)
    given = {"target": target.url, "metadata": world.metadata, "http": world.process.http}
    for more, said in (
        ({"topics": ["nothing-there"]}, "there is no topic persistent://public/default/nothing-there"),
        (
            {"topics": [topic], "ledgers": [999_999]},
            f"ledgers 999999: none of these topics lists a ledger with this id: {topic}",
        ),
    ):
        parameters = parse_parameters(Parameters, {**given, **more})  # type: ignore[dict-item]
        with pytest.raises(NotFoundError) as raised:
            shared_loop().run(lambda parameters=parameters: _planned(parameters, target))  # type: ignore[misc]
        assert said in str(raised.value)
    quiet = parse_parameters(Parameters, {**given, "topics": ["public/quiet/*"]})
    planned, _ = shared_loop().run(lambda: _planned(quiet, target))
    assert (planned.topics, planned.ledgers, planned.unmatched) == ((), (), ("public/quiet/*",)), (
        "its topics may be created later"
    )


def test_a_stock_consumer_reads_everything_after_the_bookies_copies_are_deleted(
    world: World, stock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.process.request("PUT", "/admin/v2/namespaces/public/short", {})
    world.process.request("PUT", "/admin/v2/namespaces/public/short/offloadDeletionLagMs", 0)
    topic = "persistent://public/short/gone"
    sent = produce(stock, topic, 250)
    assert world.offload("public/short/*")["counts"]["ledgers_offloaded"] == 2
    until(
        lambda: all(r.offload is not None and r.offload.bookies_deleted for r in world.records(topic)[:2]),
        "the bookies' copies still exist",
        timeout_s=GUARD_S,
    )
    assert consumed(stock, topic, 250) == sent
    options = parse_options({"metadata": world.metadata, "topic": topic})
    assert shared_loop().run(lambda: plan(options, Filters()))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(
        SourceUnavailableError, match=f"is in s3://{BUCKET} alone, which cannot be read: .*credentials are not accepted"
    ):
        shared_loop().run(lambda: plan(options, Filters()))


@pytest.fixture(scope="module")
def catalog(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An Iceberg catalog in the environment of the job's processes."""
    folder = tmp_path_factory.mktemp("catalog")
    given = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": f"file://{folder}/files"}
    for name, value in given.items():
        world.environment[f"PYICEBERG_CATALOG__OFFLOAD__{name}"] = os.environ[f"PYICEBERG_CATALOG__OFFLOAD__{name}"] = (
            value
        )
    return "offload"


def table_rows(target: TableTarget) -> list[tuple[int, int, bytes]]:
    """Return ledger, entry and payload of every row, in order."""
    table = open_table(target)
    schema = table.schema()
    assert schema is not None
    found = [row for batch in read_files(table.files(), schema, table.store) for row in batch.to_pylist()]
    return sorted((row["ledger"], row["entry"], row["payload"]) for row in found)


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_each_message_of_offloaded_ledgers_is_in_the_table_once_after_a_killed_driver(
    world: World, stock: Any, catalog: str, kind: str
) -> None:
    topic = f"persistent://public/default/rows-{kind}"
    sent = produce(stock, topic, 350)
    name = f"s3://{TABLES}/{kind}" if kind == "parquet" else f"{catalog}.topics.messages"
    given = (f"format={kind}", f"table={name}", "keyBuckets=2")
    target = TableTarget.parse(kind, name, endpoint=world.s3.endpoint if kind == "parquet" else "")
    with (world.process.data.parent / f"rows-{kind}.log").open("wb") as log:
        driver = subprocess.Popen(
            world.arguments(topic, *given), stdout=log, stderr=log, env=world.environment, start_new_session=True
        )
    try:
        # Once the table exists, rows are being written.
        until(
            lambda: open_table(target).schema() is not None,
            "there is no table",
            timeout_s=GUARD_S,
            poll_s=0.02,
            process=driver,
        )
        assert driver.poll() is None, "the driver ended before it was killed"
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)  # Python and its JVM at once
        driver.wait()
    assert all(record.offloaded for record in world.records(topic)[:3])

    summary = world.offload(topic, *given)
    assert summary["outcome"] == "succeeded", summary
    rows = table_rows(target)
    assert [payload for _, _, payload in rows] == sent[:300]
    assert summary["counts"]["table_rows"] in (0, 300) and summary["outputs"] == [target.shown]

    sent += produce(stock, topic, 100)
    again = world.offload(topic, *given)
    assert (again["counts"]["table_ledgers"], again["counts"]["table_rows"]) == (1, 100)
    assert [payload for _, _, payload in table_rows(target)] == sent[:400]
    assert not any(".job." in each for each in world.subscriptions(topic)), "its cursor was removed"


def test_after_killed_executors_each_ledger_is_offloaded_and_each_message_in_the_table_once(
    world: World, stock: Any, tmp_path: Path
) -> None:
    topic = "persistent://public/default/rows-executors"
    sent = produce(stock, topic, 350, keys=60)
    before = world.names()
    target = TableTarget.parse("parquet", f"file://{tmp_path}/table")
    words = ["--master", spark_processes.MASTER, "format=parquet", f"table={target.name}", "keyBuckets=64"]
    words += ["compact=false", "rate=100k"]  # slow, so that the executors are killed during the copy of 300 KB
    words += [word for name, value in spark_processes.SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    environment = world.environment | spark_processes.environment(tmp_path) | world.s3.environment
    log = tmp_path / "job.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            world.arguments(topic, *words), stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        until(
            lambda: any(record.offload is not None for record in world.records(topic)),
            lambda: log.read_text()[-4000:],
            timeout_s=GUARD_S,
            poll_s=0.02,
            process=driver,
        )
        assert spark_processes.kill(spark_processes.executors(driver.pid)) == 2
        assert not any(record.offloaded for record in world.records(topic)), "the executors were killed too late"
        strikes = spark_processes.kill_executors_while_files_come(driver, tmp_path / "table", counts=(2,))
        assert driver.wait(GUARD_S) == 0, log.read_text()[-6000:]
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert strikes == 1
    records = world.records(topic)[:3]
    assert world.offloaded_payloads(records) == [sent[at : at + 100] for at in range(0, 300, 100)]
    uuids = {record.offload.uuid for record in records if record.offload is not None}
    objects = {name for name in world.names() - before if not name.startswith(".quire/")}
    assert {name[:36] for name in objects} == uuids and len(objects) == 6, "no unknown object remains"
    assert [payload for _, _, payload in table_rows(target)] == sent[:300]
    written = {path.name for path in (tmp_path / "table").rglob("*.parquet")}
    listed = {file.path.rpartition("/")[2] for file in open_table(target).files()}
    assert listed < written, "readers ignore files of the killed executors"
    assert not any(".job." in each for each in world.subscriptions(topic)), "its cursor was removed"


def test_an_unusable_table_is_reported_before_anything_begins(world: World, stock: Any) -> None:
    topic = "persistent://public/default/no-table"
    produce(stock, topic, 150)
    failed = world.offload(topic, "format=parquet", "table=s3://no-such-bucket/x", code=1)
    assert "s3://no-such-bucket/x" in failed["error"] and "the bucket does not exist" in failed["error"]
    assert [record.offload for record in world.records(topic)] == [None, None]
