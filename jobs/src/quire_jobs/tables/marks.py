"""What a commit stands for. Stored in the commit itself, so that the same work is seen to be done, after any crash.

    run.<run id>                  -> milliseconds since 1970    a run of a job, once
    query.<query id>              -> batch id                   a micro-batch of a stream, once; ids ascend
    ledgers.<managed ledger>      -> 3-17,20-20                 ledgers whose messages are in the table

Runs are kept by the newest RUNS_KEPT; the others are one small value for each query or managed ledger. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

RUNS_KEPT = 1000
_RUN = "run."


class Mark(Protocol):
    """One commit's. Picklable; compares by value."""

    @property
    def key(self) -> str:
        """Where the table keeps it."""
        ...

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """The new value, from the one that the table has; None: the work is in the table already."""
        ...


@dataclass(frozen=True, slots=True)
class _Run:
    run_id: str

    @property
    def key(self) -> str:
        return _RUN + self.run_id

    def merged(self, found: str | None, now_ms: int) -> str | None:
        return str(now_ms) if found is None else None


@dataclass(frozen=True, slots=True)
class _Batch:
    query_id: str
    batch_id: int

    @property
    def key(self) -> str:
        return f"query.{self.query_id}"

    def merged(self, found: str | None, now_ms: int) -> str | None:
        return str(self.batch_id) if found is None or int(found) < self.batch_id else None


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Consecutive ledgers of a managed ledger, by its list. `before`: the one listed before them, if any."""

    managed_ledger: str
    first: int
    last: int
    before: int | None = None

    @property
    def key(self) -> str:
        """Of the managed ledger."""
        return ledgers_key(self.managed_ledger)

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """None also where only some of them are there: somebody else wrote them meanwhile, and a later run the rest."""
        ranges = decode_ranges(found)
        if any(first <= self.last and self.first <= last for first, last in ranges):
            return None
        joined = sorted([*ranges, (self.first, self.last)])
        if self.before is not None:
            joined = _joined(joined, self.before, self.first)
        return encode_ranges(joined)


def once_per_run(run_id: str) -> Mark:
    """A run of a job under its name: a repeat adds nothing. ValueError without a name."""
    if not run_id:
        raise ValueError("a run without a name cannot be told from another")
    return _Run(run_id)


def once_per_batch(query_id: str, batch_id: int) -> Mark:
    """A micro-batch of a stream."""
    return _Batch(query_id, batch_id)


def ledgers_key(managed_ledger: str) -> str:
    """Where a managed ledger's ranges are kept."""
    return f"ledgers.{managed_ledger}"


def decode_ranges(value: str | None) -> list[tuple[int, int]]:
    """First and last ledger of each range, ascending."""
    pairs = [part.partition("-") for part in (value or "").split(",") if part]
    return [(int(first), int(last)) for first, _, last in pairs]


def encode_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """The text of ranges."""
    return ",".join(f"{first}-{last}" for first, last in ranges)


def covered(ranges: Sequence[tuple[int, int]], ledger_id: int) -> bool:
    """Whether the ledger is in the table."""
    return any(first <= ledger_id <= last for first, last in ranges)


def outdated(marks: Mapping[str, str]) -> list[str]:
    """Marks of runs that are so old that nobody repeats them: they go with the next commit."""
    runs = sorted((int(value), key) for key, value in marks.items() if key.startswith(_RUN))
    return [key for _, key in runs[: max(0, len(runs) - RUNS_KEPT)]]


def _joined(ranges: list[tuple[int, int]], before: int, first: int) -> list[tuple[int, int]]:
    """With the range that ends at `before` and the one that begins at `first` as one: nothing is listed in between."""
    left = next((each for each in ranges if each[1] == before), None)
    right = next(each for each in ranges if each[0] == first)
    if left is None:
        return ranges
    return sorted([each for each in ranges if each not in (left, right)] + [(left[0], right[1])])
