"""Tests of the commands of the upstream shell for bookies or metadata, and of Java clients with read-only bookies."""

import json
import urllib.request
from typing import Any

import pytest

from tests.compat.test_java_ledgers import append, create, entries, read
from tests.support.etcd_cluster import ClusterBookie, EtcdCluster
from tests.support.java_driver import JavaDriver
from tests.support.polling import until

pytestmark = pytest.mark.compat

REGISTERED_TIMEOUT_S = 90


def shell(java: JavaDriver, cluster: EtcdCluster, *words: str, **settings: str) -> str:
    """Run `bookkeeper shell WORDS`, which must succeed; return its output."""
    done = java.call("shell", uri=cluster.java_uri, words=words, settings=settings)
    assert done["exit"] == 0, done["printed"]
    printed: str = done["printed"]
    return printed


def ids(cluster: EtcdCluster) -> list[str]:
    return sorted(bookie.bookie_id for bookie in cluster.bookies)


def test_the_shell_lists_our_bookies_and_their_disk_space(java: JavaDriver, cluster: EtcdCluster) -> None:
    listed = shell(java, cluster, "listbookies", "-rw")
    told = shell(java, cluster, "bookieinfo")
    for bookie in cluster.bookies:
        assert bookie.bookie_id in listed
        assert bookie.bookie_id in told
        assert str(bookie.port) in shell(java, cluster, "endpointinfo", "-b", bookie.bookie_id)
    assert "No bookie exists!" in shell(java, cluster, "listbookies", "-ro")
    assert '"writableBookiesCount" : 3' in shell(java, cluster, "clusterinfo")


def test_the_shells_simple_test_passes(java: JavaDriver, cluster: EtcdCluster) -> None:
    printed = shell(
        java, cluster, "simpletest", "-ensemble", "3", "-writeQuorum", "2", "-ackQuorum", "2", "-numEntries", "200"
    )
    assert "200 entries written to ledger" in printed


def test_the_shells_sanity_test_of_each_bookie_passes(java: JavaDriver, cluster: EtcdCluster) -> None:
    for bookie in cluster.bookies:
        printed = shell(
            java, cluster, "bookiesanity", "-e", "20", "-t", "20", bookieId=bookie.bookie_id, allowLoopback="true"
        )
        assert "succeeded" in printed


def test_the_shell_shows_ledgers_and_their_entries(java: JavaDriver, cluster: EtcdCluster, client: str) -> None:
    ledger = create(java, client, custom={"shown": "yes"})
    append(java, ledger, 10, 40)
    java.call("close", handle=ledger["handle"])
    number = str(ledger["ledger"])
    assert f"ledgerID: {number}" in shell(java, cluster, "listledgers")
    metadata = shell(java, cluster, "ledgermetadata", "-ledgerid", number)
    assert "CLOSED" in metadata
    assert "lastEntryId=9" in metadata
    shown = shell(java, cluster, "readledger", "-ledgerid", number, "-firstentryid", "2", "-lastentryid", "4", "-msg")
    for entry in (2, 3, 4):
        assert f"Lid={number}, Eid={entry}," in shown
    from_one = shell(
        java, cluster, "readledger", "-ledgerid", number, "-lastentryid", "9", "-b", cluster.bookies[0].bookie_id
    )
    for entry in range(9):  # this command omits the last entry
        assert f"Lid={number}, Eid={entry} " in from_one
    shell(java, cluster, "deleteledger", "-ledgerid", number, "-force")
    assert ledger["ledger"] not in java.call("list_ledgers", client=client)


def test_java_clients_weight_our_bookies_by_free_space(java: JavaDriver, cluster: EtcdCluster) -> None:
    for client in ("v2", "v3"):
        told = java.call("bookie_infos", client=client)
        assert sorted(told) == ids(cluster)
        assert all(0 < free < total for total, free in told.values())


# ---- read-only
def set_read_only(java: JavaDriver, bookie: ClusterBookie, on: bool) -> None:
    """Switch the bookie's state like an operator; wait until the Java clients know."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{bookie.http_port}/api/v1/bookie/state/readonly",
        json.dumps({"readOnly": on}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200

    def seen() -> set[bool]:
        return {bookie.bookie_id in java.call("bookies", client=client)["read_only"] for client in ("v2", "v3")}

    until(lambda: seen() == {on}, f"the clients do not see readOnly={on}", timeout_s=REGISTERED_TIMEOUT_S)


def test_read_only_bookie_serves_reads_and_recovery_and_refuses_adds(
    java: JavaDriver, cluster: EtcdCluster, client: str
) -> None:
    bookie = cluster.bookies[0]
    ledger = create(java, client)
    append(java, ledger, 20, 100)
    single: dict[str, Any] = {"client": client, "bookie": bookie.bookie_id, "ledger": ledger["ledger"]}
    single |= {"digest": "CRC32C", "v2": client == "v2", "lac": 19, "size": 100}
    set_read_only(java, bookie, True)
    try:
        assert java.call("bookie_add", **single, entry=20)["code"] == "WriteOnReadOnlyBookie"
        assert java.call("bookie_read", **single, entry=19)["code"] == "OK"
        if client == "v3":
            assert java.call("bookie_write_lac", **{**single, "lac": 19})["code"] == "WriteOnReadOnlyBookie"
            assert java.call("bookie_force", **single)["code"] == "OK"
        assert java.call("bookie_add", **single, entry=20, recovery=True, high_priority=True)["code"] == "OK"
        assert java.fails("create", client=client, ensemble=3, write_quorum=3, ack_quorum=2, digest="CRC32C") == (
            "NotEnoughBookies"
        )
        recovered = java.call("open", client=client, ledger=ledger["ledger"], digest="CRC32C", recovery=True)
        assert recovered["lac"] >= 19
        assert read(java, recovered, 0, 19) == entries(ledger, [100] * 20)
    finally:
        set_read_only(java, bookie, False)
    append(java, create(java, client), 5, 100)
