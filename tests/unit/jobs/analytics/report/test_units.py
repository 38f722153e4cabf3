"""Numbers with their units."""

import math

import pytest

from quire_jobs.analytics.report import units


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (10 * 1024, "10 KiB"),
        (1024**4 * 2.25, "2.25 TiB"),
        (-2048, "-2 KiB"),
        (None, "–"),
        (math.nan, "–"),
        (1024**7, "1,024 EiB"),
    ],
)
def test_bytes(count: float | None, shown: str) -> None:
    assert units.bytes_text(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (12345, "12,345"), (1_234_567, "1.23 M"), (0.5, "0.5"), (2.0, "2"), (99.994, "100"), (None, "–")],
)
def test_counts(count: float | None, shown: str) -> None:
    assert units.count_text(count) == shown


@pytest.mark.parametrize(("rate", "shown"), [(1250, "1,250 /s"), (0.05, "3 /min"), (0.001, "3.6 /h"), (0, "0 /s")])
def test_rates(rate: float, shown: str) -> None:
    assert units.rate_text(rate) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (59.5, "59.5 s"),
        (60, "1 min"),
        (3661, "1 h 1 min"),
        (90000, "1 d 1 h"),
        (400 * 86400, "1 y 35 d"),
        (1e12, "more than 100 years"),
        (math.inf, "more than 100 years"),
        (-60, "-1 min"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert units.duration_text(seconds) == shown


@pytest.mark.parametrize(("share", "shown"), [(0.123, "12.3 %"), (1, "100 %"), (0, "0 %"), (0.0001, "< 0.1 %")])
def test_shares(share: float, shown: str) -> None:
    assert units.percent_text(share) == shown


def test_times_are_in_utc_and_impossible_ones_are_marked() -> None:
    assert units.time_text(0) == "1970-01-01 00:00 UTC"
    assert units.time_text(1e18) == "a time out of range"


def test_money_has_its_currency() -> None:
    assert units.money_text(1234.5, "EUR") == "1,234.50 EUR"
    assert units.money_text(0.0123, "EUR") == "0.0123 EUR"
