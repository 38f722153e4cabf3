"""The chain of commits inside RocksDB, which proves that no run of commits in the middle was lost.

RocksDB stores commits in tables and write-ahead logs that a manifest names. With an older copy of the manifest, or
without one of several logs, it opens without an error although commits in the middle are missing. Every write therefore
adds a link, and a start searches the links for gaps.

    link    key   "\\xffchain", number of the write u64 (big-endian)
            value number of the first link that must exist u64 (big-endian)

A window of links is kept. The logs must never span the whole window, or a gap before it would not be detected:
therefore the store flushes its tables every `LINKS_PER_TABLE` writes. An index of an earlier version has no links: its
chain starts with the next write. `index_commits` proves the last number.
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
    """Tracks the links. Belongs to the thread that writes."""

    def __init__(self, first: int = 1, last: int = 0) -> None:
        self._first = first
        self._last = last
        self._last_table = last
        """The last write before the tables were last flushed."""

    @classmethod
    def of(cls, links: Iterable[tuple[bytes, bytes]]) -> "CommitChain":
        """Build the chain from the stored links, ascending. ValueError: commits are missing."""
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
            raise ValueError(f"commits are missing: write {missing} is absent, but write {last} exists")
        return cls(first, last)

    def next_write(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Return the puts and deletes to add to the next write; call `written` once it is in the log."""
        first, last = self._after()
        deletes = [_KEY.pack(LINKS_START, number) for number in range(self._first, first)]
        return [(_KEY.pack(LINKS_START, last), _VALUE.pack(first))], deletes

    def table_is_due(self) -> bool:
        """Return whether the tables must be flushed before the next write. True once per interval."""
        due = self._last - self._last_table >= LINKS_PER_TABLE
        if due:
            # Set even if the flush fails: on a full disk it may refuse one write per interval, but not all.
            self._last_table = self._last
        return due

    def written(self) -> None:
        """Advance the chain: the write is in the log."""
        self._first, self._last = self._after()
        assert self._first <= self._last, "the chain has a link"

    def cleared(self) -> None:
        """Restart the chain with the next write: all links were deleted."""
        self._first = self._last + 1

    def _after(self) -> tuple[int, int]:
        last = self._last + 1
        full = last - self._first >= LINKS_KEPT_MIN + LINKS_PER_TABLE
        return self._first + LINKS_PER_TABLE if full else self._first, last
