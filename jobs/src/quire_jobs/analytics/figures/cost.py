"""Location of the bytes and their monthly cost: by topic, tier, namespace and tenant. From ledgers only."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

GIB = 1024**3
BOOKIES = "bookies"
OBJECT_STORE = "object-store"


def by_topic_and_tier(ledgers: DataFrame, prices: Mapping[str, float], index_overhead: float = 0.0) -> DataFrame:
    """Return topic, tenant, namespace, tier, ledgers, entries, bytes, stored_bytes, cost_per_month.

    `bytes`: payload; `stored_bytes`: space used, write quorum times on bookies, once in the object store, each plus
    `index_overhead` (a share). A ledger in both tiers counts in both. `prices`: per GiB and month by tier; a tier
    without a price is free.
    """
    copies = F.coalesce(F.col("write_quorum"), F.lit(1))
    bytes_ = F.coalesce(F.col("bytes"), F.lit(0))
    entries = F.coalesce(F.col("entries"), F.lit(0))
    on_bookies = ledgers.where(~F.coalesce(F.col("bookkeeper_deleted"), F.lit(False))).select(
        "topic",
        F.lit(BOOKIES).alias("tier"),
        entries.alias("entries"),
        bytes_.alias("bytes"),
        (bytes_ * copies).alias("raw"),
    )
    in_bucket = ledgers.where(F.coalesce(F.col("offloaded"), F.lit(False))).select(
        "topic", F.lit(OBJECT_STORE).alias("tier"), entries.alias("entries"), bytes_.alias("bytes"), bytes_.alias("raw")
    )
    price = F.lit(0.0)
    for tier, amount in prices.items():
        price = F.when(F.col("tier") == tier, F.lit(float(amount))).otherwise(price)
    stored = F.ceil(F.sum("raw") * F.lit(1.0 + index_overhead)).cast("long")
    parts = F.split(F.regexp_replace("topic", "^[a-z-]+://", ""), "/")
    return (
        on_bookies.unionByName(in_bucket)
        .groupBy("topic", "tier")
        .agg(
            F.count(F.lit(1)).alias("ledgers"),
            F.sum("entries").alias("entries"),
            F.sum("bytes").alias("bytes"),
            stored.alias("stored_bytes"),
        )
        .select(
            "topic",
            parts[0].alias("tenant"),
            F.concat_ws("/", parts[0], parts[1]).alias("namespace"),
            "tier",
            "ledgers",
            "entries",
            "bytes",
            "stored_bytes",
            (F.col("stored_bytes") / F.lit(float(GIB)) * price).alias("cost_per_month"),
        )
    )


def summed(costs: DataFrame, *names: str) -> DataFrame:
    """Return costs by other columns of `by_topic_and_tier`, most expensive first."""
    return (
        costs.groupBy(*names)
        .agg(
            F.sum("ledgers").alias("ledgers"),
            F.sum("bytes").alias("bytes"),
            F.sum("stored_bytes").alias("stored_bytes"),
            F.sum("cost_per_month").alias("cost_per_month"),
        )
        .orderBy(F.desc("cost_per_month"), F.desc("stored_bytes"), *names)
    )


def twice_stored(ledgers: DataFrame) -> DataFrame:
    """Return topic, ledgers, bytes, stored_bytes of ledgers offloaded and still on bookies, during the deletion lag."""
    both = ledgers.where("offloaded AND NOT bookkeeper_deleted")
    return both.groupBy("topic").agg(
        F.count(F.lit(1)).alias("ledgers"),
        F.sum("bytes").alias("bytes"),
        F.sum(F.col("bytes") * F.coalesce(F.col("write_quorum"), F.lit(1))).alias("stored_bytes"),
    )
