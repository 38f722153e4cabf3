"""Formats numbers with their units for readers. Pure. None and NaN become a dash."""

import math
from datetime import UTC, datetime
from typing import Final, TypeGuard

DASH: Final = "–"
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_COUNTS = ("", "k", "M", "G", "T", "P")
_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60, 3600, 86400, 365 * 86400
YEARS_MAX: Final = 100
"""Forecasts beyond this are shown as "more than"."""


def bytes_text(count: float | None) -> str:
    """Format bytes: 1536 is `1.5 KiB`."""
    return _scaled(count, 1024.0, _BYTES)


def count_text(count: float | None) -> str:
    """Format a count: up to six digits in full, `12,345`; above that `1.23 M`."""
    if not _is_number(count):
        return DASH
    if abs(count) < 1e6:
        return f"{count:,.0f}" if abs(count) >= 100 or count == int(count) else f"{count:.3g}"
    return _scaled(count, 1000.0, _COUNTS)


def rate_text(count: float | None) -> str:
    """Format a rate: `1,250 /s`; low rates per minute or per hour."""
    if not _is_number(count):
        return DASH
    if 0 < abs(count) < 0.1:
        per_minute = count * 60
        return f"{per_minute:.3g} /min" if abs(per_minute) >= 0.1 else f"{count * 3600:.3g} /h"
    return f"{count_text(count)} /s"


def byte_rate_text(count: float | None) -> str:
    """Format a rate of bytes: `1.5 MiB/s`."""
    return DASH if not _is_number(count) else f"{bytes_text(count)}/s"


def percent_text(share: float | None) -> str:
    """Format a share: 0.123 is `12.3 %`."""
    if not _is_number(share):
        return DASH
    percent = share * 100
    if 0 < abs(percent) < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def factor_text(factor: float | None) -> str:
    """Format a factor: `2.5 ×`."""
    return DASH if not _is_number(factor) else f"{factor:.3g} ×"


def money_text(amount: float | None, currency: str) -> str:
    """Format an amount of money: `1,234.50 EUR`; small amounts with significant digits."""
    if not _is_number(amount):
        return DASH
    return f"{amount:,.2f} {currency}" if abs(amount) >= 0.1 or amount == 0 else f"{amount:.3g} {currency}"


def duration_text(seconds: float | None) -> str:
    """Format a duration in its two largest units: `3 d 4 h`."""
    if seconds is None or math.isnan(seconds):
        return DASH
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if seconds >= YEARS_MAX * _YEAR_S:
        return f"more than {YEARS_MAX} years"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < _MINUTE_S:
        return f"{seconds:.3g} s"
    for size, name, smaller, smaller_name in (
        (_YEAR_S, "y", _DAY_S, "d"),
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {name}" + (f" {rest} {smaller_name}" if rest else "")
    raise AssertionError("unreachable")


def time_text(epoch_s: float | None) -> str:
    """Format a time: `2026-11-22 13:45 UTC`."""
    if not _is_number(epoch_s):
        return DASH
    try:
        return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "a time out of range"


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _scaled(count: float | None, step: float, names: tuple[str, ...]) -> str:
    if not _is_number(count):
        return DASH
    size, index = abs(count), 0
    while index < len(names) - 1 and size >= step:
        size, index = size / step, index + 1
    if index and size < 9.995:
        shown = f"{size:.2f}".rstrip("0").rstrip(".")
    elif index and size < 99.95:
        shown = f"{size:.1f}".removesuffix(".0")
    else:
        shown = f"{size:,.0f}"
    return f"{'-' if count < 0 else ''}{shown} {names[index]}".rstrip()
