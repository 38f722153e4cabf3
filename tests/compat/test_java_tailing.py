"""Tests of readers that follow a stock Java writer by its API: explicit LACs, long polls and deferred sync."""

from typing import Any

import pytest

from tests.compat.conftest import TIMEOUTS
from tests.compat.test_java_ledgers import append, create, read
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, JavaError, described
from tests.support.polling import until

pytestmark = pytest.mark.compat

SEEN_TIMEOUT_S = 90
SIZE = 200
QUORUMS = [(3, 3, 2), (3, 2, 2)]


@pytest.fixture(scope="module", autouse=True)
def explicit(java: JavaDriver, cluster: EtcdCluster) -> str:
    """Open a V3 client that sends its LAC to the bookies every 100 ms."""
    settings = {"useV2WireProtocol": "false", "explicitLacInterval": "100", **TIMEOUTS}
    java.call("open_client", client="explicit", uri=cluster.java_uri, settings=settings)
    return "explicit"


@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
def test_a_reader_sees_the_last_entry_by_the_explicit_lac(java: JavaDriver, digest: str) -> None:
    ledger = create(java, "explicit", digest=digest, password="secret")
    append(java, ledger, 20, SIZE)
    opened = java.call("open", client="v3", ledger=ledger["ledger"], digest=digest, password="secret", recovery=False)
    until(
        lambda: java.call("read_lac", handle=opened["handle"], how="explicit") >= 19,
        "the explicit LAC does not reach the last entry",
        timeout_s=SEEN_TIMEOUT_S,
    )
    assert read(java, opened, 0, 19) == [described(ledger["ledger"], entry, SIZE) for entry in range(20)]


@pytest.mark.parametrize("parallel", [False, True], ids=["one bookie", "all bookies"])
@pytest.mark.parametrize("quorums", QUORUMS, ids=lambda quorums: "E{}Qw{}Qa{}".format(*quorums))
def test_a_tail_reader_gets_each_entry_once_it_is_confirmed(
    java: JavaDriver, quorums: tuple[int, int, int], parallel: bool
) -> None:
    ledger = create(java, "explicit", quorums)
    append(java, ledger, 1, SIZE)
    opened = java.call("open", client="v3", ledger=ledger["ledger"], digest="CRC32C", recovery=False)
    writing = java.send("append", handle=ledger["handle"], count=60, size=SIZE, window=3)
    attached = 0
    for entry in range(61):
        found = java.call("long_poll", handle=opened["handle"], entry=entry, timeout_ms=20_000, parallel=parallel)
        assert found["lac"] >= entry
        # The entry comes with the LAC if the bookie that answers has a copy. A slow machine asks another bookie.
        entries = [found["entry"]] if found["entry"] else read(java, opened, entry, entry)
        assert entries == [described(ledger["ledger"], entry, SIZE)]
        attached += found["entry"] is not None
    assert attached > 30
    assert writing.result(30)["error"] == "OK"


def test_a_tail_reader_waits_for_a_writer_that_pauses(java: JavaDriver) -> None:
    ledger = create(java, "explicit")
    append(java, ledger, 5, SIZE)
    opened = java.call("open", client="v3", ledger=ledger["ledger"], digest="CRC32C", recovery=False)
    waiting = java.send("long_poll", handle=opened["handle"], entry=5, timeout_ms=20_000)
    assert java.call("long_poll", handle=opened["handle"], entry=4, timeout_ms=20_000)["lac"] >= 4
    assert not waiting.done()
    append(java, ledger, 1, SIZE)
    found = waiting.result(SEEN_TIMEOUT_S)
    assert (found["lac"], found["entry"]) == (5, described(ledger["ledger"], 5, SIZE))


def test_tail_reader_gets_only_the_lac_after_its_timeout(java: JavaDriver) -> None:
    ledger = create(java, "v3")
    append(java, ledger, 3, SIZE, window=1)
    opened = java.call("open", client="v3", ledger=ledger["ledger"], digest="CRC32C", recovery=False)
    assert opened["lac"] == 1
    assert java.call("long_poll", handle=opened["handle"], entry=2, timeout_ms=300) == {"lac": 1, "entry": None}


def test_many_tail_readers_are_served_at_once(java: JavaDriver) -> None:
    ledger = create(java, "explicit")
    append(java, ledger, 1, SIZE)
    readers = [
        java.call("open", client="v3", ledger=ledger["ledger"], digest="CRC32C", recovery=False) for _ in range(20)
    ]
    polls = [java.send("long_poll", handle=reader["handle"], entry=1, timeout_ms=20_000) for reader in readers]
    append(java, ledger, 1, SIZE)
    for poll in polls:
        assert poll.result(SEEN_TIMEOUT_S)["entry"] == described(ledger["ledger"], 1, SIZE)


@pytest.mark.parametrize("quorums", QUORUMS, ids=lambda quorums: "E{}Qw{}Qa{}".format(*quorums))
def test_the_lac_of_a_deferred_sync_ledger_moves_with_each_force(
    java: JavaDriver, quorums: tuple[int, int, int]
) -> None:
    ledger = create(java, "v3", quorums, deferred_sync=True)
    for round_ in (1, 2, 3):
        append(java, ledger, 50, SIZE)
        assert java.call("state", handle=ledger["handle"])["lac"] == 50 * (round_ - 1) - 1
        assert java.call("force", handle=ledger["handle"]) == 50 * round_ - 1
    assert read(java, ledger, 0, 149) == [described(ledger["ledger"], entry, SIZE) for entry in range(150)]
    java.call("close", handle=ledger["handle"])
    assert java.call("metadata", client="v3", ledger=ledger["ledger"])["last"] == 149


def test_forced_entries_survive_the_kill_of_all_bookies(java: JavaDriver, cluster: EtcdCluster) -> None:
    ledger = create(java, "v3", (3, 2, 2), deferred_sync=True)
    append(java, ledger, 100, SIZE)
    java.call("force", handle=ledger["handle"])
    for bookie in cluster.bookies:
        bookie.restart()
    wanted = [described(ledger["ledger"], entry, SIZE) for entry in range(100)]

    def recovered() -> Any:
        try:
            return java.call("open", client="v3", ledger=ledger["ledger"], digest="CRC32C", recovery=True)
        except JavaError:
            return None

    opened = until(recovered, "the ledger cannot be recovered", timeout_s=SEEN_TIMEOUT_S)
    assert opened["lac"] == 99
    assert read(java, opened, 0, 99) == wanted


def test_v2_client_itself_refuses_deferred_sync(java: JavaDriver) -> None:
    ledger = create(java, "v2", deferred_sync=True)
    assert java.call("append", handle=ledger["handle"], count=1, size=SIZE)["error"] == "IllegalOp"
