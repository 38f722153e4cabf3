"""Marks that identify the work of a commit. A commit stores its mark, so that a repetition is detected after any crash.

    run.<run id>                  -> milliseconds since 1970    a run of a job, once
    query.<query id>              -> batch id                   a micro-batch of a stream, once; ids ascend
    ledgers.<managed ledger>      -> 3-17,20-20                 ledgers whose messages are in the table
    positions                     -> {"<managed ledger>": "12:199", ...}  the last entry of each in the table

The newest RUNS_KEPT runs are kept; the other marks are one small value per query or managed ledger. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

RUNS_KEPT = 1000
POSITIONS = "positions"
_RUN = "run."


class Mark(Protocol):
    """The mark of one commit. Picklable; compares by value."""

    @property
    def key(self) -> str:
        """Key under which the table stores the mark."""
        ...

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """Return the new value, given the table's present one; None if the table already contains the work."""
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
    """Consecutive ledgers in the list of a managed ledger. `before`: the ledger listed before them, if any."""

    managed_ledger: str
    first: int
    last: int
    before: int | None = None

    @property
    def key(self) -> str:
        """Key of the managed ledger."""
        return ledgers_key(self.managed_ledger)

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """Return None also if only some are present: another run wrote them meanwhile, and a later run adds the
        rest."""
        ranges = decode_ranges(found)
        if any(first <= self.last and self.first <= last for first, last in ranges):
            return None
        joined = sorted([*ranges, (self.first, self.last)])
        if self.before is not None:
            joined = _joined(joined, self.before, self.first)
        return encode_ranges(joined)


@dataclass(frozen=True, slots=True)
class Advance:
    """The entries of managed ledgers after `before` up to and including `through`; both as `ledger:entry` by name.

    `before` lacks a managed ledger of which the table has no entry yet.
    """

    before: Mapping[str, str]
    through: Mapping[str, str]

    @property
    def key(self) -> str:
        """One key for all managed ledgers: one commit adds entries of several."""
        return POSITIONS

    def merged(self, found: str | None, now_ms: int) -> str | None:
        """Return None if the table is at another position: another run added entries meanwhile."""
        present = decode_positions(found)
        if any(present.get(name) != self.before.get(name) for name in self.through):
            return None
        return json.dumps(present | dict(self.through), sort_keys=True)


def once_per_run(run_id: str) -> Mark:
    """Return the mark of a run of a job: a repetition adds nothing. ValueError without a run id."""
    if not run_id:
        raise ValueError("a run without an id cannot be distinguished from other runs")
    return _Run(run_id)


def once_per_batch(query_id: str, batch_id: int) -> Mark:
    """Return the mark of a micro-batch of a stream."""
    return _Batch(query_id, batch_id)


def ledgers_key(managed_ledger: str) -> str:
    """Return the key of a managed ledger's ranges."""
    return f"ledgers.{managed_ledger}"


def decode_positions(value: str | None) -> dict[str, str]:
    """Return the last entry of each managed ledger in the table, as `ledger:entry`."""
    return {str(name): str(position) for name, position in json.loads(value or "{}").items()}


def decode_ranges(value: str | None) -> list[tuple[int, int]]:
    """Return the first and last ledger of each range, ascending."""
    pairs = [part.partition("-") for part in (value or "").split(",") if part]
    return [(int(first), int(last)) for first, _, last in pairs]


def encode_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Return the ranges as text."""
    return ",".join(f"{first}-{last}" for first, last in ranges)


def covered(ranges: Sequence[tuple[int, int]], ledger_id: int) -> bool:
    """Return whether the ledger is in the table."""
    return any(first <= ledger_id <= last for first, last in ranges)


def outdated(marks: Mapping[str, str]) -> list[str]:
    """Return the marks of runs too old to be repeated; the next commit removes them."""
    runs = sorted((int(value), key) for key, value in marks.items() if key.startswith(_RUN))
    return [key for _, key in runs[: max(0, len(runs) - RUNS_KEPT)]]


def _joined(ranges: list[tuple[int, int]], before: int, first: int) -> list[tuple[int, int]]:
    """Join the range that ends at `before` and the one that begins at `first`: no ledger is listed between them."""
    left = next((each for each in ranges if each[1] == before), None)
    right = next(each for each in ranges if each[0] == first)
    if left is None:
        return ranges
    return sorted([each for each in ranges if each not in (left, right)] + [(left[0], right[1])])
