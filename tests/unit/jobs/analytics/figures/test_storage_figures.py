"""Cost, retention and audit of small clusters, computed by hand."""

from datetime import timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.trimming import trimmable
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_jobs.analytics import columns
from quire_jobs.analytics.figures import audit, cost, retention
from tests.unit.jobs.analytics.small_tables import NOON, NOON_S, TOPIC, found, ledgers, one, table

HOUR = timedelta(hours=1)
UUID = "11111111-2222-3333-4444-555555555555"
GIB = 1024**3


def test_each_tier_costs_its_price_and_a_ledger_in_both_costs_both(spark: SparkSession) -> None:
    frame = ledgers(
        spark,
        {"ledger": 1, "bytes": GIB},
        {"ledger": 2, "bytes": GIB, "offloaded": True},
        {"ledger": 3, "bytes": 2 * GIB, "offloaded": True, "bookkeeper_deleted": True},
        {"ledger": 9, "topic": "persistent://acme/other/t", "bytes": 0, "entries": 0},
    )
    costs = cost.by_topic_and_tier(frame, {"bookies": 0.1, "object-store": 0.02})
    assert found(costs, "namespace", "tier", "ledgers", "stored_bytes", "cost_per_month") == [
        ("acme/other", "bookies", 1, 0, 0.0),
        ("acme/shop", "bookies", 2, 6 * GIB, pytest.approx(0.6)),
        ("acme/shop", "object-store", 2, 3 * GIB, pytest.approx(0.06)),
    ]
    assert one(cost.summed(costs, "tenant"))["cost_per_month"] == pytest.approx(0.66)
    assert one(cost.twice_stored(frame))["stored_bytes"] == 3 * GIB
    with_overhead = cost.by_topic_and_tier(frame, {}, 0.5).where("tier = 'object-store'")
    assert (one(with_overhead)["stored_bytes"], one(with_overhead)["cost_per_month"]) == (int(4.5 * GIB), 0.0)


@pytest.mark.parametrize("mark", [(1, 99), (3, 99), (4, 50), None])
def test_deleted_ledgers_are_those_that_brokers_would_trim(spark: SparkSession, mark: tuple[int, int] | None) -> None:
    """Compare every option with the brokers' own rule."""
    hours_ago = {1: 30, 2: 20, 3: 2, 4: 0}
    rows = [
        {"ledger": ledger, "closed_at": NOON - ago * HOUR, "state": "closed" if ledger < 4 else "open"}
        for ledger, ago in hours_ago.items()
    ]
    records = [
        LedgerRecord(ledger, 100, 1000, int((NOON - ago * HOUR).timestamp() * 1000) if ledger < 4 else 0)
        for ledger, ago in hours_ago.items()
    ]
    options = [
        ("0", 0.0, 0),
        ("1d", 86400.0, -1),
        ("1h", 3600.0, -1),
        ("2k", -1.0, 2000),
        ("all", -1.0, -1),
        ("1h/3k", 3600.0, 3000),
    ]
    marks = [] if mark is None else [{"cursor": "s", "mark_ledger": mark[0], "mark_entry": mark[1]}]
    cursors = table(spark, columns.CURSORS, marks, topic=TOPIC, partition=-1)
    evaluated = retention.evaluated(
        ledgers(spark, *rows),
        retention.slowest(cursors, frozenset({"pulsar.dedup"})),
        spark.createDataFrame(options, "option string, retention_s double, retention_bytes long"),
        NOON_S,
    )
    evaluated_rows = evaluated.collect()
    for name, seconds, size in options:
        expected = trimmable(
            records,
            tail=4,
            slowest=None if mark is None else Position(*mark),
            now_ms=int(NOON_S * 1000),
            settings=ManagedLedgerSettings(retention_s=int(seconds), retention_bytes=size),
        )
        assert sorted(row.ledger for row in evaluated_rows if row.option == name and row.goes) == expected, name
    if mark == (1, 99):
        zero = next(row for row in retention.kept(evaluated).collect() if row.option == "0")
        assert (zero.bytes_freed, zero.bytes_held_by_cursors, zero.stored_bytes_freed) == (1000, 2000, 3000)


def test_in_the_long_run_the_lower_limit_counts(spark: SparkSession) -> None:
    rates = spark.createDataFrame([("t", 10.0)], "topic string, bytes_per_s double")
    options = spark.createDataFrame(
        [("a", 60.0, -1), ("b", 60.0, 100), ("c", -1.0, -1)], "option string, retention_s double, retention_bytes long"
    )
    assert found(retention.steady(rates, options), "option", "steady_bytes") == [("a", 600), ("b", 100), ("c", None)]


def kinds(findings: DataFrame) -> list[tuple[object, ...]]:
    return [(row.kind, row.ledger, row.subject) for row in findings.collect()]


def test_replicas_are_compared_and_silent_bookies_are_unknown(spark: SparkSession) -> None:
    stored = table(
        spark,
        columns.STORED,
        [{"ledger": ledger, "state": "closed", "entries": 100, "bytes": 10} for ledger in (1, 2, 3)]
        + [{"ledger": 4, "state": "open"}, {"ledger": 5, "state": "closed", "entries": 0, "bytes": 0}],
    )
    expected = table(
        spark,
        columns.EXPECTED,
        [{"ledger": ledger, "bookie": bookie, "last": 99} for ledger in (1, 2, 3) for bookie in "ab"]
        + [{"ledger": 4, "bookie": "a", "last": -1, "closed": False}, {"ledger": 5, "bookie": "a", "last": -1}],
        closed=True,
    )
    held = table(
        spark,
        columns.HELD,
        [
            {"ledger": 1, "bookie": "a", "last": 99},
            {"ledger": 1, "bookie": "b", "last": 42},
            {"ledger": 2, "bookie": "a", "last": 120},
            {"ledger": 2, "bookie": "c", "last": 99},
            {"ledger": 4, "bookie": "a", "last": 7},
            {"ledger": 8, "bookie": "a", "last": 3},
        ],
        fenced=False,
        limbo=False,
    )
    none_silent = table(spark, columns.SILENT, [])
    everything = audit.all_of(audit.replicas(stored, expected, held, none_silent))
    assert kinds(everything) == [
        ("lost ledger", 3, None),
        ("divergent replica", 2, "a"),
        ("missing replica", 2, "b"),
        ("missing replica", 3, "a"),
        ("missing replica", 3, "b"),
        ("short replica", 1, "b"),
        ("orphan", 8, "a"),
        ("stray replica", 2, "c"),
    ]
    silent = table(spark, columns.SILENT, [{"bookie": "b", "reason": "stopped"}])
    assert kinds(audit.all_of(audit.replicas(stored, expected, held, silent))) == [
        ("divergent replica", 2, "a"),
        ("missing replica", 3, "a"),
        ("orphan", 8, "a"),
        ("stray replica", 2, "c"),
    ]


def test_lists_are_compared_with_the_metadata_of_ledgers(spark: SparkSession) -> None:
    frame = ledgers(
        spark,
        {"ledger": 1},
        {"ledger": 2, "state": "missing"},
        {"ledger": 3, "offloaded": True, "bookkeeper_deleted": True},
        {"ledger": 4},  # created after the ledgers' metadata was read, and found by the second read
    )
    stored = table(
        spark,
        columns.STORED,
        [
            {"ledger": 1, "entries": 90},
            {"ledger": 7},
            {"ledger": 8, "opened_at": NOON},
            {"ledger": 9, "cursor": "s"},
            {"ledger": 10, "cursor": "t"},
            {"ledger": 11, "owner": None},
            {"ledger": 12, "owner": "acme/shop/persistent/torn"},
            {"ledger": 13, "owner": "acme/cluster/shop/persistent/old"},
        ],
        state="closed",
        owner="acme/shop/persistent/orders",
        opened_at=NOON - 2 * HOUR,
        entries=100,
    )
    named = spark.createDataFrame([(10,)], "ledger long")
    assert kinds(audit.all_of(audit.lists(frame, stored, named, NOON_S, 3600, ["acme/shop/persistent/torn"]))) == [
        ("listed without metadata", 2, TOPIC),
        ("counts differ", 1, TOPIC),
        ("unlisted ledger", 7, "acme/shop/persistent/orders"),
        ("unused cursor ledger", 9, "acme/shop/persistent/orders s"),
    ]


def test_the_bucket_is_compared_with_offloaded_ledgers(spark: SparkSession) -> None:
    frame = ledgers(
        spark,
        {"ledger": 1, "offloaded": True, "offload_uuid": UUID},
        {"ledger": 2, "offloaded": True, "offload_uuid": UUID, "bookkeeper_deleted": True},
        {"ledger": 3, "offload_uuid": UUID},
        {"ledger": 4},
    )
    names = [f"{UUID}-ledger-1", f"{UUID}-ledger-2-index", f"{UUID}-ledger-3", f"{UUID}-ledger-4", "something/else"]
    objects = table(spark, columns.OBJECTS, [{"key": name, "bytes": 500} for name in names])
    assert kinds(audit.all_of(audit.bucket(frame, objects))) == [
        ("lost object", 2, f"{UUID}-ledger-2"),
        ("missing object", 1, f"{UUID}-ledger-1-index"),
        ("truncated object", 1, f"{UUID}-ledger-1"),
        ("orphan object", 4, f"{UUID}-ledger-4"),
    ]
