"""Derives the load of a bookie over about the last minute from its counters, so that bookies can be compared.

Keeps a few copies of the counters, taken when a client asks; a client that asks less than once a minute gets the time
since it asked last. Reads no clock and no counter itself.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_bookie.metrics import quantile_s

SPAN_S = 60.0
_COPIES_PER_SPAN = 8
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters since the start of the bookie, at one time."""

    at_s: float
    journal_writes: Sequence[int]
    """Groups made durable, by bucket of `LATENCY_BOUNDS_S`."""
    adds: Sequence[int]
    """Entries added, by bucket of the latency."""
    added_bytes: int
    read_bytes: int
    cpu_s: float
    """CPU time of the process."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a bookie did in a window. Latencies are the 99th percentile; None if nothing was counted."""

    window_s: float
    journal_writes: int
    journal_write_p99_s: float | None
    adds: int
    add_p99_s: float | None
    added_bytes: int
    read_bytes: int
    cpu_s: float

    def plain(self) -> dict[str, Any]:
        """Return the JSON of the admin API."""
        return {
            "seconds": self.window_s,
            "journalWrites": self.journal_writes,
            "journalWriteP99Seconds": self.journal_write_p99_s,
            "adds": self.adds,
            "addP99Seconds": self.add_p99_s,
            "addedBytes": self.added_bytes,
            "readBytes": self.read_bytes,
            "cpuSeconds": self.cpu_s,
        }


class LoadWindow:
    """Keeps copies of the counters of one bookie for a little more than the span of the window."""

    __slots__ = ("_copies",)

    def __init__(self) -> None:
        self._copies: deque[Counters] = deque()

    def load(self, now: Counters) -> Load | None:
        """Return the load since the newest copy that is at least a span old; None until there is one."""
        copies = self._copies
        if copies and _is_of_another_start(copies[-1], now):
            copies.clear()
        while len(copies) > 1 and copies[1].at_s <= now.at_s - SPAN_S:
            copies.popleft()
        found = _load(copies[0], now) if copies and copies[0].at_s <= now.at_s - SPAN_S else None
        if not copies or now.at_s - copies[-1].at_s >= SPAN_S / _COPIES_PER_SPAN:
            copies.append(now)
        return found


def _is_of_another_start(before: Counters, now: Counters) -> bool:
    """Return whether a bookie with new counters took the place of the former one."""
    return any(
        count < 0 for count in (*_since(now.journal_writes, before.journal_writes), *_since(now.adds, before.adds))
    )


def _since(counts: Sequence[int], before: Sequence[int]) -> list[int]:
    return [count - was for count, was in zip(counts, before, strict=True)]


def _load(before: Counters, now: Counters) -> Load:
    journal, adds = _since(now.journal_writes, before.journal_writes), _since(now.adds, before.adds)
    return Load(
        now.at_s - before.at_s,
        sum(journal),
        quantile_s(journal, _SHARE),
        sum(adds),
        quantile_s(adds, _SHARE),
        now.added_bytes - before.added_bytes,
        now.read_bytes - before.read_bytes,
        now.cpu_s - before.cpu_s,
    )
