"""Schema versions of messages, their producers, and producers that lag behind. One pass over the messages."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quire_jobs.analytics.figures.times import HOUR_S, instant, seconds

_WIDTH_BYTES = 8


def version_number(version: Column) -> Column:
    """Return a schema version of 8 bytes, big-endian, as a number; null for anything else."""
    number = F.conv(F.hex(version), 16, 10).cast("long")
    return F.when(F.octet_length(version) == _WIDTH_BYTES, number)


def usage(messages: DataFrame) -> DataFrame:
    """Return topic, version, foreign (hex of a version that is not a number), producer, messages, bytes, first_s,
    last_s.

    `version` and `foreign` are null for messages without a schema.
    """
    number = version_number(F.col("schema_version"))
    foreign = F.when(F.col("schema_version").isNotNull() & number.isNull(), F.hex("schema_version"))
    return (
        messages.withColumn("version", number)
        .withColumn("foreign", foreign)
        .groupBy("topic", "version", "foreign", "producer")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.coalesce(F.col("size"), F.lit(0)).cast("long")).alias("bytes"),
            F.min(seconds(F.col("publish_time"))).alias("first_s"),
            F.max(seconds(F.col("publish_time"))).alias("last_s"),
        )
    )


def by_version(used: DataFrame, definitions: DataFrame) -> DataFrame:
    """Return a row per topic and version that is used or registered: messages, share, producers, times, `state`.

    `state`: current (the newest registered), old, unused, unknown to the registry, or without schema.
    """
    sums = used.groupBy("topic", "version", "foreign").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.count_distinct("producer").alias("producers"),
        F.min("first_s").alias("first_s"),
        F.max("last_s").alias("last_s"),
    )
    known = definitions.select(
        F.col("topic").alias("_topic"), F.col("version").alias("_version"), "type", "registered_at"
    ).withColumn("_newest", F.max("_version").over(Window.partitionBy("_topic")))
    joined = sums.join(
        known, (F.col("topic") == F.col("_topic")) & (F.col("version") == F.col("_version")), "full_outer"
    )
    state = (
        F.when(F.col("messages").isNull(), "unused")
        .when(F.col("foreign").isNotNull(), "unknown")
        .when(F.col("version").isNull(), "without schema")
        .when(F.col("_version").isNull(), "unknown")
        .when(F.col("_version") == F.col("_newest"), "current")
        .otherwise("old")
    )
    messages = F.coalesce(F.col("messages"), F.lit(0))
    return joined.select(
        F.coalesce("topic", "_topic").alias("topic"),
        F.coalesce("version", "_version").alias("version"),
        "foreign",
        "type",
        state.alias("state"),
        messages.alias("messages"),
        F.coalesce(F.col("bytes"), F.lit(0)).alias("bytes"),
        F.coalesce(F.col("producers"), F.lit(0)).alias("producers"),
        "first_s",
        "last_s",
        instant(F.col("first_s")).alias("first_message"),
        instant(F.col("last_s")).alias("last_message"),
        "registered_at",
    ).withColumn("share", F.col("messages") / F.sum("messages").over(Window.partitionBy("topic")))


def laggards(used: DataFrame, grace_s: float = HOUR_S) -> DataFrame:
    """Return topic, producer, version, newest_version, messages, last_message, behind_s.

    The producers that wrote an old version more than `grace_s` after the first message of the newest version in use,
    and did not write a newer one later. `behind_s`: time between these messages.
    """
    numbered = used.where(F.col("version").isNotNull())
    firsts = (
        numbered.groupBy("topic", "version")
        .agg(F.min("first_s").alias("begun_s"))
        .groupBy("topic")
        .agg(F.max(F.struct("version", "begun_s")).alias("_newest"))
    )
    last = Window.partitionBy("topic", "producer")
    return (
        numbered.withColumn("_last_s", F.max("last_s").over(last))
        .where(F.col("last_s") == F.col("_last_s"))
        .join(firsts, "topic")
        .withColumn("behind_s", F.col("last_s") - F.col("_newest.begun_s"))
        .where((F.col("version") < F.col("_newest.version")) & (F.col("behind_s") > grace_s))
        .select(
            "topic",
            "producer",
            "version",
            F.col("_newest.version").alias("newest_version"),
            "messages",
            instant(F.col("last_s")).alias("last_message"),
            "behind_s",
        )
    )
