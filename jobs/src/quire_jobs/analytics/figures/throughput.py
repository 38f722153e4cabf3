"""Publish rates and message sizes over time. One pass over the messages; the rest uses its small result."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quire_jobs.analytics.figures.times import HOUR_S, bucket, instant, seconds

MINUTE_S = 60
_BUCKETS_MAX = 31


def writing_spans(ledgers: DataFrame) -> DataFrame:
    """Return topic, partition, ledger, from_s, until_s: when a ledger was written, by the cluster's clocks."""
    return ledgers.select(
        "topic",
        "partition",
        "ledger",
        seconds(F.col("opened_at")).alias("from_s"),
        seconds(F.col("closed_at")).alias("until_s"),
    )


def with_skew(messages: DataFrame, spans: DataFrame | None, now_s: float) -> DataFrame:
    """Add `skew_s`: how far the publish time is outside the time in which the message's ledger was written.

    0 within it; positive: later. Null without a publish time. Without spans only times after now are outside.
    """
    published = seconds(F.col("publish_time"))
    if spans is None:
        begun, ended = F.lit(None).cast("double"), F.lit(now_s)
        joined = messages
    else:
        joined = messages.join(F.broadcast(spans), ["topic", "partition", "ledger"], "left")
        begun, ended = F.col("from_s"), F.least(F.coalesce(F.col("until_s"), F.lit(now_s)), F.lit(now_s))
    skew = (
        F.when(F.col("publish_time").isNull(), F.lit(None).cast("double"))
        .when(published > ended, published - ended)
        .when(published < begun, published - begun)
        .otherwise(F.lit(0.0))
    )
    return joined.withColumn("skew_s", skew).select(*messages.columns, "skew_s")


def by_minute(messages: DataFrame, tolerance_s: float) -> DataFrame:
    """Return topic, minute_s, timed, messages, entries, bytes, size_max, sizes (a sketch), size_bucket counts, skew_s.

    `messages` has `skew_s`. If it exceeds the tolerance, or there is no time, `timed` is false and `minute_s` null:
    such messages are counted, but belong to no rate. An entry is counted at its first message. `skew_s`: the value with
    the largest absolute value.
    """
    timed = F.coalesce(F.abs(F.col("skew_s")) <= F.lit(tolerance_s), F.lit(False))
    size = F.coalesce(F.col("size").cast("long"), F.lit(0))
    two = F.when(size < 1, F.lit(0)).otherwise(F.floor(F.log2(size)).cast("int") + 1)
    minute = F.when(timed, bucket(F.col("publish_time"), MINUTE_S))
    return (
        messages.select(
            "topic",
            "partition",
            minute.alias("minute_s"),
            timed.alias("timed"),
            size.alias("size"),
            two.alias("two"),
            (F.coalesce(F.col("batch_index"), F.lit(-1)) <= 0).alias("begins"),
            "skew_s",
        )
        .groupBy("topic", "minute_s", "timed")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.count_if("begins").alias("entries"),
            F.sum("size").alias("bytes"),
            F.max("size").alias("size_max"),
            F.kll_sketch_agg_bigint("size").alias("sizes"),
            F.array(*(F.count_if(F.col("two") == power) for power in range(_BUCKETS_MAX + 1))).alias("by_power"),
            F.max_by("skew_s", F.abs(F.col("skew_s"))).alias("skew_s"),
            F.max("partition").alias("partition_max"),
        )
    )


def by_hour(minutes: DataFrame) -> DataFrame:
    """Return topic, hour, messages, bytes, rates over the hour and in its peak minute, sizes. From `by_minute`."""
    hour = F.floor(F.col("minute_s") / HOUR_S) * HOUR_S
    return (
        minutes.where("timed")
        .withColumn("hour_s", hour.cast("long"))
        .groupBy("topic", "hour_s")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.max("messages").alias("_peak_messages"),
            F.max("bytes").alias("_peak_bytes"),
            F.max_by("minute_s", "messages").alias("_peak_minute_s"),
            F.max("size_max").alias("size_max"),
            F.kll_merge_agg_bigint("sizes").alias("_sizes"),
        )
        .select(
            "topic",
            instant(F.col("hour_s")).alias("hour"),
            "hour_s",
            "messages",
            "bytes",
            (F.col("messages") / HOUR_S).alias("messages_per_s"),
            (F.col("bytes") / HOUR_S).alias("bytes_per_s"),
            (F.col("_peak_messages") / MINUTE_S).alias("peak_messages_per_s"),
            (F.col("_peak_bytes") / MINUTE_S).alias("peak_bytes_per_s"),
            instant(F.col("_peak_minute_s")).alias("peak_minute"),
            (F.col("bytes") / F.col("messages")).alias("size_mean"),
            *_quantiles(),
            "size_max",
        )
    )


def by_topic(minutes: DataFrame) -> DataFrame:
    """Return a row per topic: totals, times, mean and peak rates, sizes, messages without a usable time. From
    `by_minute`.

    Mean rates are over the minutes from the first to the last message; null if no message has a usable time.
    """
    in_time = F.col("timed")
    span_s = F.col("_last_s") - F.col("_first_s") + MINUTE_S
    totals = minutes.groupBy("topic").agg(
        F.sum("messages").alias("messages"),
        F.sum("entries").alias("entries"),
        F.sum("bytes").alias("bytes"),
        F.sum(F.when(~in_time, F.col("messages")).otherwise(0)).alias("without_usable_time"),
        F.sum(F.when(in_time, F.col("messages"))).alias("_timed"),
        F.sum(F.when(in_time, F.col("bytes"))).alias("_timed_bytes"),
        F.min("minute_s").alias("_first_s"),
        F.max("minute_s").alias("_last_s"),
        F.max(F.when(in_time, F.col("messages"))).alias("_peak_messages"),
        F.max(F.when(in_time, F.col("bytes"))).alias("_peak_bytes"),
        F.max_by("minute_s", F.when(in_time, F.col("messages"))).alias("_peak_minute_s"),
        F.count(F.when(in_time, F.lit(1))).alias("_active_minutes"),
        F.max_by("skew_s", F.abs(F.col("skew_s"))).alias("skew_s"),
        F.max("size_max").alias("size_max"),
        F.kll_merge_agg_bigint("sizes").alias("_sizes"),
        (F.max("partition_max") + 1).alias("partitions_seen"),
    )
    return totals.select(
        "topic",
        "partitions_seen",
        "messages",
        "entries",
        "bytes",
        instant(F.col("_first_s")).alias("first_minute"),
        instant(F.col("_last_s")).alias("last_minute"),
        (F.col("_timed") / span_s).alias("messages_per_s"),
        (F.col("_timed_bytes") / span_s).alias("bytes_per_s"),
        (F.col("_peak_messages") / MINUTE_S).alias("peak_messages_per_s"),
        (F.col("_peak_bytes") / MINUTE_S).alias("peak_bytes_per_s"),
        instant(F.col("_peak_minute_s")).alias("peak_minute"),
        F.col("_peak_minute_s").alias("peak_minute_s"),
        (F.col("_active_minutes") * MINUTE_S / span_s).alias("active_share"),
        (F.col("bytes") / F.col("messages")).alias("size_mean"),
        *_quantiles(),
        "size_max",
        "without_usable_time",
        F.col("skew_s").alias("largest_skew_s"),
    )


def by_hour_of_day(hours: DataFrame) -> DataFrame:
    """Return topic, hour_of_day, messages_per_s: means over all days from the topic's first to last. From `by_hour`."""
    days = Window.partitionBy("topic")
    day = F.floor(F.col("hour_s") / 86400)
    spread = hours.withColumn("_days", F.max(day).over(days) - F.min(day).over(days) + 1)
    return (
        spread.withColumn("hour_of_day", (F.pmod(F.col("hour_s"), F.lit(86400)) / HOUR_S).cast("int"))
        .groupBy("topic", "hour_of_day")
        .agg((F.sum("messages") / (F.first("_days") * HOUR_S)).alias("messages_per_s"))
    )


def sizes(minutes: DataFrame) -> DataFrame:
    """Return size_from, size_below, messages: number of messages by size, in powers of two. From `by_minute`."""
    counted = minutes.select(F.posexplode("by_power").alias("power", "count"))
    two = F.lit(2).cast("double")
    return (
        counted.groupBy("power")
        .agg(F.sum("count").alias("messages"))
        .where("messages > 0")
        .select(
            F.when(F.col("power") == 0, F.lit(0))
            .otherwise(F.pow(two, F.col("power") - 1))
            .cast("long")
            .alias("size_from"),
            F.pow(two, F.col("power")).cast("long").alias("size_below"),
            "messages",
        )
    )


def _quantiles() -> list[Column]:
    return [
        F.kll_sketch_get_quantile_bigint(F.col("_sizes"), F.lit(share)).alias(f"size_p{round(share * 100)}")
        for share in (0.5, 0.95, 0.99)
    ]
