"""Unacknowledged entries of each cursor, its holes, and forecasts. From ledgers and cursors, not from messages."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quire_jobs.analytics.figures.times import instant, seconds

_CURSOR = ("topic", "partition", "cursor")
_TOPIC = ("topic", "partition")
_SPAN_MIN_S = 60.0


def ingest(ledgers: DataFrame, now_s: float, window_s: float) -> DataFrame:
    """Return topic, entries_per_s, bytes_per_s, stored_bytes_per_s: data written in the last `window_s`.

    A ledger written partly within the window counts for that part of its time. The rate is over the window, or over the
    time since the topic's first ledger was opened if that is shorter.
    """
    ended = F.least(F.coalesce(seconds(F.col("closed_at")), F.lit(now_s)), F.lit(now_s))
    begun = F.least(F.coalesce(seconds(F.col("opened_at")), ended), ended)
    low = F.greatest(begun, F.lit(now_s - window_s))
    share = (
        F.when(ended < F.lit(now_s - window_s), F.lit(0.0))
        .when(ended <= begun, F.lit(1.0))
        .otherwise(F.greatest(ended - low, F.lit(0.0)) / (ended - begun))
    )
    copies = F.coalesce(F.col("write_quorum"), F.lit(1))
    span = F.greatest(F.least(F.lit(window_s), F.lit(now_s) - F.min("_begun")), F.lit(1.0))
    return (
        ledgers.withColumn("_begun", begun)
        .withColumn("_share", share)
        .groupBy("topic")
        .agg(
            F.coalesce(F.sum(F.col("entries") * F.col("_share")) / span, F.lit(0.0)).alias("entries_per_s"),
            F.coalesce(F.sum(F.col("bytes") * F.col("_share")) / span, F.lit(0.0)).alias("bytes_per_s"),
            F.coalesce(F.sum(F.col("bytes") * F.col("_share") * copies) / span, F.lit(0.0)).alias("stored_bytes_per_s"),
        )
    )


def remaining(ledgers: DataFrame, cursors: DataFrame, acked: DataFrame) -> DataFrame:
    """Return a row per cursor and ledger from its mark-delete position on: entries, acked, left, bytes_left
    (estimated)."""
    entries = F.coalesce(F.col("entries"), F.lit(0))
    first = F.when(F.col("ledger") == F.col("mark_ledger"), F.col("mark_entry") + 1).otherwise(F.lit(0))
    after = F.greatest(entries - F.greatest(first, F.lit(0)), F.lit(0))
    singly = _clipped(acked, ledgers, cursors).groupBy(*_CURSOR, "ledger").agg(F.sum(_length()).alias("acked"))
    left = F.greatest(after - F.coalesce(F.col("acked"), F.lit(0)), F.lit(0))
    return (
        ledgers.join(cursors, list(_TOPIC))
        .where(F.col("ledger") >= F.col("mark_ledger"))
        .join(singly, [*_CURSOR, "ledger"], "left")
        .select(
            *_CURSOR,
            "ledger",
            entries.alias("entries"),
            F.greatest(first, F.lit(0)).alias("first_unacked"),
            F.coalesce(F.col("acked"), F.lit(0)).alias("acked"),
            left.alias("left"),
            F.when(entries > 0, F.col("bytes") * left / entries).otherwise(0.0).cast("long").alias("bytes_left"),
            "opened_at",
            "closed_at",
        )
    )


def backlog(ledgers: DataFrame, cursors: DataFrame, acked: DataFrame, now_s: float) -> DataFrame:
    """Return a row per cursor: backlog in entries and bytes, age of the oldest unacknowledged entry, holes, `ahead`.

    `ahead`: its mark-delete position is beyond the last entry of closed ledgers, as after a loss of metadata; its
    backlog is 0 then. In an open ledger a cursor may be ahead of the entries that were read: only the owner knows the
    newest ones. `oldest_age_s`: of the first unacknowledged entry, estimated within its ledger's time.
    """
    rows = remaining(ledgers, cursors, acked)
    age = F.when(F.col("left") > 0, F.lit(now_s) - _written_s(F.col("first_unacked"), now_s))
    sums = rows.groupBy(*_CURSOR).agg(
        F.sum("left").alias("backlog"),
        F.sum("bytes_left").alias("backlog_bytes"),
        F.max(age).alias("oldest_age_s"),
        F.count_if(F.col("left") > 0).alias("ledgers_left"),
    )
    ends = ledgers.groupBy(*_TOPIC).agg(
        F.max(F.when(F.col("entries") > 0, F.struct(F.col("ledger"), (F.col("entries") - 1).alias("entry")))).alias(
            "_last"
        ),
        F.max("ledger").alias("_newest"),
        F.collect_set(F.when(F.col("state") == "open", F.col("ledger"))).alias("_open"),
    )
    gaps = holes(ledgers, cursors, acked, now_s)
    summed = gaps.groupBy(*_CURSOR).agg(
        F.count(F.lit(1)).alias("holes"),
        F.sum("entries").alias("hole_entries"),
        F.max("age_s").alias("oldest_hole_age_s"),
    )
    mark = F.struct(F.col("mark_ledger").alias("ledger"), F.col("mark_entry").alias("entry"))
    last = F.struct(F.col("_last.ledger").alias("ledger"), F.col("_last.entry").alias("entry"))
    beyond = (F.col("_last").isNull() | (mark > last)) & (
        (F.col("mark_entry") >= 0) | (F.col("mark_ledger") > F.col("_newest")) | F.col("_newest").isNull()
    )
    # Before anything was written a cursor is at (-1, -1), which does not count as ahead.
    is_open = F.array_contains(F.coalesce("_open", F.array().cast("array<bigint>")), F.col("mark_ledger"))
    ahead = F.coalesce(beyond & (F.col("mark_ledger") >= 0) & ~is_open, F.lit(False))
    return (
        cursors.join(sums, list(_CURSOR), "left")
        .join(ends, list(_TOPIC), "left")
        .join(summed, list(_CURSOR), "left")
        .select(
            *_CURSOR,
            "mark_ledger",
            "mark_entry",
            *(F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("backlog", "backlog_bytes", "ledgers_left")),
            "oldest_age_s",
            *(F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("holes", "hole_entries")),
            "oldest_hole_age_s",
            ahead.alias("ahead"),
            "last_active",
            "unreadable",
        )
    )


def holes(ledgers: DataFrame, cursors: DataFrame, acked: DataFrame, now_s: float) -> DataFrame:
    """Return a row per hole: unacknowledged entries below an acknowledged one. ledger, first, last, entries, age_s.

    A hole across the end of a ledger is one hole in each. Unacknowledged entries above all acknowledged ones are no
    hole.
    """
    clipped = _clipped(acked, ledgers, cursors).select(*_CURSOR, "ledger", "first", "last")
    highest = clipped.groupBy(*_CURSOR).agg(F.max("ledger").alias("_highest"))
    spanned = (
        cursors.select(*_CURSOR, "mark_ledger", "mark_entry")
        .join(highest, list(_CURSOR))
        .join(ledgers.select(*_TOPIC, "ledger", "entries", "opened_at", "closed_at"), list(_TOPIC))
        .where((F.col("ledger") >= F.col("mark_ledger")) & (F.col("ledger") <= F.col("_highest")))
    )
    # The end of a ledger below the highest one bounds a hole like an acknowledged entry.
    fences = spanned.where(F.col("ledger") < F.col("_highest")).select(
        *_CURSOR,
        "ledger",
        F.coalesce("entries", F.lit(0)).alias("first"),
        F.coalesce("entries", F.lit(0)).alias("last"),
    )
    order = Window.partitionBy(*_CURSOR, "ledger").orderBy("first")
    begin = F.when(F.col("ledger") == F.col("mark_ledger"), F.col("mark_entry") + 1).otherwise(F.lit(0))
    start = F.greatest(F.coalesce(F.lag("last").over(order) + 1, begin), F.lit(0))
    found = (
        clipped.unionByName(fences)
        .join(spanned, [*_CURSOR, "ledger"])
        .withColumn("_start", start)
        .where(F.col("_start") < F.col("first"))
    )
    return found.select(
        *_CURSOR,
        "ledger",
        F.col("_start").alias("first"),
        (F.col("first") - 1).alias("last"),
        (F.col("first") - F.col("_start")).alias("entries"),
        (F.lit(now_s) - _written_s(F.col("_start"), now_s)).alias("age_s"),
    )


def _clipped(acked: DataFrame, ledgers: DataFrame, cursors: DataFrame) -> DataFrame:
    """Return acknowledged runs, limited to existing entries after the mark-delete position."""
    floor = F.when(F.col("ledger") == F.col("mark_ledger"), F.col("mark_entry") + 1).otherwise(F.lit(0))
    return (
        acked.join(cursors.select(*_CURSOR, "mark_ledger", "mark_entry"), list(_CURSOR))
        .join(ledgers.select(*_TOPIC, "ledger", F.coalesce("entries", F.lit(0)).alias("_entries")), [*_TOPIC, "ledger"])
        .where(F.col("ledger") >= F.col("mark_ledger"))
        .withColumn("first", F.greatest(F.col("first"), floor))
        .withColumn("last", F.least(F.col("last"), F.col("_entries") - 1))
        .where(F.col("first") <= F.col("last"))
    )


def _length() -> Column:
    return F.col("last") - F.col("first") + 1


def _written_s(entry: Column, now_s: float) -> Column:
    """Return when an entry was written, assuming that its ledger was written at a constant rate."""
    ended = F.coalesce(seconds(F.col("closed_at")), F.lit(now_s))
    begun = F.coalesce(seconds(F.col("opened_at")), ended)
    entries = F.greatest(F.col("entries"), F.lit(1))
    return F.least(begun + (ended - begun) * entry / entries, F.lit(now_s))


def trend(observations: DataFrame, names: list[str], value: str, now_s: float, window_s: float) -> DataFrame:
    """Return names, observations, per_s: the least-squares slope of `value` over the observations of the last
    `window_s`.

    `observations` has `observed_at`. Null if they cover less than a minute: a flush looks like growth then.
    """
    at = seconds(F.col("observed_at"))
    recent = observations.where(at >= F.lit(now_s - window_s))
    return recent.groupBy(*names).agg(
        F.count_distinct("observed_at").alias("observations"),
        F.when(
            F.max(at) - F.min(at) >= F.lit(_SPAN_MIN_S), F.regr_slope(F.col(value).cast("double"), at - F.lit(now_s))
        ).alias("per_s"),
    )


def drains(backlogs: DataFrame, trends: DataFrame, now_s: float) -> DataFrame:
    """Return backlogs with `per_s` (growth), `drains_in_s` and `drained_at`; null if they do not shrink or it is
    unknown."""
    falling = (F.col("per_s") < 0) & (F.col("backlog") > 0)
    left = F.when(F.col("backlog") == 0, F.lit(0.0)).when(falling, F.col("backlog") / -F.col("per_s"))
    return _with_end(
        backlogs.join(trends, list(_CURSOR), "left").withColumn("drains_in_s", left), "drains", "drained_at", now_s
    )


def fills(bookies: DataFrame, trends: DataFrame, ingest_per_bookie: Column, now_s: float) -> DataFrame:
    """Return bookies with used_bytes, used_share, per_s, `from_ingest`, `fills_in_s` and `full_at`.

    `per_s`: growth of the used space; with fewer than two observations `ingest_per_bookie`, as if nothing were ever
    trimmed. Null if the bookie does not fill.
    """
    used = F.col("total_bytes") - F.col("free_bytes")
    rate = F.coalesce(F.col("per_s"), ingest_per_bookie)
    left = F.when(rate > 0, F.col("free_bytes") / rate)
    joined = (
        bookies.join(trends, "bookie", "left")
        .withColumn("used_bytes", used)
        .withColumn("used_share", F.when(F.col("total_bytes") > 0, used / F.col("total_bytes")))
        .withColumn("from_ingest", F.col("per_s").isNull())
        .withColumn("fills_in_s", left)
        .withColumn("per_s", rate)
    )
    return _with_end(joined, "fills", "full_at", now_s)


def _with_end(frame: DataFrame, what: str, name: str, now_s: float) -> DataFrame:
    """Add the time of a forecast; null if it is more than a hundred years ahead, beyond supported dates."""
    left = F.col(f"{what}_in_s")
    return frame.withColumn(name, F.when(left < 100 * 365 * 86400.0, instant(F.lit(now_s) + left)))
