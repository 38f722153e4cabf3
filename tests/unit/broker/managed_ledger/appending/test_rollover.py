"""The rules of rollover as a table."""

from math import inf

import pytest

from quire_broker.limits import LEDGER_ENTRIES_MAX, LEDGER_OVERGROWTH_MAX
from quire_broker.managed_ledger.appending.rollover import (
    LedgerLoad,
    RollConditions,
    RollReason,
    age_to_roll_s,
    fitting,
    is_filled,
    is_overgrown,
    may_roll,
    reason_to_roll,
)
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

SETTINGS = ManagedLedgerSettings(
    ledger_entries_max=100, ledger_bytes_max=1000, rollover_age_min_s=60, rollover_age_max_s=3600
)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (LedgerLoad(99, 999, 61), None),
        (LedgerLoad(100, 0, 61), RollReason.ENTRIES),
        (LedgerLoad(1, 1000, 61), RollReason.SIZE),
        (LedgerLoad(1, 1, 3600), RollReason.AGE),
        (LedgerLoad(0, 0, 9999), None),
        (LedgerLoad(100, 1000, 60), None),
        (LedgerLoad(1, 1, 9.9, degraded=True), None),
        (LedgerLoad(1, 1, 10, degraded=True), RollReason.DEGRADED),
        (LedgerLoad(0, 0, 10, degraded=True), RollReason.DEGRADED),
    ],
)
def test_a_ledger_is_full_by_any_rule_once_it_is_old_enough(load: LedgerLoad, expected: RollReason | None) -> None:
    assert reason_to_roll(load, SETTINGS) is expected


@pytest.mark.parametrize("entries", [0, 1, 100])
@pytest.mark.parametrize("size_bytes", [1, 1000])
@pytest.mark.parametrize("degraded", [False, True])
def test_a_ledger_to_which_nothing_is_added_rolls_at_the_age_that_is_foretold(
    entries: int, size_bytes: int, degraded: bool
) -> None:
    age_s = age_to_roll_s(LedgerLoad(entries, size_bytes, 0, degraded), SETTINGS)
    assert reason_to_roll(LedgerLoad(entries, size_bytes, min(age_s, 1e9) - 0.1, degraded), SETTINGS) is None
    due = reason_to_roll(LedgerLoad(entries, size_bytes, min(age_s, 1e9) + 0.1, degraded), SETTINGS)
    assert (due is None) == (age_s == inf) == (entries == 0 and not degraded)


def test_a_minimum_age_of_zero_delays_no_rollover() -> None:
    settings = ManagedLedgerSettings(ledger_entries_max=2, rollover_age_min_s=0)
    assert reason_to_roll(LedgerLoad(2, 0, 0.0), settings) is RollReason.ENTRIES


@pytest.mark.parametrize(("reachable", "writable", "expected"), [(True, 3, True), (False, 3, False), (True, 2, False)])
def test_a_roll_needs_the_metadata_and_a_whole_ensemble(reachable: bool, writable: int, expected: bool) -> None:
    assert may_roll(RollConditions(reachable, writable), SETTINGS) is expected


@pytest.mark.parametrize(
    ("load", "entries", "size_bytes", "expected"),
    [
        (LedgerLoad(50, 0, 61), 50, 1000, False),
        (LedgerLoad(50, 0, 61), 51, 0, True),
        (LedgerLoad(0, 500, 61), 1, 501, True),
        (LedgerLoad(50, 0, 59), 51, 0, False),
    ],
)
def test_entries_fill_a_ledger_beyond_a_bound_once_it_may_roll(
    load: LedgerLoad, entries: int, size_bytes: int, expected: bool
) -> None:
    assert is_filled(load, entries, size_bytes, SETTINGS) is expected


@pytest.mark.parametrize(
    ("load", "sizes_bytes", "expected"),
    [
        (LedgerLoad(98, 0, 61), [1, 1, 1, 1], 2),
        (LedgerLoad(0, 900, 61), [50, 50, 50], 2),
        (LedgerLoad(200, 2000, 61), [1, 1], 1),
        (LedgerLoad(0, 0, 61), [1, 1], 2),
    ],
)
def test_the_entry_that_fills_a_ledger_is_the_last_that_fits(
    load: LedgerLoad, sizes_bytes: list[int], expected: int
) -> None:
    assert fitting(load, sizes_bytes, SETTINGS) == expected


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (LedgerLoad(10**6, 1000 * LEDGER_OVERGROWTH_MAX - 1, 9999), False),
        (LedgerLoad(1, 1000 * LEDGER_OVERGROWTH_MAX, 0), True),
        (LedgerLoad(LEDGER_ENTRIES_MAX, 1, 0), True),
    ],
)
def test_a_ledger_without_a_successor_grows_to_a_bound(load: LedgerLoad, expected: bool) -> None:
    assert is_overgrown(load, SETTINGS) is expected
