"""Offloaded ledgers (the bucket is a folder): read from the bucket, else from bookies; an error if both are gone."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pulsar")

from pyspark.sql import DataFrame, SparkSession

from quire_bookie.client import LedgerClient
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.offload.segment_writer import write_segment
from quire_broker.offload.target import OffloadTarget, open_target
from tests.integration.jobs.conftest import Cluster

Publish = Callable[..., None]
_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/offloaded{next(_names)}"


def offload(cluster: Cluster, topic: str, ledger: dict[str, Any], folder: Path) -> None:
    """Make an attempt like the offload job."""
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/offload"
    target = OffloadTarget("quire-folder", str(folder))
    ledger_id = ledger["ledgerId"]
    body = {"ledgerId": ledger_id, "driver": target.driver, "properties": target.properties}
    attempt = cluster.process.request("POST", path + "/begin", body)

    async def write() -> None:
        async with (
            LedgerClient.connect(cluster.metadata) as client,
            client.open_ledger(LedgerId(ledger_id), recover=False, accept_stored=to_read) as reader,
        ):
            await write_segment(open_target(target, {}), reader, attempt["uuid"])

    asyncio.run(write())
    done = {"ledgerId": ledger_id, "uuid": attempt["uuid"], "entries": ledger["entries"], "size": ledger["size"]}
    cluster.process.request("POST", path + "/complete", done)


async def forget(metadata: str, ledger_id: int) -> None:
    """Delete the bookies' copy."""
    async with LedgerClient.connect(metadata) as client:
        await client.delete_ledger(LedgerId(ledger_id))


def test_offloaded_ledgers_are_read_from_the_bucket_or_from_bookies(
    spark: SparkSession, cluster: Cluster, publish: Publish, topic: str, tmp_path: Path
) -> None:
    payloads = [b"%d" % number for number in range(700)]
    publish(topic, payloads, batching_enabled=False)
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}"
    first, second, *_ = cluster.process.request("GET", path + "/internalStats")["ledgers"]
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for ledger in (first, second):
        offload(cluster, topic, ledger, bucket)
    asyncio.run(forget(cluster.metadata, first["ledgerId"]))

    def read(**options: str) -> DataFrame:
        given = {**cluster.options, "topic": topic, "http": cluster.process.http, **options}
        return spark.read.format("quire").options(**given).load()

    # The first ledger is only in the bucket, the second in both tiers, the third only on the bookies.
    assert [bytes(row.payload) for row in read(splitBytes="2k").collect()] == payloads
    assert [bytes(row.payload) for row in read(readPriority="bookkeeper-first").collect()] == payloads

    for path_of_object in bucket.iterdir():
        if f"-ledger-{second['ledgerId']}" in path_of_object.name:
            path_of_object.unlink()
    assert [bytes(row.payload) for row in read().collect()] == payloads

    for path_of_object in bucket.iterdir():
        path_of_object.unlink()
    with pytest.raises(Exception, match=r"entries 0 to 199 of ledger .* are gone"):
        read().collect()
    rest = read(failOnDataLoss="false").collect()
    assert [bytes(row.payload) for row in rest] == payloads[200:]
