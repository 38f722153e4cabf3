"""Maps values to positions on a chart, and chooses the ticks of its axes. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_TICKS: Final = 5
_TIME_STEPS_S = (
    *(1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 91 * 86400, 365 * 86400),
)
_LENGTHS_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0, 365 * 86400.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values `low` to `high` to pixels `start` to `end`; logarithmic with `log`, then both must be above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside map to the nearer end."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        if self.log:
            value = math.log10(max(value, self.low))
        share = 0.0 if high <= low else (value - low) / (high - low)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def nice_top(value: float, binary: bool = False) -> float:
    """Return the end of an axis from 0 that includes the value: its last tick."""
    return ticks(value, binary)[-1]


def ticks(top: float, binary: bool = False) -> list[float]:
    """Return ticks from 0 to at least `top`, in steps of 1, 2 or 5 times a power of ten (`binary`: of a power of
    two)."""
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    raw = top / _TICKS
    if binary:
        step = 2.0 ** math.ceil(math.log2(raw)) if raw > 1 else 1.0
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999999)
    count = max(1, math.ceil(top / step - 1e-9))
    return [step * index for index in range(count + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten from at most `low` to at least `high`, about eight of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    step = max(1, math.ceil((last - first) / 8))
    return [10.0**power for power in range(first, last + step, step)]


def duration_ticks(low_s: float, high_s: float) -> list[float]:
    """Return common durations from at most `low_s` to at least `high_s`, for a logarithmic axis."""
    first = max((one for one in _LENGTHS_S if one <= low_s), default=min(low_s, _LENGTHS_S[0]))
    last = min((one for one in _LENGTHS_S if one >= high_s and one > first), default=max(high_s, 2 * first))
    return [first, *(one for one in _LENGTHS_S if first < one < last), last]


def time_ticks(low_s: float, high_s: float, count: int = 7) -> list[tuple[float, str]]:
    """Return round times within the range with their labels, in UTC."""
    span = max(high_s - low_s, 1.0)
    step = next((one for one in _TIME_STEPS_S if span / one <= count), _TIME_STEPS_S[-1] * math.ceil(span / 3.15e8))
    first = math.ceil(low_s / step) * step
    places = [first + step * index for index in range(int((high_s - first) // step) + 1)] if first <= high_s else []
    return [(place, _time_label(place, step)) for place in places]


def _time_label(epoch_s: float, step_s: float) -> str:
    try:
        when = datetime.fromtimestamp(epoch_s, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    if step_s < 60:
        return when.strftime("%H:%M:%S")
    if step_s < 86400:
        return when.strftime("%d %b") if when.hour == 0 and when.minute == 0 else when.strftime("%H:%M")
    return when.strftime("%d %b") if step_s < 91 * 86400 else when.strftime("%b %Y")


def finite(values: Sequence[float]) -> list[float]:
    """Return the values without infinities and NaN."""
    return [value for value in values if math.isfinite(value)]
