"""Peers that hold memory, against a real `quire standalone`: it stays bounded, they are closed, others are served.

Before the budget 300 peers that began a frame held 1.5 GiB, and 80 that did not read held 1.2 to 2.8 GiB.
"""

import ssl
import time
from collections.abc import Iterator

import pytest

from quire_bookie.limits import MIB
from tests.support import hostile_peers
from tests.support.certificates import Authority
from tests.support.hostile_peers import Peers, resident_bytes
from tests.support.ports import free_port
from tests.support.standalone import StandaloneProcess

BUDGET_MB = 64
GROWTH_MAX_BYTES = 4 * BUDGET_MB * MIB
"""Of the resident memory: the budget, reads under way twice, and what malloc keeps."""
PEERS = 100
ENTRY_BYTES = 4_000_000
SETTINGS = (
    f"connectionMemoryMaxMb={BUDGET_MB}",
    "stalledPeerTimeoutSeconds=2",
    "dbStorage_writeCacheMaxSizeMb=24",
    "managedLedgerCacheSizeMB=8",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """One standalone that all attack."""
    folder = tmp_path_factory.mktemp("hostile")
    pem = Authority(folder).issue("broker")
    tls = (f"brokerServicePortTls={free_port()}", f"tlsCertificateFilePath={pem.certificate}")
    found = StandaloneProcess(folder, settings=(*SETTINGS, *tls, f"tlsKeyFilePath={pem.key}"))
    found.start()
    yield found
    found.close()


def held(server: StandaloneProcess) -> dict[str, float]:
    """What /metrics says that connections hold, by class."""
    return hostile_peers.held_bytes(server.text("/metrics"))


def closed(server: StandaloneProcess, kind: str) -> float:
    """How many connections it has closed for memory, by what they did."""
    return hostile_peers.closed_for_memory(server.text("/metrics"), kind)


def publish(server: StandaloneProcess, topic: str, *messages: bytes) -> None:
    """With the stock client."""
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(
        server.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        producer = client.create_producer(topic, send_timeout_millis=60_000, batching_enabled=False)
        for message in messages:
            producer.send(message)
    finally:
        client.close()


def watch(server: StandaloneProcess, base: int, peers: Peers) -> None:
    """Others are served meanwhile; in the end the peers are closed, and nothing is held. RSS stays below the bound."""
    publish(server, "persistent://public/default/others", b"one", bytes(MIB))
    budget = BUDGET_MB * MIB
    while True:
        assert sum(held(server).values()) <= budget + budget // 4 + 16 * MIB
        assert resident_bytes(server.pid) - base <= GROWTH_MAX_BYTES
        if peers.closed() == len(peers.sockets):
            break
        time.sleep(0.1)  # another process: there is no event to wait on; the run's own time limit ends this
    publish(server, "persistent://public/default/others", b"two")


def bookie_port(server: StandaloneProcess) -> int:
    return int(server._command[server._command.index("--bookie-port") + 1])


def broker_port(server: StandaloneProcess) -> int:
    return int(server.url.rsplit(":", 1)[1])


def broker_tls_port(server: StandaloneProcess) -> int:
    (setting,) = (word for word in server._command if word.startswith("brokerServicePortTls="))
    return int(setting.partition("=")[2])


def broker_peers(server: StandaloneProcess, secured: bool) -> Peers:
    if not secured:
        return Peers(broker_port(server), PEERS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Peers(broker_tls_port(server), PEERS, context)


def test_frames_that_bookies_get_in_part_are_bounded(server: StandaloneProcess) -> None:
    base, before = resident_bytes(server.pid), closed(server, "frame")
    with Peers(bookie_port(server), PEERS) as peers:
        peers.send(hostile_peers.begun_add(5_200_000, 5_253_000))
        watch(server, base, peers)
    assert closed(server, "frame") - before == PEERS


@hostile_peers.plain_or_tls
def test_frames_that_brokers_get_in_part_are_bounded(server: StandaloneProcess, secured: bool) -> None:
    base, before = resident_bytes(server.pid), closed(server, "frame")
    with broker_peers(server, secured) as peers:
        peers.send(hostile_peers.connect())
        peers.wait_for_answers()
        peers.send(hostile_peers.begun_send(5_200_000, 5_240_000))
        watch(server, base, peers)
    assert closed(server, "frame") - before == PEERS


def test_before_connect_a_broker_takes_no_large_frame(server: StandaloneProcess) -> None:
    base = resident_bytes(server.pid)
    with Peers(broker_port(server), PEERS) as peers:
        peers.send(hostile_peers.begun_send(5_200_000, 5_240_000))
        watch(server, base, peers)


@pytest.mark.parametrize(
    "said",
    [pytest.param(b"", id="nothing", marks=pytest.mark.slow), pytest.param(b"\x16\x03\x01\x02\x00\x01", id="a part")],
)
def test_handshakes_that_stall_are_ended_and_others_are_served(server: StandaloneProcess, said: bytes) -> None:
    base = resident_bytes(server.pid)
    with Peers(broker_tls_port(server), PEERS) as peers:
        peers.send(said)
        watch(server, base, peers)


def test_entries_that_clients_of_a_bookie_do_not_take_are_bounded(server: StandaloneProcess) -> None:
    with Peers(bookie_port(server), 1) as writer:
        for entry in range(4):
            writer.send(hostile_peers.whole_add(777_777, entry, ENTRY_BYTES))
        base, before = resident_bytes(server.pid), closed(server, "reader")
        with Peers(bookie_port(server), PEERS) as peers:
            peers.send(hostile_peers.reads(777_777, [0, 1, 2, 3] * 8))
            watch_readers(server, base, before)


@hostile_peers.plain_or_tls
def test_messages_that_consumers_do_not_take_are_bounded(server: StandaloneProcess, secured: bool) -> None:
    topic = f"persistent://public/default/unread-{secured}"
    publish(server, topic, *[bytes(ENTRY_BYTES)] * 8)
    base, before = resident_bytes(server.pid), closed(server, "reader")
    with broker_peers(server, secured) as peers:
        peers.send(hostile_peers.connect())
        peers.wait_for_answers()
        for at, peer in enumerate(peers.sockets):
            peer.send(hostile_peers.subscribe(topic, f"unread-{at}"))
        peers.wait_for_answers()
        peers.send(hostile_peers.flow(1000))
        watch_readers(server, base, before)


def watch_readers(server: StandaloneProcess, base: int, before: float) -> None:
    """As `watch`, without reading from the peers: until all that hold something have been closed."""
    publish(server, "persistent://public/default/others", b"one", bytes(MIB))
    budget = BUDGET_MB * MIB
    while True:
        by_class = held(server)
        assert sum(by_class.values()) <= budget + budget // 4 + 16 * MIB
        assert resident_bytes(server.pid) - base <= GROWTH_MAX_BYTES
        if closed(server, "reader") > before and not by_class["unsent"] and not by_class["reads"]:
            break
        time.sleep(0.1)  # another process: there is no event to wait on; the run's own time limit ends this
    publish(server, "persistent://public/default/others", b"two")
