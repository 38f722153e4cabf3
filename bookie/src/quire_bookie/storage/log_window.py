"""The end of a log that is not on the disk yet: page-aligned memory, filled in place, handed on in whole pieces.

Owns memory only. It is page-aligned so that the disk may take it as it is, around the page cache. Never writes to a
file, and never changes bytes that somebody was handed before `forget` says that they are written.
"""

import mmap
from typing import Final

from quire_bookie import limits
from quire_bookie.model import Buffer

PIECE_BYTES: Final = limits.ENTRY_LOG_WRITE_BYTES


class LogWindow:
    """`start` and `end` are offsets of the file. While `start` is a multiple of a page, pieces lie on pages."""

    __slots__ = ("_memory", "end", "start")

    def __init__(self, offset: int = 0) -> None:
        self._memory: mmap.mmap | None = None
        self.start = self.end = offset

    @property
    def pending_bytes(self) -> int:
        """Added and not forgotten."""
        return self.end - self.start

    def reserve(self, size: int) -> tuple[mmap.mmap, int]:
        """Make room for `size` bytes at the end, which the caller fills: the memory, and where in it they go."""
        at = self.end - self.start
        needed = at + size
        memory = self._memory
        if memory is None or needed > len(memory):
            grown = mmap.mmap(-1, max(2 * PIECE_BYTES, 1 << (needed - 1).bit_length()))
            if memory is not None:
                grown[:at] = memory[:at]
            memory = self._memory = grown
        self.end += size
        return memory, at

    def add(self, data: Buffer) -> None:
        """Bytes at the end."""
        memory, at = self.reserve(len(data))
        memory[at : at + len(data)] = data

    def pieces(self, end: int) -> list[tuple[int, memoryview]]:
        """What lies before the offset `end`, cut where the file's pieces of 1 MiB meet, each with its offset."""
        if self._memory is None or end <= self.start:
            return []
        view = memoryview(self._memory)
        found: list[tuple[int, memoryview]] = []
        at = self.start
        while at < end:
            stop = min(end, at - at % PIECE_BYTES + PIECE_BYTES)
            found.append((at, view[at - self.start : stop - self.start]))
            at = stop
        return found

    def forget(self, end: int) -> None:
        """What lies before the offset `end` is written; the rest moves to the front. Memory goes when it is empty."""
        rest = self.end - end
        if rest <= 0:
            self._memory = None
        elif self._memory is not None:
            self._memory.move(0, end - self.start, rest)
        self.start = end
