"""Tests of single requests of the stock Java client to one of our bookies: the answers and all error codes.

The result codes are those that the Java client reports, so their names are from the Java client.
"""

import itertools
from typing import Any

import pytest

from tests.compat.conftest import wait_reached
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, payload

pytestmark = pytest.mark.compat

HEADER_BYTES = 32
_ledgers = itertools.count(10_000_000_000)  # far above the ids that clients get


class Peer:
    """A Java client that sends requests to one bookie about one ledger without metadata."""

    def __init__(self, java: JavaDriver, client: str, bookie: str) -> None:
        self.java = java
        self.ledger = next(_ledgers)
        self.fixed = {"client": client, "bookie": bookie, "ledger": self.ledger, "v2": client == "v2"}
        self.fixed |= {"digest": "CRC32C", "password": "secret"}

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.java.call(f"bookie_{op}", **{**self.fixed, **arguments})
        return answer

    def start(self, op: str, **arguments: Any) -> Any:
        """Send a request like `ask`; return the future of the answer."""
        return self.java.send(f"bookie_{op}", **{**self.fixed, **arguments})

    def add(self, *entries: int, size: int = 20, **options: Any) -> list[str]:
        """Add single entries one after the other, with the LAC that a writer would send."""
        return [self.ask("add", entry=entry, size=size, **{"lac": entry - 1, **options})["code"] for entry in entries]

    def read(self, entry: int, **options: Any) -> tuple[str, bytes]:
        """Return the result code and the payload."""
        answer = self.ask("read", entry=entry, **options)
        return answer["code"], bytes.fromhex(answer["bytes"] or "")[HEADER_BYTES + 4 :]

    def payload(self, entry: int, size: int = 20) -> bytes:
        return payload(self.ledger, entry, size)


@pytest.fixture
def peer(java: JavaDriver, cluster: EtcdCluster, client: str) -> Peer:
    return Peer(java, client, cluster.bookies[0].bookie_id)


@pytest.fixture
def v2(java: JavaDriver, cluster: EtcdCluster) -> Peer:
    return Peer(java, "v2", cluster.bookies[0].bookie_id)


@pytest.fixture
def v3(java: JavaDriver, cluster: EtcdCluster) -> Peer:
    return Peer(java, "v3", cluster.bookies[0].bookie_id)


def test_an_entry_is_added_and_read(peer: Peer) -> None:
    assert peer.add(0, 1, 2) == ["OK"] * 3
    assert [peer.read(entry) for entry in (0, 1, 2)] == [("OK", peer.payload(entry)) for entry in (0, 1, 2)]
    assert peer.read(-1) == ("OK", peer.payload(2))


def test_missing_entries_and_ledgers_have_their_error_codes(peer: Peer) -> None:
    assert peer.read(0) == ("NoSuchLedgerExists", b"")
    assert peer.read(-1) == ("NoSuchLedgerExists", b"")
    peer.add(0, 5)
    assert peer.read(3) == ("NoSuchEntry", b"")
    assert peer.read(6) == ("NoSuchEntry", b"")
    assert peer.read(-1) == ("OK", peer.payload(5))


def test_wrong_key_neither_adds_nor_fences(peer: Peer) -> None:
    peer.add(0)
    assert peer.add(1, password="wrong") == ["UnauthorizedAccess"]
    assert peer.add(1, password="wrong", recovery=True) == ["UnauthorizedAccess"]
    assert peer.read(0, fence=True, password="wrong") == ("UnauthorizedAccess", b"")
    assert peer.add(1) == ["OK"]
    assert peer.read(1) == ("OK", peer.payload(1))


def test_fence_refuses_the_writer_and_lets_recovery_add(peer: Peer) -> None:
    peer.add(0, 1)
    assert peer.read(-1, fence=True) == ("OK", peer.payload(1))
    assert peer.add(2) == ["LedgerFenced"]
    assert peer.add(2, high_priority=True) == ["LedgerFenced"]
    assert peer.add(2, recovery=True) == ["OK"]
    assert peer.add(3, recovery=True, high_priority=True) == ["OK"]
    assert peer.read(3, fence=True, high_priority=True) == ("OK", peer.payload(3))
    assert peer.read(4, fence=True, high_priority=True) == ("NoSuchEntry", b"")
    assert peer.add(4) == ["LedgerFenced"]


def test_fence_of_an_unwritten_ledger_refuses_its_writer(peer: Peer) -> None:
    assert peer.read(-1, fence=True) == ("NoSuchEntry", b"")
    assert peer.add(0) == ["LedgerFenced"]
    assert peer.add(0, password="wrong", recovery=True) == ["UnauthorizedAccess"]
    assert peer.read(-1) == ("NoSuchEntry", b"")
    assert peer.add(0, recovery=True) == ["OK"]
    assert peer.read(-1) == ("OK", peer.payload(0))


def test_repeated_entry_is_acknowledged(peer: Peer) -> None:
    assert peer.add(0, 1, 0, 1) == ["OK"] * 4
    assert peer.read(0) == ("OK", peer.payload(0))
    assert peer.read(-1) == ("OK", peer.payload(1))


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20])
def test_entries_of_all_sizes_are_stored(peer: Peer, size: int) -> None:
    assert peer.add(0, 1, size=size) == ["OK"] * 2
    assert peer.read(1) == ("OK", peer.payload(1, size))


def test_entry_with_the_largest_frame_of_pulsar_is_stored(java: JavaDriver, cluster: EtcdCluster) -> None:
    limit = 5_253_120  # the length field is part of the frame for Java peers
    java.call(
        "open_client",
        client="pulsar",
        uri=cluster.java_uri,
        settings={"useV2WireProtocol": "true", "nettyMaxFrameSizeBytes": str(limit)},
    )
    peer = Peer(java, "pulsar", cluster.bookies[0].bookie_id)
    peer.fixed["v2"] = True
    size = limit - 4 - 24 - HEADER_BYTES - 4
    assert peer.add(0, size=size) == ["OK"]
    assert peer.read(0) == ("OK", peer.payload(0, size))
    assert peer.add(1, size=size + 1) == ["BookieHandleNotAvailable"]
    wait_reached(java, "pulsar", cluster.bookies[0])
    assert peer.read(1) == ("NoSuchEntry", b"")
    java.call("close_client", client="pulsar")


def test_frame_over_the_limit_only_closes_its_connection(java: JavaDriver, cluster: EtcdCluster) -> None:
    settings = {"nettyMaxFrameSizeBytes": str(8 << 20), "addEntryTimeoutSec": "5"}
    java.call("open_client", client="large", uri=cluster.java_uri, settings={"useV2WireProtocol": "true", **settings})
    peer = Peer(java, "large", cluster.bookies[0].bookie_id)
    peer.fixed["v2"] = True
    assert peer.add(0) == ["OK"]
    assert peer.add(1, size=6 << 20)[0] in ("BookieHandleNotAvailable", "Write", "Timeout")
    wait_reached(java, "large", cluster.bookies[0])
    assert peer.add(1) == ["OK"]
    assert peer.read(1) == ("OK", peer.payload(1))
    java.call("close_client", client="large")


# ---- batch read: V2
def test_batch_read_ends_at_its_count_its_bytes_or_a_gap(v2: Peer) -> None:
    assert v2.ask("batch_read", entry=0, count=10, max_bytes=1000)["code"] == "NoSuchLedgerExists"
    v2.add(*range(10), *range(11, 14), size=100)

    def batch(entry: int, count: int, max_bytes: int) -> list[int]:
        answer = v2.ask("batch_read", entry=entry, count=count, max_bytes=max_bytes)
        assert answer["code"] == "OK"
        return [int.from_bytes(bytes.fromhex(found)[8:16], "big") for found in answer["entries"]]

    assert batch(0, 4, 1 << 20) == [0, 1, 2, 3]
    assert batch(8, 100, 1 << 20) == [8, 9]
    assert batch(11, 100, 1 << 20) == [11, 12, 13]
    assert batch(0, 100, 36 + 3 * (136 + 4)) == [0, 1, 2]
    assert batch(0, 100, 36 + 3 * (136 + 4) - 1) == [0, 1]
    assert batch(0, 100, 1) == [0]
    assert batch(2, 0, 1 << 20) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert v2.ask("batch_read", entry=10, count=4, max_bytes=1 << 20)["code"] == "NoSuchEntry"


# ---- requests that only V3 has; a V2 client opens a V3 connection for some of them
def test_explicit_lac_is_stored_and_read_with_the_last_entry(peer: Peer) -> None:
    assert peer.ask("read_lac")["code"] == "NoSuchEntry"
    peer.add(0, 1, 2)
    answer = peer.ask("read_lac")
    assert (answer["code"], answer["explicit"]) == ("OK", "")
    assert bytes.fromhex(answer["last"])[HEADER_BYTES + 4 :] == peer.payload(2)
    assert peer.ask("write_lac", lac=2, password="wrong")["code"] == "UnauthorizedAccess"
    assert peer.ask("write_lac", lac=2)["code"] == "OK"
    answer = peer.ask("read_lac")
    assert [int.from_bytes(bytes.fromhex(answer["explicit"])[at : at + 8], "big") for at in (0, 8)] == [peer.ledger, 2]
    assert bytes.fromhex(answer["last"])[HEADER_BYTES + 4 :] == peer.payload(2)


def test_explicit_lac_may_be_the_first_request_of_a_ledger(v3: Peer) -> None:
    assert v3.ask("write_lac", lac=7)["code"] == "OK"
    answer = v3.ask("read_lac")
    assert (answer["code"], bytes.fromhex(answer["explicit"])[8:16]) == ("OK", (7).to_bytes(8, "big"))
    assert v3.add(8, password="wrong") == ["UnauthorizedAccess"]


def test_explicit_lac_is_accepted_after_a_fence(v3: Peer) -> None:
    v3.add(0)
    v3.read(0, fence=True)
    assert v3.ask("write_lac", lac=0)["code"] == "OK"


def test_read_returns_the_lac_that_the_bookie_knows(v3: Peer) -> None:
    v3.add(0, 1, 2)
    assert v3.ask("read", entry=0)["lac"] == 1
    v3.ask("write_lac", lac=2)
    assert v3.ask("read", entry=0)["lac"] == 2


def test_a_deferred_entry_is_readable_at_once_and_durable_after_a_force(v3: Peer) -> None:
    assert v3.add(0, 1, 2, deferred_sync=True) == ["OK"] * 3
    assert v3.read(1) == ("OK", v3.payload(1))
    assert v3.ask("force")["code"] == "OK"
    assert v3.add(3) == ["OK"]
    assert v3.read(-1) == ("OK", v3.payload(3))


def test_a_force_of_an_unknown_ledger_succeeds(v3: Peer) -> None:
    assert v3.ask("force")["code"] == "OK"


def test_disk_space_is_returned_as_requested(peer: Peer) -> None:
    both = peer.ask("info", requested=3)
    assert both["code"] == "OK"
    assert 0 < both["free"] < both["total"]
    assert peer.ask("info", requested=1)["total"] == both["total"]
    assert peer.ask("info", requested=1)["free"] == 0
    assert peer.ask("info", requested=2)["total"] == 0


def test_list_of_entries_contains_exactly_the_stored_entries(v3: Peer) -> None:
    assert v3.java.fails("bookie_entries", **v3.fixed, upto=5) == "NoSuchLedgerExists"
    present = [0, 1, 2, 5, 6, 9, *range(20, 60), 300, 301, 700]
    assert set(v3.add(*present)) == {"OK"}
    assert v3.ask("entries", upto=800) == {"ids": present, "total": len(present)}


def test_the_list_of_entries_of_a_ledger_that_was_only_fenced_is_empty(v3: Peer) -> None:
    v3.read(-1, fence=True)
    assert v3.ask("entries", upto=10) == {"ids": [], "total": 0}


# ---- long poll: V3
def poll(peer: Peer, previous_lac: int, timeout_ms: int, *, entry: int = -1, piggyback: bool = True) -> Any:
    options = {"entry": entry, "previous_lac": previous_lac, "timeout_ms": timeout_ms, "piggyback": piggyback}
    return peer.start("long_poll", **options)


def lac_and_payload(answer: dict[str, Any]) -> tuple[str, int, bytes]:
    return answer["code"], answer["lac"], bytes.fromhex(answer["bytes"] or "")[HEADER_BYTES + 4 :]


def test_long_poll_is_answered_at_once_when_the_lac_is_higher(v3: Peer) -> None:
    v3.add(0, 1, 2, 3)
    assert lac_and_payload(poll(v3, 0, 60_000).result(20)) == ("OK", 2, v3.payload(1))
    assert lac_and_payload(poll(v3, -1, 60_000).result(20)) == ("OK", 2, v3.payload(0))
    assert lac_and_payload(poll(v3, 1, 60_000, entry=2, piggyback=False).result(20)) == ("OK", 2, v3.payload(2))


def test_a_long_poll_wakes_when_an_entry_moves_the_lac(v3: Peer) -> None:
    v3.add(0, 1)
    waiting = [poll(v3, lac, 60_000) for lac in (0, 0, 1)]
    assert v3.add(2) == ["OK"]
    for found in waiting[:2]:
        assert lac_and_payload(found.result(20)) == ("OK", 1, v3.payload(1))
    assert not waiting[2].done()
    assert v3.add(3) == ["OK"]
    assert lac_and_payload(waiting[2].result(20)) == ("OK", 2, v3.payload(2))


def test_a_long_poll_wakes_when_an_explicit_lac_is_written(v3: Peer) -> None:
    v3.add(0, 1)
    waiting = poll(v3, 0, 60_000)
    assert v3.ask("write_lac", lac=1)["code"] == "OK"
    assert lac_and_payload(waiting.result(20)) == ("OK", 1, v3.payload(1))


def test_long_poll_ends_at_its_timeout_with_the_unchanged_lac(v3: Peer) -> None:
    v3.add(0, 1)
    assert lac_and_payload(poll(v3, 0, 300).result(20)) == ("OK", 0, b"")
    assert lac_and_payload(poll(v3, 5, 1, entry=1, piggyback=False).result(20)) == ("OK", 0, v3.payload(1))


def test_a_long_poll_of_an_unknown_ledger_is_answered_at_once(v3: Peer) -> None:
    assert poll(v3, 0, 60_000).result(20)["code"] == "NoSuchLedgerExists"


def test_a_fence_ends_a_long_poll(v3: Peer) -> None:
    v3.add(0, 1)
    waiting = poll(v3, 0, 60_000)
    for _ in range(20):
        v3.read(0)  # each request has its own thread, so the fence could overtake a poll that starts late
    v3.read(-1, fence=True)
    assert lac_and_payload(waiting.result(20))[:2] == ("OK", 0)


# ---- after a kill
def test_keys_fences_and_explicit_lacs_survive_a_kill(java: JavaDriver, cluster: EtcdCluster, client: str) -> None:
    bookie = cluster.bookies[1]
    written = Peer(java, client, bookie.bookie_id)
    fenced = Peer(java, client, bookie.bookie_id)
    lac = Peer(java, client, bookie.bookie_id)
    written.add(0, 1, 2)
    fenced.add(0)
    fenced.read(0, fence=True)
    lac.add(0, 1)
    lac.ask("write_lac", lac=1)
    bookie.restart()
    wait_reached(java, client, bookie)
    assert written.add(3, password="wrong") == ["UnauthorizedAccess"]
    assert written.add(3) == ["OK"]
    assert [written.read(entry)[1] for entry in range(4)] == [written.payload(entry) for entry in range(4)]
    assert fenced.add(1) == ["LedgerFenced"]
    assert bytes.fromhex(lac.ask("read_lac")["explicit"])[8:16] == (1).to_bytes(8, "big")
