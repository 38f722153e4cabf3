"""A cluster of stock Java bookies moves from ZooKeeper to etcd, and a bookie of ours joins it there."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.model import LedgerId
from tests.compat.conftest import TIMEOUTS
from tests.compat.test_java_ledgers import append, create, entries, read
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_bookie import JavaBookie
from tests.support.java_driver import JavaDriver, payload
from tests.support.polling import until
from tests.support.standalone import QUIRE, environment
from tests.support.zookeeper_server import ZookeeperServer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]
SIZE = 300
CLOSED, OPEN, SECRET = 0, 1, 2


def quire(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [QUIRE, "metadata", *words], capture_output=True, text=True, env=environment(), timeout=180, check=False
    )


def done(*words: str) -> str:
    """What a command prints; it must succeed."""
    ran = quire(*words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


async def test_a_cluster_on_zookeeper_continues_on_etcd_with_all_its_entries(tmp_path: Path) -> None:
    # Long hierarchical: the only one of BookKeeper's two usual arrangements whose paths differ on etcd.
    zookeeper = ZookeeperServer(tmp_path / "zookeeper", "longhierarchical")
    etcd: EtcdCluster | None = None
    java = JavaDriver(tmp_path)
    bookies = [JavaBookie(tmp_path / f"bookie{number}", zookeeper) for number in range(2)]
    try:
        bookies[0].format_cluster()
        start(bookies)
        settings = {"useV2WireProtocol": "true", **TIMEOUTS}
        java.call("open_client", client="before", uri=zookeeper.java_uri, settings=settings)
        options: list[dict[str, str]] = [{}, {}, {"digest": "MAC", "password": "secret"}]
        ledgers = [create(java, "before", (2, 2, 2), **each) for each in options]
        for ledger in ledgers:
            append(java, ledger, 120, SIZE)
        java.call("close", handle=ledgers[CLOSED]["handle"])
        target = f"file://{tmp_path}/backups"
        (tmp_path / "backups").mkdir()

        refused = quire("backup-zookeeper", "--zookeeper", zookeeper.address, "--to", target)
        assert refused.returncode == 1
        assert "belongs to a process that runs" in refused.stderr

        java.kill()
        for bookie in bookies:
            bookie.kill()
        until(
            lambda: quire("backup-zookeeper", "--zookeeper", zookeeper.address, "--to", target).returncode == 0,
            "the sessions of the killed processes do not end",
            timeout_s=120,
        )
        etcd = EtcdCluster(tmp_path / "etcd")
        restoring = ("restore", "--from", target, "--metadata", etcd.etcd.url)
        assert "3 ledgers" in done(*restoring)
        assert "is restored" in done(*restoring, "--yes")

        for bookie in bookies:
            bookie.move_to(etcd)
        start(bookies)
        without = [word for bookie in bookies for word in ("--without", bookie.bookie_id)]
        released = json.loads(done("release-hold", "--metadata", etcd.etcd.url, "--json", *without))
        assert released["idsAbove"] > max(ledger["ledger"] for ledger in ledgers)

        java = JavaDriver(tmp_path, "after")
        java.call("open_client", client="after", uri=etcd.java_uri, settings=settings)
        for ledger, each in zip(ledgers, options, strict=True):
            protection = {"digest": "CRC32C", "password": "", **each}
            opened = java.call("open", client="after", ledger=ledger["ledger"], recovery=True, **protection)
            assert opened["lac"] == 119
            assert read(java, opened, 0, 119) == entries(ledger, [SIZE] * 120)
        async with LedgerClient.connect(etcd.etcd.url) as client:
            number = LedgerId(ledgers[OPEN]["ledger"])
            async with client.open_ledger(number, recover=False) as reader:
                found = [bytes(entry) async for entry in reader]
            assert found == [payload(number, entry, SIZE) for entry in range(120)]

        [ours] = etcd.add_bookies(1)
        known = sorted([ours.bookie_id, *(bookie.bookie_id for bookie in bookies)])
        until(
            lambda: sorted(java.call("bookies", client="after")["writable"]) == known,
            "the Java client does not learn of the new bookie",
            timeout_s=90,
        )
        joined = create(java, "after", (3, 3, 2))
        assert joined["ledger"] > released["idsAbove"]
        append(java, joined, 50, SIZE)
        ensemble = java.call("metadata", client="after", ledger=joined["ledger"])["segments"]["0"]
        assert sorted(ensemble) == known
        assert read(java, joined, 0, 49) == entries(joined, [SIZE] * 50)
    finally:
        java.close()
        for bookie in bookies:
            bookie.kill()
        zookeeper.close()
        if etcd is not None:
            etcd.close()


def start(bookies: list[JavaBookie]) -> None:
    with ThreadPoolExecutor(len(bookies)) as threads:
        list(threads.map(JavaBookie.start, bookies))
