"""The advice of each report: a case that must trigger it, and a similar one that must not."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from quire_bookie.cli.main import run
from quire_jobs.analytics import audit, backlog, cost, keys, retention_what_if, schema_drift, throughput
from quire_jobs.analytics.report.page import Advice, Level
from quire_jobs.job import parse_parameters

TOPIC = "persistent://acme/shop/orders"
GIVEN = {"output": "file:///out", "metadata": "etcd://e:2379", "asOf": "2026-11-22T12:00:00Z"}
MIB, GIB = 1024**2, 1024**3


def texts(found: Sequence[Advice]) -> str:
    """Return the advice, empty if it says that no action is needed."""
    return "\n".join(f"{one.level.name} {one.seen} {one.do}" for one in found if one.level is not Level.GOOD)


# ---- throughput
def busy(**given: Any) -> str:
    """Advice for a topic of 5,000 messages of 100 bytes a second, one in each entry."""
    row: dict[str, Any] = {"topic": TOPIC, "messages": 300_000, "entries": 300_000, "messages_per_s": 5000.0}
    row |= {"peak_messages_per_s": 6000.0, "active_share": 1.0, "size_p50": 100, "size_max": 200}
    row |= {"without_usable_time": 0, "largest_skew_s": 0.0}
    return texts(throughput.advice([row | given], 3600.0))


def test_batching_is_advised_for_many_small_entries_and_not_for_batches() -> None:
    assert "Let its producers batch" in busy()
    assert "Let its producers batch" in busy(entries=150_000)
    assert busy(entries=300_000 // 292) == "", "292 messages in an entry"
    assert busy(messages_per_s=500.0, peak_messages_per_s=600.0) == "", "few entries a second"
    assert busy(entries=60_000, messages_per_s=4000.0) == "", "800 entries a second"
    assert busy(size_p50=300, size_max=300) == ""


def test_a_spike_is_advised_for_a_load_and_not_for_a_few_messages() -> None:
    spiky = {"messages_per_s": 50.0, "peak_messages_per_s": 600.0}
    assert "peaks at" in busy(**spiky)
    assert busy(messages_per_s=0.05, peak_messages_per_s=0.6) == ""
    assert busy(messages_per_s=500.0, peak_messages_per_s=600.0) == ""
    assert busy(**spiky, active_share=0.05) == "", "a topic that is used at times"


def test_large_messages_are_advised_against_beside_small_ones_only() -> None:
    quiet = {"messages_per_s": 1.0, "peak_messages_per_s": 1.0}
    assert "Keep large objects in object storage" in busy(size_max=2 * MIB, **quiet)
    assert busy(size_p50=MIB, size_max=2 * MIB, **quiet) == ""


def test_clocks_are_advised_on_if_a_message_has_no_usable_time() -> None:
    quiet = {"messages_per_s": 1.0, "peak_messages_per_s": 1.0}
    assert "Check the clocks" in busy(without_usable_time=1, largest_skew_s=-9000.0, **quiet)
    assert busy(largest_skew_s=-3000.0, **quiet) == ""


# ---- keys
def keyed(messages: Sequence[int], *, without_key: int = 0, partitions: Sequence[int] = (), share: float = 0.1) -> str:
    """Advice for a topic whose keys have these numbers of messages, and its partitions those."""
    total = sum(messages)
    topic = {"topic": TOPIC, "messages": total + without_key, "without_key": without_key, "keys": len(messages)}
    topic |= {"keys_in_several_partitions": 0}
    hot = [{"topic": TOPIC, "key": f"k{at}", "messages": one, "share": one / total} for at, one in enumerate(messages)]
    even = sum(partitions) / max(len(partitions), 1)
    loads = [
        {"topic": TOPIC, "partition": at, "messages": one, "load": one / even} for at, one in enumerate(partitions)
    ]
    return texts(keys.advice([topic], hot, loads, share))


def test_a_hot_key_is_one_that_has_much_more_than_the_others() -> None:
    assert "k0 has 50" in keyed([500, *[5] * 100])
    assert keyed([50] * 20) == ""
    assert "k0" not in keyed([250] * 4), "each of four keys has a quarter"
    assert keyed([2, 1, 1, 1, 1]) == "", "six messages show no distribution"


def test_few_keys_are_advised_on_because_they_limit_the_consumers() -> None:
    assert "At most 4 consumers" in keyed([250] * 4)
    assert "At most 1 consumers" in keyed([1000])
    assert keyed([1]) == ""
    assert keyed([50] * 20) == ""


def test_messages_without_a_key_are_advised_on_only_among_keyed_ones() -> None:
    assert "have no key" in keyed([50] * 20, without_key=3)
    assert keyed([50] * 20) == ""


def test_an_uneven_partition_is_one_of_many_messages() -> None:
    assert "Choose keys with more values" in keyed([50] * 20, partitions=[50_000, 1000, 1000])
    assert keyed([50] * 20, partitions=[50_000, 40_000, 30_000]) == ""
    assert keyed([50] * 20, partitions=[1000, 20, 20]) == "", "one batch"


# ---- schema-drift
def test_a_breaking_change_and_a_laggard_are_advised_on() -> None:
    change = (TOPIC, 2, "id", "type changed", "int", "string", "both")
    assert "this breaks both" in texts(schema_drift.advice([], [change], []))
    assert texts(schema_drift.advice([], [(*change[:-1], "nobody")], [])) == ""
    late = {"topic": TOPIC, "producer": "p", "version": 1, "newest_version": 2, "behind_s": 7200.0}
    assert "Redeploy it" in texts(schema_drift.advice([], [], [late]))


def test_messages_without_a_schema_are_advised_on_only_beside_others() -> None:
    bare = {"topic": TOPIC, "version": None, "foreign": None, "state": "without schema", "messages": 1}
    typed = {"topic": TOPIC, "version": 1, "foreign": None, "state": "current", "messages": 1}
    assert "Require schemas" in texts(schema_drift.advice([bare, typed], [], []))
    assert texts(schema_drift.advice([bare], [], [])) == ""
    assert texts(schema_drift.advice([typed], [], [])) == ""
    unknown = typed | {"version": 9, "state": "unknown"}
    assert "do not delete schemas" in texts(schema_drift.advice([unknown], [], []))


# ---- backlog
def waiting(**given: Any) -> str:
    """Advice for a cursor that consumes nothing for two hours while its topic grows."""
    row: dict[str, Any] = {"topic": TOPIC, "partition": -1, "cursor": "s", "backlog": 500, "per_s": 3.0}
    row |= {"oldest_age_s": 7200.0, "holes": 0, "oldest_hole_age_s": None, "ahead": False, "unreadable": None}
    row |= {"mark_ledger": 1, "mark_entry": 2}
    return texts(backlog.advice(parse_parameters(backlog.Parameters, GIVEN), [row | given], []))


def test_a_backlog_that_grows_is_advised_on_if_its_oldest_entry_is_old() -> None:
    assert "ACT The backlog of s of" in waiting()
    assert waiting(oldest_age_s=5.0) == "", "the entries that were published between two runs"
    assert waiting(per_s=-3.0) == "" and waiting(per_s=None) == "" and waiting(backlog=0) == ""


def test_holes_are_advised_on_if_they_are_old_and_a_cursor_that_is_ahead() -> None:
    calm = {"per_s": None}
    assert "dead letter topic" in waiting(holes=2, oldest_hole_age_s=7200.0, **calm)
    assert waiting(holes=2, oldest_hole_age_s=60.0, **calm) == ""
    assert "is ahead of the last known entry" in waiting(ahead=True, **calm)


def filling(**given: Any) -> str:
    row: dict[str, Any] = {"bookie": "b:3181", "fills_in_s": 86_400.0, "from_ingest": False, "reason": None}
    return texts(backlog.advice(parse_parameters(backlog.Parameters, GIVEN), [], [row | given]))


def test_a_disk_that_fills_needs_action_if_it_was_observed_and_a_second_run_otherwise() -> None:
    assert filling().startswith("ACT Bookie b:3181 is full in 1 d")
    assert filling(from_ingest=True).startswith("WATCH Bookie b:3181 would be full in 1 d if nothing were deleted")
    assert filling(fills_in_s=30 * 86_400.0) == "" and filling(fills_in_s=None) == ""


# ---- cost
def stored(stored_bytes: int, twice: int = 0, **given: Any) -> str:
    parameters = parse_parameters(cost.Parameters, GIVEN | {"priceBookies": 0.1, "priceObjectStore": 0.02} | given)
    row = {"topic": TOPIC, "tier": "bookies", "bytes": stored_bytes // 3, "stored_bytes": stored_bytes}
    row |= {"ledgers": 1, "cost_per_month": stored_bytes / GIB * 0.1, "entries": 1}
    both = [{"topic": TOPIC, "stored_bytes": twice}] if twice else []
    return texts(cost.advice(parameters, [row], [], both))


def test_offloading_is_advised_for_a_saving_and_not_for_a_few_bytes() -> None:
    assert "Offloading it saves up to" in stored(30 * GIB)
    assert stored(41) == ""
    assert "Offloading" not in stored(30 * GIB, priceObjectStore=0.5)
    assert "a shorter lag frees them sooner" in stored(41, twice=GIB)


# ---- retention-what-if
def retained(option: str, freed: int, held: int) -> str:
    row = {"option": option, "topic": TOPIC, "bytes": 1000, "bytes_freed": freed, "bytes_held_by_cursors": held}
    return texts(retention_what_if.advice([row], [row]))


def test_a_retention_is_compared_and_its_loss_is_named() -> None:
    assert "trimming deletes them permanently" in retained("1d", 500, 0)
    assert retained("1d", 0, 0) == "" and retained("1d", 5, 0) == ""


def test_a_cursor_is_advised_on_if_it_keeps_old_data() -> None:
    assert "are kept by a cursor" in retained("1d", 0, 500)
    assert retained("0", 0, 500) == "", "messages of the last minutes wait for their acknowledgement"
    assert retained("inf", 0, 0) == ""


# ---- audit
def test_an_audit_advises_on_its_findings_only() -> None:
    row = {"kind": "missing replica", "severity": audit.AT_RISK, "findings": 2}
    assert texts(audit.advice([row], {})).startswith("ACT missing replica: 2 Auto-recovery copies it again")
    assert texts(audit.advice([], {})) == ""
    assert "could not be read" in texts(audit.advice([], {"bookie": "stopped"}))


@pytest.mark.parametrize(
    "command",
    sorted({one for text in audit.REMEDIES.values() for one in re.findall(r"`quire ([a-z -]+?)[ A-Z]*`", text)}),
)
def test_a_remedy_names_a_command_that_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"quire {command}" in capsys.readouterr().out
