"""Everything is lost but a backup of the metadata and the offloaded ledgers: a new etcd and new bookies continue.

Real etcd, bookies, broker and S3 server, each a process, with the stock client.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pulsar
import pytest

from tests.support.cluster_processes import ClusterBroker, auto_recovery, cluster_broker
from tests.support.etcd_cluster import EtcdCluster
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.s3_server import S3Server, require_s3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
KEPT, LOST, TYPED = (f"persistent://public/default/{name}" for name in ("kept", "lost", "typed"))
OFFLOADED, TAIL = 100, 30
BACKUPS = "s3://backups/prod"
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "managedLedgerOffloadDriver": "aws-s3",
    "managedLedgerOffloadBucket": "ledgers",
}
QUIRE = [sys.executable, "-c", "from quire_bookie.cli.main import main; main()"]
BOOKIES = 3
PATIENCE_S = 90.0


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    server = S3Server(require_s3(), tmp_path)
    server.start()
    for bucket in ("ledgers", "backups"):
        server.make_bucket(bucket)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


def quire(cluster: EtcdCluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Run a `quire` command on the cluster's metadata; return its exit code and its line of JSON."""
    command = [*QUIRE, *words, "--metadata", f"etcd://{cluster.etcd.endpoint}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def done(cluster: EtcdCluster, *words: str) -> dict[str, Any]:
    code, row = quire(cluster, *words)
    assert code == 0, row
    return row


def rest(broker: ClusterBroker, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{broker.http}{path}", data, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def payload(topic: str, number: int) -> bytes:
    return f"{topic} {number} ".encode() * 20


def send(broker: ClusterBroker, topic: str, numbers: range) -> None:
    client = pulsar.Client(broker.url)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in numbers:
        producer.send(payload(topic, number))
    client.close()


def read(broker: ClusterBroker, topic: str) -> list[bytes]:
    client = pulsar.Client(broker.url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    client.close()
    return found


def send_typed(broker: ClusterBroker) -> None:
    client = pulsar.Client(broker.url)
    client.create_producer(TYPED, schema=pulsar.schema.StringSchema()).send("text")
    client.close()


def acknowledge(broker: ClusterBroker, topic: str, count: int) -> None:
    """Acknowledge the first messages for the subscription `s`."""
    client = pulsar.Client(broker.url)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(count):
        message = consumer.receive(60_000)
        assert message.data() == payload(topic, number)
        consumer.acknowledge(message)
    client.close()


def first_received(broker: ClusterBroker, topic: str) -> bytes:
    """Return the first message that the subscription `s` gets."""
    client = pulsar.Client(broker.url)
    data: bytes = client.subscribe(topic, "s").receive(60_000).data()
    client.close()
    return data


def internal_stats(broker: ClusterBroker, topic: str) -> Any:
    name = topic.rpartition("/")[2]
    return rest(broker, "GET", f"/admin/v2/persistent/public/default/{name}/internalStats")


def ledgers(broker: ClusterBroker, topic: str) -> list[int]:
    return [row["ledgerId"] for row in internal_stats(broker, topic)["ledgers"]]


def has_cursor_ledger(broker: ClusterBroker, topic: str) -> bool:
    """Return whether the state of the subscription `s` is in a ledger."""
    return bool(internal_stats(broker, topic)["cursors"]["s"]["cursorLedgerLastEntry"] >= 0)


def offload(broker: ClusterBroker, topic: str) -> None:
    """Offload all closed ledgers."""
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}/offload"
    body = {"ledgerId": ledgers(broker, topic)[-1], "entryId": 0, "partitionIndex": -1}
    rest(broker, "PUT", path, body)
    until(lambda: rest(broker, "GET", path)["status"] != "RUNNING", "the offload does not end", timeout_s=PATIENCE_S)
    assert rest(broker, "GET", path)["status"] == "SUCCESS"


def decommission(cluster: EtcdCluster, bookies: list[str]) -> None:
    """Remove lost bookies from the cluster: no ledger names them any more."""
    port = free_port()
    http = f"http://127.0.0.1:{port}"
    with auto_recovery(cluster, httpServerPort=str(port)):
        until(lambda: _answers(f"{http}/api/v1/quire/drains"), "no auditor answers", timeout_s=PATIENCE_S)
        for bookie in bookies:
            command = [*QUIRE, "cluster", "decommission", bookie, "--http", http]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0 and "is decommissioned" in done.stdout + done.stderr, done.stdout + done.stderr


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_offloaded_ledgers_are_read_and_lost_ones_are_reported_by_name(s3: S3Server, tmp_path: Path) -> None:
    old = EtcdCluster(tmp_path / "old")
    try:
        old.add_bookies(BOOKIES)
        with cluster_broker(old, ports=None, **SETTINGS) as broker:
            send(broker, KEPT, range(OFFLOADED + TAIL))
            acknowledge(broker, KEPT, 60)
            until(lambda: has_cursor_ledger(broker, KEPT), "the cursor is not saved")
            offload(broker, KEPT)
            send(broker, LOST, range(60))
            send_typed(broker)
            listed = {topic: ledgers(broker, topic) for topic in (KEPT, LOST, TYPED)}
            assert len(listed[KEPT]) == 3 and len(listed[LOST]) == 2
            until(lambda: done(old, "metadata", "backup", "--to", BACKUPS)["ledgers"], "no backup")
            send(broker, LOST, range(60, 70))
        former = [bookie.bookie_id for bookie in old.bookies]
    finally:
        old.close()
    shutil.rmtree(tmp_path / "old")

    new = EtcdCluster(tmp_path / "new")
    try:
        assert done(new, "metadata", "restore", "--from", BACKUPS, "--yes")["restored"]
        new.add_bookies(BOOKIES)
        code, row = quire(new, "topic", "lost")
        assert code == 1 and all(f"--without {bookie}" in row["error"] for bookie in former), row
        without = [word for bookie in former for word in ("--without", bookie)]
        found = done(new, "topic", "lost", *without)
        states = {(row["topic"], row["ledger"]): (row["state"], row["entries"]) for row in found["ledgers"]}
        cursors = {row["cursor"]: row["state"] for row in found["ledgers"] if row["cursor"]}
        of_entries = {ledger for ids in listed.values() for ledger in ids}
        of_topics = {key: value for key, value in states.items() if key[1] in of_entries}
        assert of_topics == {
            (KEPT, listed[KEPT][0]): ("in the bucket", 50),
            (KEPT, listed[KEPT][1]): ("in the bucket", 50),
            (KEPT, listed[KEPT][2]): ("lost", None),
            (LOST, listed[LOST][0]): ("lost", 50),
            (LOST, listed[LOST][1]): ("lost", None),
            (TYPED, listed[TYPED][0]): ("lost", None),
        }
        assert cursors == {"s": "cursor goes back"}
        assert ("public/default/typed", "schema version 0 lost") in {
            (row["topic"], row["state"]) for row in found["ledgers"]
        }
        assert done(new, "topic", "lost", *without) == found, "a report changes nothing"
        command = [*QUIRE, "topic", "lost", *without, "--metadata", f"etcd://{new.etcd.endpoint}"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert f"{len(found['ledgers'])} ledgers are on no bookie: nothing was changed" in told.stderr
        assert all(f"{row['ledger']}" in told.stdout and row["state"] in told.stdout for row in found["ledgers"])
        assert done(new, "topic", "lost", *without, "--forget")["forgotten"]
        again = done(new, "topic", "lost", *without)["ledgers"]
        assert {row["state"] for row in again} == {"in the bucket"}
        assert done(new, "metadata", "release-hold", *without)["released"]

        with cluster_broker(new, ports=None, **SETTINGS) as broker:
            offloaded = [payload(KEPT, number) for number in range(OFFLOADED)]
            assert read(broker, KEPT) == offloaded
            assert read(broker, LOST) == []
            for topic in (KEPT, LOST):
                send(broker, topic, range(1000, 1010))
            send_typed(broker)
            later = {topic: [payload(topic, number) for number in range(1000, 1010)] for topic in (KEPT, LOST)}
            assert read(broker, KEPT) == offloaded + later[KEPT]
            assert read(broker, LOST) == later[LOST]
            assert read(broker, TYPED) == [b"text"]
            assert first_received(broker, KEPT) in offloaded[:61], "the lost state of the cursor skips nothing"
            issued = ledgers(broker, KEPT)[-1]
            assert issued > max(max(ids) for ids in listed.values()), "no id is used twice"
        decommission(new, former)
    finally:
        new.close()
