"""The ages of the records of an entry log, which decide which of two copies of an entry is newer. Pure.

Owns the rule of age. Neither the id of a log nor an offset in it determines the age: flushes write to several logs at
once, and compaction copies old records into new logs. Therefore each flush has an age, higher than that of any earlier
flush, and a copy keeps the age of its original. Footers and the map of a log record the ages of its records.

    age     u64. From 2^32 on: 2^32 + the number of the flush's index commit. Below: the id of a log that was written
            before ages were stored, whose records all have this age
    table   at the end of a map (`log_format`):  earlier u64: offset of the footer with the previous ages, 0 = none
            count u32   count x { offset u32, age u64 }: the age from this offset on, up to the next one
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from quire_bookie.errors import DamagedError
from quire_bookie.model import Buffer

FLUSH_AGES_START: Final = 1 << 32
UNKNOWN_AGE: Final = (1 << 64) - 1
"""The age of records whose footer was lost to damage. Never stored."""
_HEAD = struct.Struct("<QI")
_RUN = struct.Struct("<IQ")


class AgeRun(NamedTuple):
    """The age of the records from `offset` on, up to the next run."""

    offset: int
    age: int


class AgeTable(NamedTuple):
    """The ages of a part of a log, ascending by offset; `earlier`: offset of the footer of the previous part, or 0."""

    runs: Sequence[AgeRun]
    earlier: int


def age_of_flush(commit: int) -> int:
    """Return the age of the records of the flush with the index commit of this number."""
    return FLUSH_AGES_START + commit


def commit_of_age(age: int) -> int:
    """Return the commit of an age; 0 for records written before ages were stored."""
    return max(0, age - FLUSH_AGES_START)


def encode_ages(table: AgeTable) -> bytes:
    """Encode a table, in the format of the module docstring."""
    return _HEAD.pack(table.earlier, len(table.runs)) + b"".join(_RUN.pack(*run) for run in table.runs)


def decode_ages(data: Buffer, path: str, offset: int) -> AgeTable | None:
    """Decode the table in the rest of a map record at `offset`; None if there is none. DamagedError."""
    if not len(data):
        return None
    if len(data) < _HEAD.size:
        raise DamagedError(path, offset, "a table of ages is too short")
    earlier, count = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + count * _RUN.size or earlier >= max(offset, 1):
        raise DamagedError(path, offset, f"a table of {count} ages in {len(data)} bytes, after one at {earlier}")
    runs = [AgeRun(*run) for run in _RUN.iter_unpack(memoryview(data)[_HEAD.size :])]
    return AgeTable(runs, earlier)


class LogAges:
    """The ages of the records of one log, 12 bytes per run. Records before the first run have the log's id as age."""

    def __init__(self, log: int, runs: Iterable[AgeRun] = ()) -> None:
        self._log = log
        self._offsets = array("I")
        self._ages = array("Q")
        self.newest = 0
        """The highest age so far; `UNKNOWN_AGE` if any age is unknown."""
        self.newest_known = 0
        """The highest known age."""
        for run in runs:
            self.add(run)

    def add(self, run: AgeRun) -> None:
        """Add the next run, ascending by offset."""
        self.newest = max(self.newest, run.age)
        if run.age != UNKNOWN_AGE:
            self.newest_known = max(self.newest_known, run.age)
        if not self._ages or self._ages[-1] != run.age:
            self._offsets.append(run.offset)
            self._ages.append(run.age)

    def add_flush(self, first: int, table: AgeTable | None) -> None:
        """Add the ages of the records from `first` to a footer or map with this table (None: it has no ages)."""
        if table is None:
            self.add(AgeRun(first, self._log))
            return
        at = bisect_right([run.offset for run in table.runs], first)
        self.add(AgeRun(first, table.runs[at - 1].age if at else UNKNOWN_AGE))
        for run in table.runs[at:]:
            self.add(run)

    def at(self, offset: int) -> int:
        """Return the age of the record at an offset, or `UNKNOWN_AGE`."""
        index = bisect_right(self._offsets, offset)
        return self._ages[index - 1] if index else self._log

    def cuts(self, start: int, end: int) -> list[int]:
        """Return the offsets strictly between `start` and `end` at which another age begins."""
        return list(self._offsets[bisect_right(self._offsets, start) : bisect_right(self._offsets, end - 1)])
