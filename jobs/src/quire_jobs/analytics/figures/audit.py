"""Differences between metadata, bookies and bucket. Each rule returns a DataFrame of findings; `all_of` joins them.

    finding      kind, severity, ledger, subject (bookie or object), detail, bytes

    LOST         data that should exist is missing, or no bookie holds it
    AT_RISK      fewer copies than required, or copies that differ
    WASTE        space that is not needed

A bookie that did not respond is unknown, never missing: no finding concerns its replicas.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from quire_jobs.analytics.figures.times import seconds

LOST: Final = "lost"
AT_RISK: Final = "at-risk"
WASTE: Final = "waste"
_OF_TOPIC: Final = "^[^/]+/[^/]+/persistent/[^/]+$"
"""Managed ledgers that the audit reads; those of other names may list ledgers that it does not know."""
_KEY: Final = r"^([0-9a-fA-F-]{36})-ledger-(\d+)(-index)?$"


def all_of(findings: Sequence[DataFrame]) -> DataFrame:
    """Return all findings, the most severe first."""
    order = F.when(F.col("severity") == LOST, 0).when(F.col("severity") == AT_RISK, 1).otherwise(2)
    return reduce(DataFrame.unionByName, findings).orderBy(order, "kind", "ledger", "subject")


def replicas(stored: DataFrame, expected: DataFrame, held: DataFrame, silent: DataFrame) -> list[DataFrame]:
    """Return differences between metadata of ledgers and ledgers of bookies."""
    asked = expected.join(silent.select("bookie"), "bookie", "left_anti").where(F.col("last") >= 0)
    held_entries = held.select(
        "ledger", "bookie", F.col("last").alias("held_last"), F.lit(True).alias("is_held"), "limbo"
    )
    both = asked.where("closed").join(held_entries, ["ledger", "bookie"], "left")
    names = stored.select("ledger", "entries", "bytes", "state")
    sized = held.join(names, "ledger")
    beyond = sized.where((F.col("state") == "closed") & (F.col("last") >= F.col("entries")))
    strays = held.join(stored.select("ledger"), "ledger").join(
        expected.select("ledger", "bookie"), ["ledger", "bookie"], "left_anti"
    )
    return [
        _found(
            held.join(stored.select("ledger"), "ledger", "left_anti"),
            "orphan",
            WASTE,
            F.col("bookie"),
            F.concat(F.lit("the metadata do not contain the ledger; last entry "), _shown("last")),
        ),
        _found(
            both.where(F.col("is_held").isNull()),
            "missing replica",
            AT_RISK,
            F.col("bookie"),
            F.concat(F.lit("must hold entries up to "), _shown("last"), F.lit(" and holds none")),
        ),
        _found(
            both.where(F.col("is_held") & F.col("held_last").isNull()),
            "unreadable replica",
            AT_RISK,
            F.col("bookie"),
            F.when(
                F.col("limbo"), F.lit("in limbo: it lost its data and does not know which entries it must hold")
            ).otherwise(F.lit("holds the ledger but cannot report its last entry because of damage")),
        ),
        _found(
            both.where(F.col("held_last") < F.col("last")),
            "short replica",
            AT_RISK,
            F.col("bookie"),
            F.concat(F.lit("ends at entry "), _shown("held_last"), F.lit(", must reach "), _shown("last")),
        ),
        _found(
            beyond,
            "divergent replica",
            AT_RISK,
            F.col("bookie"),
            F.concat(F.lit("holds entry "), _shown("last"), F.lit(" after the ledger's end at "), F.col("entries") - 1),
        ),
        _found(
            strays,
            "stray replica",
            WASTE,
            F.col("bookie"),
            F.lit("is in no ensemble of the ledger: left by a re-replication; garbage collection removes it"),
        ),
        _found(
            _nowhere(stored, held, silent),
            "lost ledger",
            LOST,
            F.lit(None).cast("string"),
            F.concat(F.lit("no bookie holds any of its "), _shown("entries"), F.lit(" entries")),
            F.col("bytes"),
        ),
    ]


def _nowhere(stored: DataFrame, held: DataFrame, silent: DataFrame) -> DataFrame:
    """Return closed ledgers with entries that no bookie holds; none while a bookie is silent, which may hold them."""
    closed = stored.where((F.col("state") == "closed") & (F.col("entries") > 0))
    quiet = silent.agg(F.count(F.lit(1)).alias("_silent"))
    unheld = closed.join(held.select("ledger").distinct(), "ledger", "left_anti")
    return unheld.crossJoin(quiet).where("_silent = 0").drop("_silent")


def lists(
    ledgers: DataFrame,
    stored: DataFrame,
    cursor_ledgers: DataFrame,
    now_s: float,
    grace_s: float,
    unknown_owners: Sequence[str] = (),
) -> list[DataFrame]:
    """Return differences between lists and cursors of managed ledgers and metadata of ledgers, older than the grace
    time.

    `unknown_owners`: managed ledgers whose list or cursors could not be read; none of their ledgers is reported as
    unused. Ledgers without an owner, such as those of schemas, are skipped, because the objects that refer to them are
    not read.
    """
    on_bookies = ledgers.where(~F.coalesce(F.col("bookkeeper_deleted"), F.lit(False)))
    old = F.coalesce(seconds(F.col("opened_at")) < F.lit(now_s - grace_s), F.lit(True))
    ours = stored.where(F.col("owner").rlike(_OF_TOPIC) & old & ~F.col("owner").isin(list(unknown_owners)))
    listed = on_bookies.select("topic", "ledger", F.col("entries").alias("listed_entries"), "state", "bytes")
    differing = listed.where(F.col("state") == "closed").join(
        stored.where(F.col("state") == "closed").select("ledger", "entries"), "ledger"
    )
    return [
        _found(
            listed.where(F.col("state") == "missing"),
            "listed without metadata",
            LOST,
            F.col("topic"),
            F.concat(
                F.lit("the topic lists the ledger with "),
                _shown("listed_entries"),
                F.lit(" entries; it was deleted"),
            ),
            F.col("bytes"),
        ),
        _found(
            differing.where(F.col("listed_entries") != F.col("entries")),
            "counts differ",
            AT_RISK,
            F.col("topic"),
            F.concat(
                F.lit("the topic counts "),
                _shown("listed_entries"),
                F.lit(" entries, its metadata "),
                _shown("entries"),
            ),
        ),
        _found(
            ours.where(F.col("cursor").isNull()).join(ledgers.select("ledger"), "ledger", "left_anti"),
            "unlisted ledger",
            WASTE,
            F.col("owner"),
            F.lit("created for this topic, which does not list it: left by a crash or a lost delete"),
            F.col("bytes"),
        ),
        _found(
            ours.where(F.col("cursor").isNotNull()).join(cursor_ledgers, "ledger", "left_anti"),
            "unused cursor ledger",
            WASTE,
            F.concat(F.col("owner"), F.lit(" "), F.col("cursor")),
            F.lit("created for this cursor, which does not refer to it"),
            F.col("bytes"),
        ),
    ]


def bucket(ledgers: DataFrame, objects: DataFrame) -> list[DataFrame]:
    """Return differences between offloaded ledgers and objects of a bucket. Objects with other names are ignored."""
    ours = objects.where(F.col("key").rlike(_KEY)).select(
        "key",
        "bytes",
        F.lower(F.regexp_extract("key", _KEY, 1)).alias("uuid"),
        F.regexp_extract("key", _KEY, 2).cast("long").alias("ledger"),
        (F.length(F.regexp_extract("key", _KEY, 3)) > 0).alias("is_index"),
    )
    offloaded = ledgers.where(F.coalesce("offloaded", F.lit(False)) & F.col("offload_uuid").isNotNull())
    attempts = ledgers.where(F.col("offload_uuid").isNotNull()).select(
        "ledger", F.lower("offload_uuid").alias("uuid"), F.lit(True).alias("is_named")
    )
    wanted = offloaded.select(
        "topic",
        "ledger",
        F.lower("offload_uuid").alias("uuid"),
        F.col("bytes").alias("ledger_bytes"),
        F.coalesce("bookkeeper_deleted", F.lit(False)).alias("only_here"),
        F.explode(F.array(F.lit(False), F.lit(True))).alias("is_index"),
    )
    gone = wanted.join(ours.drop("bytes"), ["ledger", "uuid", "is_index"], "left_anti")
    name = F.concat(
        F.col("uuid"), F.lit("-ledger-"), F.col("ledger"), F.when(F.col("is_index"), "-index").otherwise("")
    )
    orphans = ours.join(attempts, ["ledger", "uuid"], "left_anti")
    small = offloaded.select(
        "ledger", F.lower("offload_uuid").alias("uuid"), F.col("bytes").alias("ledger_bytes")
    ).join(ours.where(~F.col("is_index")), ["ledger", "uuid"])
    return [
        _found(
            gone.where("only_here"),
            "lost object",
            LOST,
            name,
            F.lit("the only copy of an offloaded ledger is not in the bucket"),
            F.col("ledger_bytes"),
        ),
        _found(
            gone.where(~F.col("only_here")),
            "missing object",
            AT_RISK,
            name,
            F.lit("not in the bucket; the bookies still have the ledger, which must not be deleted there"),
        ),
        _found(
            small.where(F.col("bytes") < F.col("ledger_bytes")),
            "truncated object",
            AT_RISK,
            F.col("key"),
            F.concat(F.lit("has "), _shown("bytes"), F.lit(" bytes, fewer than the ledger's "), _shown("ledger_bytes")),
        ),
        _found(
            orphans,
            "orphan object",
            WASTE,
            F.col("key"),
            F.lit("no topic refers to this attempt: left by an aborted attempt or a deleted topic"),
            F.col("bytes"),
        ),
    ]


def damages(checked: DataFrame) -> DataFrame:
    """Return findings of reading every entry of every replica, from the columns CHECKED. Unknown replicas are not
    findings."""
    found = checked.where(F.col("what").isNotNull())
    where = F.concat(F.lit("entries "), _shown("first"), F.lit(" to "), _shown("last"), F.lit(": "), F.col("what"))
    return _found(found, "damaged replica", AT_RISK, F.col("bookie"), where)


def by_kind(findings: DataFrame) -> DataFrame:
    """Return kind, severity, findings, ledgers, bytes."""
    return findings.groupBy("kind", "severity").agg(
        F.count(F.lit(1)).alias("findings"),
        F.count_distinct("ledger").alias("ledgers"),
        F.sum("bytes").alias("bytes"),
    )


def _found(
    rows: DataFrame, kind: str, severity: str, subject: Column, detail: Column, bytes_: Column | None = None
) -> DataFrame:
    return rows.select(
        F.lit(kind).alias("kind"),
        F.lit(severity).alias("severity"),
        F.col("ledger"),
        subject.alias("subject"),
        detail.alias("detail"),
        (F.lit(None) if bytes_ is None else bytes_).cast("long").alias("bytes"),
    )


def _shown(name: str) -> Column:
    return F.coalesce(F.col(name).cast("string"), F.lit("unknown"))
