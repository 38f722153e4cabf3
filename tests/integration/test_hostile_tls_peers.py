"""Peers of a bookie that hold memory over START_TLS: its memory has the same bound as with plaintext.

With the TLS of the event loop 300 peers that began a frame held 287 MiB in a bookie with a budget of 64 MiB, 900 held
721 MiB, and 300 that did not read held 250 to 300 MiB.
"""

import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quire_bookie.limits import MIB
from quire_bookie.wire import client_v3
from tests.support import hostile_peers
from tests.support.certificates import Authority
from tests.support.etcd_cluster import ClusterBookie, EtcdCluster
from tests.support.hostile_peers import Peers, resident_bytes
from tests.support.polling import until

BUDGET_BYTES = 64 * MIB
GROWTH_MAX_BYTES = 3 * BUDGET_BYTES
"""Of the resident memory: the budget, its quarter, reads under way twice, and what malloc keeps."""
PEERS = 300
CLOSED = 50
"""Peers whose end a test waits for. They are closed a dozen at a time, and all have sent before."""
LEDGER = 777_777
ENTRY_BYTES = 4_000_000


@pytest.fixture(scope="module")
def bookie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBookie]:
    """A bookie that offers TLS, and holds some large entries."""
    folder = tmp_path_factory.mktemp("hostile-tls")
    pem = Authority(folder).issue("bookie")
    cluster = EtcdCluster(folder)
    try:
        (found,) = cluster.add_bookies(
            1,
            connectionMemoryMaxMb=str(BUDGET_BYTES // MIB),
            stalledPeerTimeoutSeconds="2",
            tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
            tlsCertificatePath=pem.certificate,
            tlsKeyStore=pem.key,
        )
        until(lambda: is_ready(found), "the bookie is not ready")
        with Peers(found.port, 1) as writer:
            for entry in range(4):
                assert writer.send(hostile_peers.whole_add(LEDGER, entry, ENTRY_BYTES)) > ENTRY_BYTES
                writer.wait_for_answers()
        yield found
    finally:
        cluster.close()


def is_ready(bookie: ClusterBookie) -> bool:
    """Whether the bookie serves; it listens before."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{bookie.http_port}/readyz", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def metrics(bookie: ClusterBookie) -> str:
    """Return the text of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{bookie.http_port}/metrics", timeout=60) as response:
        return str(response.read().decode())


def peers(bookie: ClusterBookie, secured: bool) -> Peers:
    """Return connected peers, after the handshake if `secured`."""
    if not secured:
        return Peers(bookie.port, PEERS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Peers(bookie.port, PEERS, context, client_v3.start_tls(1))


@contextmanager
def bounded(bookie: ClusterBookie) -> Iterator[None]:
    """Sample the resident memory of the bookie, and check its growth at the end."""
    base = peak = resident_bytes(bookie.pid)
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, resident_bytes(bookie.pid))

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield
    finally:
        ended.set()
        sampling.join()
    grown = peak - base
    assert grown <= GROWTH_MAX_BYTES, f"{grown // MIB} MiB for a budget of {BUDGET_BYTES // MIB} MiB"


@hostile_peers.plain_or_tls
def test_incomplete_frames_are_bounded(bookie: ClusterBookie, secured: bool) -> None:
    before = hostile_peers.closed_for_memory(metrics(bookie), "frame")
    with bounded(bookie), peers(bookie, secured) as found:
        found.send(hostile_peers.begun_add(5_200_000, 5_253_000))
        until(lambda: found.closed() >= CLOSED, "few peers are closed", timeout_s=240, poll_s=0.1)
    assert hostile_peers.closed_for_memory(metrics(bookie), "frame") - before >= CLOSED


@hostile_peers.plain_or_tls
def test_responses_that_clients_do_not_read_are_bounded(bookie: ClusterBookie, secured: bool) -> None:
    before = hostile_peers.closed_for_memory(metrics(bookie), "reader")

    def held_and_closed() -> tuple[float, float]:
        text = metrics(bookie)
        held = hostile_peers.held_bytes(text)
        assert sum(held.values()) <= BUDGET_BYTES + BUDGET_BYTES // 4 + 16 * MIB
        return held["unsent"] + held["reads"], hostile_peers.closed_for_memory(text, "reader") - before

    with bounded(bookie):
        with peers(bookie, secured) as found:
            found.send(hostile_peers.reads(LEDGER, [0, 1, 2, 3] * 8))
            until(lambda: held_and_closed()[1] >= CLOSED, "few peers are closed", timeout_s=240, poll_s=0.1)
        until(lambda: held_and_closed()[0] == 0, "connections still hold memory", timeout_s=240, poll_s=0.1)
