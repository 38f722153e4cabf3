"""The broker and the bookies of a standalone share one budget: a read of one must not wait for a read of the other."""

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import hostile_peers
from tests.support.hostile_peers import Peers
from tests.support.standalone import StandaloneProcess

pulsar = pytest.importorskip("pulsar")

BUDGET_MB = 48
TOPICS = [f"persistent://public/default/cold-{number}" for number in range(40)]
"""Each is read with 5 MiB of the budget: more than it has for all of them at once."""
BODY = bytes(1_000_000)
RECEIVE_S = 20.0
"""Less than the time after which the broker gives up a read of a bookie."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    found = StandaloneProcess(
        tmp_path, settings=(f"connectionMemoryMaxMb={BUDGET_MB}", "dbStorage_writeCacheMaxSizeMb=24")
    )
    found.start()
    yield found
    found.close()


def quiet_client(server: StandaloneProcess) -> Any:
    return pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def publish(server: StandaloneProcess) -> None:
    """A message to each topic."""
    client = quiet_client(server)
    for topic in TOPICS:
        client.create_producer(topic, batching_enabled=False).send(BODY)
    client.close()


def load(server: StandaloneProcess) -> None:
    """Have the broker open each topic, and read none."""
    client = quiet_client(server)
    for topic in TOPICS:
        client.create_producer(topic)
    client.close()


def test_cold_topics_that_are_read_at_once_and_fill_the_budget_are_all_read(server: StandaloneProcess) -> None:
    publish(server)
    server.stop()
    server.start()  # with empty caches
    load(server)
    with Peers(int(server.url.rsplit(":", 1)[1]), len(TOPICS)) as peers:
        peers.send(hostile_peers.connect())
        peers.wait_for_answers()
        for topic, peer in zip(TOPICS, peers.sockets, strict=True):
            peer.send(hostile_peers.subscribe(topic, "cold"))
        peers.wait_for_answers()
        peers.send(hostile_peers.flow(10))
        for topic, peer in zip(TOPICS, peers.sockets, strict=True):
            got = 0
            while got < len(BODY):
                assert select.select([peer], [], [], RECEIVE_S)[0], f"{topic} is not read"
                data = peer.recv(1 << 20)
                assert data, f"{topic} is closed"
                got += len(data)
