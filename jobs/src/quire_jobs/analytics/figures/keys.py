"""Distribution of messages over keys and partitions. One pass over the messages; the rest uses counts by key."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def by_key(messages: DataFrame) -> DataFrame:
    """Return topic, partition, key, messages, bytes. A null key means messages without one; an empty key is a key."""
    return messages.groupBy("topic", "partition", "key").agg(
        F.count(F.lit(1)).alias("messages"), F.sum(F.coalesce(F.col("size"), F.lit(0)).cast("long")).alias("bytes")
    )


def over_partitions(counts: DataFrame) -> DataFrame:
    """Return topic, key, messages, bytes, partitions: the counts over all partitions, for messages with a key."""
    return (
        counts.where(F.col("key").isNotNull())
        .groupBy("topic", "key")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.count_distinct("partition").alias("partitions"),
        )
    )


def hot_keys(counts: DataFrame, top: int) -> DataFrame:
    """Return topic, rank, key, messages, bytes, share (of the topic's keyed messages), partitions; `top` rows per
    topic."""
    keys = over_partitions(counts)
    order = Window.partitionBy("topic").orderBy(F.desc("messages"), F.desc("bytes"), "key")
    total = F.sum("messages").over(Window.partitionBy("topic"))
    return (
        keys.withColumn("rank", F.row_number().over(order))
        .withColumn("share", F.col("messages") / total)
        .where(F.col("rank") <= top)
        .select("topic", "rank", "key", "messages", "bytes", "share", "partitions")
    )


def frequencies(counts: DataFrame) -> DataFrame:
    """Return topic, messages, keys: how many keys have this many messages. At most sqrt(2 n) rows for n messages."""
    return over_partitions(counts).groupBy("topic", "messages").agg(F.count(F.lit(1)).alias("keys"))


def lorenz(frequent: DataFrame) -> DataFrame:
    """Return topic, keys_share, messages_share: share of messages that the busiest `keys_share` of keys have.
    Rising."""
    whole = Window.partitionBy("topic")
    down = whole.orderBy(F.desc("messages")).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    volume = F.col("keys") * F.col("messages")
    return frequent.select(
        "topic",
        (F.sum("keys").over(down) / F.sum("keys").over(whole)).alias("keys_share"),
        (F.sum(volume).over(down) / F.sum(volume).over(whole)).alias("messages_share"),
        F.sum("keys").over(down).alias("keys_so_far"),
        F.col("messages").alias("messages_each"),
    )


def concentration(curve: DataFrame) -> DataFrame:
    """Return topic, gini, keys_for_half, from `lorenz`.

    The Gini coefficient is 0 if all keys have the same number of messages, near 1 if one key has all: one minus twice
    the area below the curve that rises from the rarest keys. `keys_for_half`: number of the busiest keys with half of
    the messages.
    """
    order = Window.partitionBy("topic").orderBy("keys_share")
    width = F.col("keys_share") - F.lag("keys_share", 1, 0.0).over(order)
    height = F.col("messages_share") + F.lag("messages_share", 1, 0.0).over(order)
    before = F.lag("keys_so_far", 1, 0).over(order)
    share_before = F.lag("messages_share", 1, 0.0).over(order)
    # Within a group of equally busy keys the share rises evenly from one key to the next.
    step = (F.col("messages_share") - share_before) / (F.col("keys_so_far") - before)
    half = F.when(
        (F.col("messages_share") >= 0.5) & (share_before < 0.5), before + F.ceil((F.lit(0.5) - share_before) / step)
    )
    return (
        curve.withColumn("_area", width * height)
        .withColumn("_half", half)
        .groupBy("topic")
        .agg(F.greatest(F.lit(0.0), F.sum("_area") - 1).alias("gini"), F.min("_half").alias("keys_for_half"))
    )


def by_topic(counts: DataFrame) -> DataFrame:
    """Return a row per topic: messages, messages without a key, number of keys, the hottest key, and its effect.

    `consumers_useful`: above this number of consumers that share keys, the consumer of the hottest key has more than
    its even share, so that more consumers do not help it.
    """
    totals = counts.groupBy("topic").agg(
        F.sum("messages").alias("messages"),
        F.sum(F.when(F.col("key").isNull(), F.col("messages")).otherwise(0)).alias("without_key"),
    )
    keyed = (
        over_partitions(counts)
        .groupBy("topic")
        .agg(
            F.count(F.lit(1)).alias("keys"),
            F.max("messages").alias("_hottest"),
            F.count_if(F.col("messages") == 1).alias("keys_once"),
            F.count_if(F.col("partitions") > 1).alias("keys_in_several_partitions"),
            F.sum("messages").alias("_keyed"),
        )
    )
    share = F.col("_hottest") / F.col("_keyed")
    return (
        totals.join(keyed, "topic", "left")
        .join(concentration(lorenz(frequencies(counts))), "topic", "left")
        .select(
            "topic",
            "messages",
            "without_key",
            F.coalesce(F.col("keys"), F.lit(0)).alias("keys"),
            "keys_once",
            "keys_in_several_partitions",
            share.alias("hottest_share"),
            F.floor(F.lit(1.0) / share).cast("long").alias("consumers_useful"),
            "keys_for_half",
            "gini",
        )
    )


def by_partition(counts: DataFrame) -> DataFrame:
    """Return topic, partition, messages, bytes, keys, load (1: an even share). Omits partitions without messages."""
    whole = Window.partitionBy("topic")
    return (
        counts.groupBy("topic", "partition")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"), F.count("key").alias("keys"))
        .withColumn("load", F.col("messages") / F.avg("messages").over(whole))
    )
