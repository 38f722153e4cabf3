"""Effect of other retentions, by the rules of the brokers' trimming (`managed_ledger/trimming.py`)."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from quire_jobs.analytics.figures.times import seconds

UNLIMITED = -1
_TOPIC = ("topic", "partition")


def slowest(cursors: DataFrame, broker_cursors: frozenset[str]) -> DataFrame:
    """Return topic, partition, slow_ledger, slow_entry, subscriptions: the lowest mark-delete position of each
    topic."""
    return cursors.groupBy(*_TOPIC).agg(
        F.min(F.struct("mark_ledger", "mark_entry")).alias("_mark"),
        F.count_if(~F.col("cursor").isin(*broker_cursors)).alias("subscriptions"),
    ).select(
        *_TOPIC,
        F.col("_mark.mark_ledger").alias("slow_ledger"),
        F.col("_mark.mark_entry").alias("slow_entry"),
        "subscriptions",
    )  # fmt: skip


def evaluated(ledgers: DataFrame, slow: DataFrame, options: DataFrame, now_s: float) -> DataFrame:
    """Return a row per ledger and option: `goes` if it is deleted, `held` if only a cursor keeps it.

    `options`: option, retention_s, retention_bytes; -1 keeps everything, 0 nothing. As in brokers: the newest ledger
    and open ones stay, ledgers are deleted from the oldest on, and without a subscription nothing is deleted unless a
    retention is set.
    """
    order = Window.partitionBy("option", *_TOPIC).orderBy("ledger")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = Window.partitionBy("option", *_TOPIC)
    size = F.coalesce(F.col("bytes"), F.lit(0))
    limited = (F.col("retention_s") != 0) | (F.col("retention_bytes") != 0)
    subscribed = F.coalesce(F.col("subscriptions"), F.lit(0)) > 0
    passed = F.col("slow_ledger").isNull() | (
        (F.col("slow_ledger") > F.col("ledger"))
        | ((F.col("slow_ledger") == F.col("ledger")) & (F.col("slow_entry") >= F.col("entries") - 1))
    )
    closed = (F.col("state") != "open") & (F.col("ledger") != F.max("ledger").over(whole))
    age_s = F.lit(now_s) - seconds(F.col("closed_at"))
    too_old = (F.col("retention_s") >= 0) & (F.coalesce(age_s, F.lit(0.0)) >= F.col("retention_s"))
    kept_bytes = F.sum(size).over(whole) - F.sum(size).over(so_far)
    too_much = (F.col("retention_bytes") >= 0) & (kept_bytes >= F.col("retention_bytes"))
    may = closed & (too_old | too_much) & (subscribed | limited)
    joined = ledgers.join(slow, list(_TOPIC), "left").crossJoin(F.broadcast(options))
    flagged = joined.withColumn("_free", may).withColumn("_goes", may & passed)
    return (
        flagged.withColumn("goes", F.min("_goes").over(so_far))
        .withColumn("_would", F.min("_free").over(so_far))
        .withColumn("held", F.col("_would") & ~F.col("goes"))
        .select(
            "option", *_TOPIC, "ledger", "entries", size.alias("bytes"), "write_quorum", "closed_at", "goes", "held"
        )
    )


def kept(rows: DataFrame) -> DataFrame:
    """Return option, topic, ledgers and bytes: all, kept, freed, kept only by cursors. From `evaluated`."""
    size = F.col("bytes")
    stored = size * F.coalesce(F.col("write_quorum"), F.lit(1))
    return rows.groupBy("option", "topic").agg(
        F.count(F.lit(1)).alias("ledgers"),
        F.count_if(~F.col("goes")).alias("ledgers_kept"),
        F.sum(size).alias("bytes"),
        F.sum(F.when(F.col("goes"), 0).otherwise(size)).alias("bytes_kept"),
        F.sum(F.when(F.col("goes"), size).otherwise(0)).alias("bytes_freed"),
        F.sum(F.when(F.col("goes"), stored).otherwise(0)).alias("stored_bytes_freed"),
        F.sum(F.when(F.col("held"), size).otherwise(0)).alias("bytes_held_by_cursors"),
        F.min(F.when(~F.col("goes"), F.col("closed_at"))).alias("oldest_kept"),
    )


def steady(rates: DataFrame, options: DataFrame) -> DataFrame:
    """Return option, topic, steady_bytes: the final size of each topic at its present rate if all cursors keep up.

    `rates`: topic, bytes_per_s. Null: it grows without limit.
    """
    by_time = F.when(F.col("retention_s") >= 0, F.col("bytes_per_s") * F.col("retention_s"))
    by_size = F.when(F.col("retention_bytes") >= 0, F.col("retention_bytes").cast("double"))
    # `least` ignores nulls: the result is null only if neither bound limits it.
    return rates.crossJoin(F.broadcast(options)).select(
        "option", "topic", F.least(by_time, by_size).alias("steady_bytes")
    )
