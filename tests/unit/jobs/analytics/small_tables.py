"""Small tables with the columns that analyses read; unimportant columns get defaults."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from quire_jobs.analytics import columns

TOPIC = "persistent://acme/shop/orders"
NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
NOON_S = NOON.timestamp()


def table(spark: SparkSession, schema: StructType, rows: Sequence[dict[str, Any]], **defaults: Any) -> DataFrame:
    """Return rows by column name; an unknown name is an error of the test."""
    names = [field.name for field in schema.fields]
    filled = [defaults | row for row in rows]
    for row in filled:
        assert row.keys() <= set(names), row.keys() - set(names)
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in filled], schema)


def messages(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return messages of one plain topic, in ledger 7."""
    return table(spark, columns.MESSAGES, rows, topic=TOPIC, partition=-1, ledger=7, entry=0, size=100, producer="p")


def ledgers(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return closed ledgers of one plain topic, 100 entries of 10 bytes each, three copies."""
    usual = {"topic": TOPIC, "partition": -1, "entries": 100, "bytes": 1000, "state": "closed", "offloaded": False}
    return table(spark, columns.LEDGERS, rows, **usual, bookkeeper_deleted=False, write_quorum=3, ensemble_size=3)


def found(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows as tuples of these columns, sorted."""
    return sorted((tuple(row) for row in frame.select(*names).collect()), key=repr)


def one(frame: DataFrame) -> dict[str, Any]:
    """Return the only row."""
    rows = frame.collect()
    assert len(rows) == 1, rows
    return rows[0].asDict()
