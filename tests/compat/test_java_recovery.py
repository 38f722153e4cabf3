"""Tests of fencing and recovery with the stock Java client: dead writers, fenced writers and dead bookies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import open_clients, wait_reached
from tests.compat.test_java_ledgers import append, create, entries, read
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, described

pytestmark = pytest.mark.compat

QUORUMS = [(3, 3, 2), (3, 2, 2)]
SIZE = 700


def quorum_name(quorums: tuple[int, int, int]) -> str:
    return "E{}Qw{}Qa{}".format(*quorums)


def open_ledger(
    java: JavaDriver, client: str, ledger: int, *, recovery: bool, digest: str = "CRC32C"
) -> dict[str, Any]:
    opened: dict[str, Any] = java.call("open", client=client, ledger=ledger, digest=digest, recovery=recovery)
    return opened


@pytest.fixture
def victim(cluster: EtcdCluster, tmp_path: Path) -> Iterator[JavaDriver]:
    """Start a JVM that a test kills."""
    driver = JavaDriver(tmp_path, "victim")
    open_clients(driver, cluster)
    yield driver
    driver.close()


@pytest.mark.parametrize("digest", ["CRC32C", "MAC"])
@pytest.mark.parametrize("quorums", QUORUMS, ids=quorum_name)
def test_recovery_fences_a_writer_and_keeps_acknowledged_entries(
    java: JavaDriver, client: str, quorums: tuple[int, int, int], digest: str
) -> None:
    ledger = create(java, client, quorums, digest=digest)
    writing = java.send("write_until_error", handle=ledger["handle"], size=SIZE)
    java.wait_acked(ledger["ledger"], 300)
    recovered = open_ledger(java, client, ledger["ledger"], recovery=True, digest=digest)
    end = writing.result(60)
    assert end["error"] == "LedgerFenced"
    assert end["out_of_order"] == 0
    assert recovered["lac"] >= end["last"] >= 300
    assert read(java, recovered, 0, recovered["lac"]) == entries(ledger, [SIZE] * (recovered["lac"] + 1))
    metadata = java.call("metadata", client=client, ledger=ledger["ledger"])
    assert (metadata["state"], metadata["last"]) == ("CLOSED", recovered["lac"])
    assert java.call("append", handle=ledger["handle"], count=1, size=SIZE)["error"] in ("LedgerClosed", "LedgerFenced")
    assert java.call("check_ledger", client=client, ledger=ledger["ledger"], digest=digest) == []


def test_acknowledged_entries_of_a_killed_writer_are_recovered(java: JavaDriver, victim: JavaDriver) -> None:
    ledgers = [create(victim, name, quorums) for name in ("v2", "v3") for quorums in QUORUMS]
    for ledger in ledgers:
        victim.send("write_until_error", handle=ledger["handle"], size=SIZE, window=200)
    for ledger in ledgers:
        victim.wait_acked(ledger["ledger"], 500)
    victim.kill()
    for recoverer, ledger in zip(("v3", "v2") * 2, ledgers, strict=True):
        recovered = open_ledger(java, recoverer, ledger["ledger"], recovery=True)
        assert recovered["lac"] >= victim.acked(ledger["ledger"]) >= 500
        assert read(java, recovered, 0, recovered["lac"]) == entries(ledger, [SIZE] * (recovered["lac"] + 1))
        again = open_ledger(java, "v2", ledger["ledger"], recovery=True)
        assert (again["lac"], again["length"]) == (recovered["lac"], recovered["length"])
        assert java.call("check_ledger", client=recoverer, ledger=ledger["ledger"], digest="CRC32C") == []


def test_opening_without_recovery_does_not_disturb_the_writer(java: JavaDriver, client: str) -> None:
    ledger = create(java, client)
    append(java, ledger, 10, SIZE)
    opened = open_ledger(java, client, ledger["ledger"], recovery=False)
    append(java, ledger, 10, SIZE)
    assert java.call("read_lac", handle=opened["handle"], how="try") >= 9
    assert java.call("metadata", client=client, ledger=ledger["ledger"])["state"] == "OPEN"


def test_two_recoveries_at_once_agree(java: JavaDriver, client: str) -> None:
    ledger = create(java, client, (3, 2, 2))
    java.send("write_until_error", handle=ledger["handle"], size=SIZE)
    java.wait_acked(ledger["ledger"], 100)
    options = {"ledger": ledger["ledger"], "digest": "CRC32C", "recovery": True}
    opening = [java.send("open", client=name, **options) for name in ("v2", "v3", "v2", "v3")]
    found = [opened.result(60) for opened in opening]
    assert len({(opened["lac"], opened["length"]) for opened in found}) == 1
    assert read(java, found[0], 0, found[0]["lac"]) == entries(ledger, [SIZE] * (found[0]["lac"] + 1))


def test_bookies_killed_at_once_keep_every_acknowledged_entry(java: JavaDriver, cluster: EtcdCluster) -> None:
    ledgers = {name: create(java, name, (3, 2, 2)) for name in ("v2", "v3")}
    running = {
        name: java.send("write_until_error", handle=ledger["handle"], size=SIZE) for name, ledger in ledgers.items()
    }
    for ledger in ledgers.values():
        java.wait_acked(ledger["ledger"], 300)
    for bookie in cluster.bookies:
        bookie.kill()
    acked = {name: writing.result(90)["last"] for name, writing in running.items()}
    for bookie in cluster.bookies:
        bookie.start()
    for name, ledger in ledgers.items():
        for bookie in cluster.bookies:
            wait_reached(java, name, bookie)
        recovered = open_ledger(java, name, ledger["ledger"], recovery=True)
        assert recovered["lac"] >= acked[name] >= 300
        found = read(java, recovered, 0, recovered["lac"])
        assert found == [described(ledger["ledger"], entry, SIZE) for entry in range(recovered["lac"] + 1)]


@pytest.fixture(scope="module")
def larger(cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    """Add a fourth bookie: the Java client gives up when it cannot replace a failed one."""
    (spare,) = cluster.add_bookies(1)
    yield cluster
    spare.stop()
    cluster.bookies.remove(spare)


def test_a_ledger_is_recovered_while_one_of_its_bookies_is_dead(java: JavaDriver, larger: EtcdCluster) -> None:
    ledgers = {name: create(java, name) for name in ("v2", "v3")}
    for ledger in ledgers.values():
        append(java, ledger, 200, SIZE)
    dead = larger.bookies[2]
    dead.kill()
    try:
        for name, ledger in ledgers.items():
            recovered = open_ledger(java, name, ledger["ledger"], recovery=True)
            assert recovered["lac"] == 199
            assert read(java, recovered, 0, 199) == entries(ledger, [SIZE] * 200)
    finally:
        dead.start()
    for name, ledger in ledgers.items():
        wait_reached(java, name, dead)
        reopened = open_ledger(java, name, ledger["ledger"], recovery=False)
        assert read(java, reopened, 0, 199) == entries(ledger, [SIZE] * 200)


def test_writer_continues_after_a_bookie_is_killed(java: JavaDriver, larger: EtcdCluster, client: str) -> None:
    ledgers = [create(java, client, quorums) for quorums in QUORUMS]
    for ledger in ledgers:
        append(java, ledger, 50, SIZE)
    ensemble = java.call("metadata", client=client, ledger=ledgers[1]["ledger"])["segments"]["0"]
    dead = larger.bookie(ensemble[1])
    writing = [java.send("append", handle=ledger["handle"], count=3000, size=SIZE, window=50) for ledger in ledgers]
    dead.kill()
    ended = [written.result(90) for written in writing]
    try:
        assert [(end["error"], end["last"], end["out_of_order"]) for end in ended] == [("OK", 3049, 0)] * 2
        changed = java.call("metadata", client=client, ledger=ledgers[1]["ledger"])["segments"]
        assert len(changed) == 2
        assert dead.bookie_id not in changed[max(changed, key=int)]
        for ledger in ledgers:
            assert read(java, ledger, 0, 3049) == entries(ledger, [SIZE] * 3050)
    finally:
        dead.start()
    wait_reached(java, client, dead)
    for ledger in ledgers:
        java.call("close", handle=ledger["handle"])
        reopened = open_ledger(java, client, ledger["ledger"], recovery=True)
        assert reopened["lac"] == 3049
        assert read(java, reopened, 0, 3049) == entries(ledger, [SIZE] * 3050)


def test_admin_copies_entries_of_a_dead_bookie(java: JavaDriver, larger: EtcdCluster, client: str) -> None:
    ledger = create(java, client, (3, 2, 2), digest="MAC")
    append(java, ledger, 300, SIZE)
    java.call("close", handle=ledger["handle"])
    lost = java.call("metadata", client=client, ledger=ledger["ledger"])["segments"]["0"][0]
    larger.bookie(lost).kill()
    try:
        missing = java.call("check_ledger", client=client, ledger=ledger["ledger"], digest="MAC")
        assert missing == [[lost]]
        java.call("replicate", client=client, ledger=ledger["ledger"], lost=lost)
        assert java.call("check_ledger", client=client, ledger=ledger["ledger"], digest="MAC") == []
        assert lost not in java.call("metadata", client=client, ledger=ledger["ledger"])["segments"]["0"]
        opened = open_ledger(java, client, ledger["ledger"], recovery=False, digest="MAC")
        assert read(java, opened, 0, 299) == entries(ledger, [SIZE] * 300)
    finally:
        larger.bookie(lost).start()
    wait_reached(java, client, larger.bookie(lost))
