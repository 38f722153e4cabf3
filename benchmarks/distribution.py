"""The figures of a distribution of times."""

import statistics
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def distribution(times: list[float]) -> dict[str, float]:
    """Return the figures in ms of times in s."""
    ordered = sorted(each * 1000 for each in times)
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered), 1),
        "p90": round(percentile(ordered, 0.90), 1),
        "p99": round(percentile(ordered, 0.99), 1),
        "max": round(ordered[-1], 1),
    }
