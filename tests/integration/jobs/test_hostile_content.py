"""Messages, schemas and names of a hostile producer, as a real Spark reads them and writes them to a table."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.integration.jobs.conftest import Cluster
from tests.support.broker_wire import Wire
from tests.unit.jobs.decode.test_messages import COMPRESS, metadata

Read = Callable[..., DataFrame]
NAMES = (
    "a`b",
    "a.b",
    "a b",
    "<script>alert(1)</script>",
    "x; drop table y --",
    "'\"",
    "${env:HOME}",
    "\u202egpj",
    "select",
)


def hostile_entries() -> list[bytes]:
    """Entries that a broker stores: their content is the producer's affair."""
    bomb = COMPRESS[3](bytes(1 << 20))
    version = (0).to_bytes(8, "big")
    good = json.dumps(dict.fromkeys(NAMES, 1)).encode()
    return [
        seal(metadata(schema_version=version, sequence_id=1), good),
        seal(metadata(schema_version=version, sequence_id=2), b"[" * 100_000),
        seal(metadata(schema_version=b"\x7f" * 4_000, sequence_id=3), good),
        seal(metadata(compression=3, uncompressed_size=10, sequence_id=4), bomb),
        seal(metadata(compression=3, uncompressed_size=2**32 - 1, sequence_id=5), bomb),
        seal(metadata(num_messages_in_batch=1 << 20, sequence_id=6), b"\0" * 8),
        seal(
            metadata(num_messages_in_batch=2_000, compression=3, uncompressed_size=8_000, sequence_id=7),
            COMPRESS[3](bytes(8_000)),
        ),
        seal(metadata(uuid="u", chunk_id=5, num_chunks_from_msg=100, sequence_id=8), b"x"),
        seal(metadata(uuid="u", chunk_id=2, num_chunks_from_msg=3, sequence_id=9), b"x"),
        seal(metadata(partition_key="<script>\x1b[2J\x00", schema_version=version, sequence_id=10), good),
    ]


async def publish_raw(port: int, topic: str, entries: list[bytes]) -> None:
    wire = await Wire.reach(port)
    await wire.connect()
    await wire.answer(pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=topic, request_id=1)))
    request = pb.CommandProducer(topic=topic, producer_id=1, request_id=2, producer_name="p")
    assert (await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))).type == Kind.PRODUCER_SUCCESS
    for number, entry in enumerate(entries):
        wire.writer.write(encode_send(1, number, entry))
        answer = await wire.next()
        assert isinstance(answer, pb.BaseCommand)
        assert answer.type == Kind.SEND_RECEIPT, (number, answer)
    wire.writer.close()


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    name = "persistent://public/default/hostile"
    fields = [{"name": name, "type": "int"} for name in NAMES]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    body = {"type": "JSON", "schema": schema, "properties": {}}
    cluster.process.request("POST", "/admin/v2/schemas/public/default/hostile/schema", body)
    port = int(cluster.process.url.rsplit(":", 1)[1])
    asyncio.run(publish_raw(port, name, hostile_entries()))
    return name


def test_every_entry_is_a_row_and_none_ends_the_query(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    frame = spark.read.format("quire").options(**cluster.options, topic=topic, http=cluster.process.http).load()
    rows = frame.select("sequence_id", "batch_index", "_error").collect()
    errors = {row.sequence_id: row._error for row in rows if row.batch_index == -1 or row.sequence_id == 6}
    assert sorted(errors) == [1, 2, 3, 4, 5, 6, 9, 10], errors
    assert [number for number, error in errors.items() if error] == [4, 5, 6, 9]
    assert sum(row.sequence_id >= 7 and row.batch_index >= 0 for row in rows) == 2_001, "one of entry 6"


def test_names_of_columns_are_names_only(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    frame = (
        spark.read.format("quire")
        .options(**cluster.options, topic=topic, mode="table", http=cluster.process.http)
        .load()
    )
    quoted = ["`" + name.replace("`", "``") + "`" for name in NAMES]
    rows = frame.where("_error is null").select(*quoted).collect()
    assert [tuple(row) for row in rows] == [(1,) * len(NAMES)] * 2
    reasons = [row._error for row in frame.where("_error is not null").select("_error").collect()]
    assert any("RecursionError" in reason for reason in reasons)
    assert any("a schema version of 4000 bytes" in reason for reason in reasons)
    frame.write.parquet(str(tmp_path / "table"))
    found: dict[str, Any] = {field.name: field for field in spark.read.parquet(str(tmp_path / "table")).schema.fields}
    assert set(NAMES) <= set(found)
