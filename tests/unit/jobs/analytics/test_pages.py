"""Pages of analyses from rows as Spark returns them: their advice, and escaping of hostile names."""

import pytest

from quire_jobs.analytics import audit, backlog, cost, retention_what_if, schema_drift
from quire_jobs.analytics.report.page import Level, render
from quire_jobs.job import parse_parameters

EVIL = "persistent://acme/shop/<img src=x onerror=alert(1)>"
GIVEN = {"output": "file:///out", "metadata": "etcd://e:2379", "asOf": "2026-11-22T12:00:00Z"}
GIB = 1024**3


def rendered_safely(page: object) -> str:
    text = render(page)  # type: ignore[arg-type]
    assert "<img" not in text
    assert "&lt;img" in text
    return text


def test_cost_shows_data_in_both_tiers_and_savings_of_offloading() -> None:
    parameters = parse_parameters(cost.Parameters, GIVEN | {"priceBookies": 0.1, "priceObjectStore": 0.02})
    rows = [
        {
            "topic": EVIL,
            "tier": "bookies",
            "ledgers": 2,
            "entries": 9,
            "bytes": GIB,
            "stored_bytes": 3 * GIB,
            "cost_per_month": 0.3,
        },
        {
            "topic": EVIL,
            "tier": "object-store",
            "ledgers": 1,
            "entries": 4,
            "bytes": GIB,
            "stored_bytes": GIB,
            "cost_per_month": 0.02,
        },
    ]
    namespaces = [row | {"namespace": "acme/shop"} for row in rows]
    tenants = [{"tenant": "acme", "stored_bytes": 4 * GIB, "cost_per_month": 0.32}]
    twice = [{"topic": EVIL, "stored_bytes": 3 * GIB}]
    text = rendered_safely(cost.page(parameters, rows, namespaces, tenants, twice))
    assert "0.32 USD" in text
    assert "0.28 USD a month" in text  # 3 GiB at 0.1 become 1 GiB at 0.02
    assert cost.advice(parameters, [], [], [])[0].seen == "No topic has a ledger."


def test_retention_shows_data_kept_by_cursors_and_unlimited_growth() -> None:
    parameters = parse_parameters(retention_what_if.Parameters, GIVEN | {"options": ["0", "1d", "inf"]})
    options = [retention_what_if.parse_option(one) for one in parameters.options]
    row = {"topic": EVIL, "bytes": 100, "bytes_kept": 60, "bytes_freed": 40, "stored_bytes_freed": 120}
    row |= {"bytes_held_by_cursors": 50, "ledgers_kept": 2, "steady_bytes": 5.0, "bytes_per_s": 1.0}
    rows = [row | {"option": "0"}, row | {"option": "1d"}, row | {"option": "inf", "steady_bytes": None}]
    text = rendered_safely(retention_what_if.page(parameters, options, rows))
    assert "grows without limit" in text
    assert "are kept by a cursor" in text


@pytest.mark.parametrize(
    ("text", "seconds", "size"),
    [("0", 0, 0), ("7d", 604800, -1), ("1h/2Ki", 3600, 2048), ("inf/1Gi", -1, GIB), ("inf", -1, -1)],
)
def test_a_retention_is_a_time_or_a_time_and_a_size(text: str, seconds: float, size: int) -> None:
    option = retention_what_if.parse_option(text)
    assert (option.retention_s, option.retention_bytes) == (seconds, size)


@pytest.mark.parametrize("text", ["", "soon", "1h/much", "-1"])
def test_an_invalid_retention_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="give a time or time/size"):
        retention_what_if.parse_option(text)


def test_an_audit_has_a_remedy_for_each_kind_and_lists_unknown_objects() -> None:
    parameters = parse_parameters(audit.Parameters, GIVEN)
    sizes = dict.fromkeys(("ledgers", "replicas", "bookies_silent", "objects", "ledgers_read_through"), 0)
    kinds = [
        {"kind": kind, "severity": audit.AT_RISK, "findings": 1, "ledgers": 1, "bytes": None} for kind in audit.REMEDIES
    ]
    rows = [{"kind": "orphan", "severity": "waste", "ledger": 7, "subject": EVIL, "detail": "why"}]
    text = rendered_safely(audit.page(parameters, sizes, kinds, rows, {"bookie-3": "stopped"}, listed=True))
    assert "could not be read" in text and "bookie-3: stopped" in text
    assert audit.advice([], {})[0].level is Level.GOOD
    assert {one.labels.get("kind") for one in audit.gauges(sizes, [])} >= set(audit.REMEDIES)


def test_a_backlog_names_each_partition_including_the_first() -> None:
    parameters = parse_parameters(backlog.Parameters, GIVEN)
    row = {"topic": EVIL, "partition": 0, "cursor": "s", "backlog": 5, "backlog_bytes": 50, "oldest_age_s": 9.0}
    row |= {"holes": 0, "oldest_hole_age_s": None, "ahead": False, "unreadable": None, "mark_ledger": 1}
    row |= {"mark_entry": 2, "per_s": None, "drains_in_s": None, "entries_per_s": 1.0}
    text = rendered_safely(backlog.page(parameters, [row, row | {"topic": "plain", "partition": -1}], [], [], []))
    assert "-partition-0</td>" in text and "plain-partition" not in text


def test_schema_drift_names_breaking_changes_and_laggards() -> None:
    parameters = parse_parameters(schema_drift.Parameters, {"output": "file:///out", "messages": "file:///m"})
    version = {
        "topic": EVIL,
        "version": 2,
        "foreign": None,
        "type": "AVRO",
        "state": "current",
        "messages": 5,
        "share": 0.5,
    }
    version |= {"producers": 1, "first_s": 0.0, "last_s": 90.0}
    bare = version | {"version": None, "state": "without schema", "messages": 1}
    changed = [(EVIL, 2, "id<img>", "type changed", "int", "string", "both")]
    late = [{"topic": EVIL, "producer": "p", "version": 1, "newest_version": 2, "messages": 3, "behind_s": 7200.0}]
    text = rendered_safely(schema_drift.page(parameters, [version, bare], changed, late))
    assert "this breaks both" in text and "still wrote v1 2 h after v2 appeared" in text
    assert "have no schema; others do" in text
