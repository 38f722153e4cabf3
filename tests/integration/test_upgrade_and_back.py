"""Bookies and a broker go from the previous version to this one and back under load, on the same data.

The stock client and this version's ledger client write throughout; every acknowledged entry is compared at the end.
"""

import asyncio
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from tests.support.cluster_processes import ClusterBroker, cluster_broker
from tests.support.etcd_cluster import EtcdCluster
from tests.support.ledger_load import LedgerLoad, ledger_client
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.released_versions import PREVIOUS, require_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TOPIC = "persistent://public/default/orders"
BOOKIES = 4
THIS = sys.executable
BOOKIE_SETTINGS = {"zkTimeout": "4000", "gcWaitTime": "2000", "flushInterval": "500"}
BROKER_SETTINGS = {
    "metadataStoreSessionTimeoutMillis": "4000",
    "managedLedgerMaxEntriesPerLedger": "200",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


def payload(number: int) -> bytes:
    return b"%08d" % number * (1 + number % 50)


class Publisher:
    """Publishes numbered messages until it is stopped, each until it is acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged = 0
        self._stop = threading.Event()
        self._client = pulsar.Client(url, operation_timeout_seconds=60)
        self._producer = self._client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def progress(self, count: int) -> None:
        """Wait until `count` more are acknowledged."""
        wanted = self.acknowledged + count
        until(lambda: self.acknowledged >= wanted, "nothing is published", timeout_s=120)

    def stop(self) -> None:
        """Stop after the message in progress."""
        self._stop.set()
        self._thread.join(60)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.send(payload(self.acknowledged))
            self.acknowledged += 1


def consume(url: str, upto: int, count: int | None = None) -> set[int]:
    """Consume `count` messages as the subscription `s`, or until the one numbered `upto`; acknowledge them all."""
    client = pulsar.Client(url, operation_timeout_seconds=60)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    found: set[int] = set()
    received = 0
    while upto not in found and (count is None or received < count):
        message = consumer.receive(60_000)
        number = int(message.data()[:8])
        assert message.data() == payload(number)
        found.add(number)
        received += 1
        consumer.acknowledge(message)
    client.close()
    return found


def read_all(url: str, last: int) -> list[int]:
    """Read from the earliest message to the one numbered `last`, in order, without repetitions by the client."""
    client = pulsar.Client(url, operation_timeout_seconds=60)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found: list[int] = []
    while not found or found[-1] != last:
        data = reader.read_next(60_000).data()
        number = int(data[:8])
        assert data == payload(number)
        if number not in found[-5:]:
            found.append(number)
    client.close()
    return found


class Cluster:
    """The processes, each of either version."""

    def __init__(self, folder: Path, python: str) -> None:
        self.etcd = EtcdCluster(folder)
        port, http_port = free_ports(2)
        self._ports = (port, http_port)
        self.url = f"pulsar://127.0.0.1:{port}"
        self._broker = ExitStack()
        self.etcd.add_bookies(BOOKIES, python=python, **BOOKIE_SETTINGS)
        self.start_broker(python)

    def start_broker(self, python: str) -> ClusterBroker:
        """Kill the broker and start it in this version."""
        self._broker.close()
        return self._broker.enter_context(
            cluster_broker(self.etcd, ports=self._ports, python=python, **BROKER_SETTINGS)
        )

    def close(self) -> None:
        self._broker.close()
        self.etcd.close()


async def test_from_the_previous_version_to_this_one_and_back_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIRE_NATIVE", raising=False)  # The previous version is built without the native module.
    previous = await asyncio.to_thread(require_version, PREVIOUS)
    made = await asyncio.to_thread(Cluster, tmp_path / "cluster", previous)
    try:
        publisher = await asyncio.to_thread(Publisher, made.url)
        consumed: set[int] = set()
        async with ledger_client(made.etcd.etcd.url) as client:
            load = LedgerLoad(client, entries_of_a_ledger=300)
            load.start()

            async def progress() -> None:
                await load.progress(300)
                await asyncio.to_thread(publisher.progress, 50)

            async def move_bookies(python: str, *, kill: bool) -> None:
                for bookie in made.etcd.bookies:
                    bookie.python = python
                    await asyncio.to_thread(bookie.restart, kill=kill)
                    await progress()

            await progress()
            consumed |= await asyncio.to_thread(consume, made.url, -1, 40)
            await move_bookies(THIS, kill=False)
            await asyncio.to_thread(made.start_broker, THIS)
            await progress()
            consumed |= await asyncio.to_thread(consume, made.url, -1, 40)
            await asyncio.to_thread(made.start_broker, previous)
            await progress()
            consumed |= await asyncio.to_thread(consume, made.url, -1, 40)
            await move_bookies(previous, kill=True)
            await progress()
            await load.stop()
            await asyncio.to_thread(publisher.stop)
            await load.check(client)
        last = publisher.acknowledged - 1
        consumed |= await asyncio.to_thread(consume, made.url, last)
        assert consumed >= set(range(last + 1)), "the cursor skipped acknowledged messages"
        for python in (previous, THIS):
            await asyncio.to_thread(made.start_broker, python)
            assert await asyncio.to_thread(read_all, made.url, last) == list(range(last + 1))
    finally:
        await asyncio.to_thread(made.close)
