"""The chain of commits inside RocksDB: proves that no run of commits in the middle was lost.

RocksDB keeps what was committed in tables and write-ahead logs, and a manifest names them. With an older copy of the
manifest, or without one of several logs, it opens without an error and lacks the commits in between, while the last
ones are there. Every write therefore adds a link, and a start looks for gaps.

    link    key   "\\xffchain", number of the write u64 (big-endian)
            value number of the first link that must exist u64 (big-endian)

A window of links is kept. The logs must never span the whole window, or a gap before it would not show: the store
writes its tables out every `LINKS_PER_TABLE` writes. An index of an earlier version has no links: its chain starts with
the next write. The last number is proved by `index_commits`.
"""

import struct
from collections.abc import Iterable
from typing import Final

LINKS_START: Final = b"\xffchain"
LINKS_END: Final = b"\xffchaio"
LINKS_PER_TABLE: Final = 1024
LINKS_KEPT_MIN: Final = 4 * LINKS_PER_TABLE
_KEY = struct.Struct(">6sQ")
_VALUE = struct.Struct(">Q")


class CommitChain:
    """What the links say, kept up to date. Belongs to the thread that writes."""

    def __init__(self, first: int = 1, last: int = 0) -> None:
        self._first = first
        self._last = last
        self._last_table = last
        """Write after which the tables were last written out."""

    @classmethod
    def of(cls, links: Iterable[tuple[bytes, bytes]]) -> "CommitChain":
        """The chain of the stored links, ascending. ValueError: commits are missing."""
        numbers: list[int] = []
        first = 0
        for key, value in links:
            numbers.append(_KEY.unpack(key)[1])
            (first,) = _VALUE.unpack(value)
        if not numbers:
            return cls()
        last = numbers[-1]
        present = {number for number in numbers if number >= first}
        if len(present) != last - first + 1:
            missing = next(number for number in range(first, last + 1) if number not in present)
            raise ValueError(f"commits are missing: write {missing} is not there, and write {last} is")
        return cls(first, last)

    def next_write(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Puts and deletes that belong to the next write; call `written` once it is in the log."""
        first, last = self._after()
        deletes = [_KEY.pack(LINKS_START, number) for number in range(self._first, first)]
        return [(_KEY.pack(LINKS_START, last), _VALUE.pack(first))], deletes

    def table_is_due(self) -> bool:
        """Whether the tables must be written out before the next write. True once for each time."""
        due = self._last - self._last_table >= LINKS_PER_TABLE
        if due:
            # Also when that fails: on a full disk one write in many may be refused for it, not all.
            self._last_table = self._last
        return due

    def written(self) -> None:
        """The write is in the log."""
        self._first, self._last = self._after()

    def cleared(self) -> None:
        """All links were deleted: the chain starts with the next write."""
        self._first = self._last + 1

    def _after(self) -> tuple[int, int]:
        last = self._last + 1
        full = last - self._first >= LINKS_KEPT_MIN + LINKS_PER_TABLE
        return self._first + LINKS_PER_TABLE if full else self._first, last
