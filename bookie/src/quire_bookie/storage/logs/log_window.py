"""The end of a log that is not on the disk yet: page-aligned memory, filled in place, written in whole pieces.

Owns memory only. It is page-aligned so that it can be written directly, bypassing the page cache. Filling continues
after pieces that are still being written. Never writes to a file, and never changes bytes of a piece before `forget`
releases it.
"""

from mmap import mmap
from typing import Final

from quire_bookie import limits
from quire_bookie.env.page_memory import page_memory
from quire_bookie.model import Buffer

PIECE_BYTES: Final = limits.ENTRY_LOG_WRITE_BYTES
SPARE_BYTES: Final = 2 * limits.MIB
"""Memory in addition to a piece, a huge page: appends seldom end exactly at the end of a piece."""


class _Block:
    """A block of memory, and how many of its pieces are being written."""

    __slots__ = ("in_flight", "memory")

    def __init__(self, size: int) -> None:
        self.memory = page_memory(size)
        self.in_flight = 0


class Piece:
    """Bytes being written to the file, unchanged until `LogWindow.forget`."""

    __slots__ = ("block", "data", "offset")

    def __init__(self, offset: int, data: memoryview, block: _Block) -> None:
        self.offset = offset
        self.data = data
        self.block = block


class LogWindow:
    """Collects appended bytes. `start` and `end`: file offsets of the bytes that were added and not taken yet.

    While `start` is a multiple of a page, pieces are page-aligned. Holds the blocks of the pieces in flight, the one
    being filled, and one spare.
    """

    __slots__ = ("_base", "_block", "_spare", "end", "start")

    def __init__(self, offset: int = 0) -> None:
        self._block: _Block | None = None
        self._spare: _Block | None = None
        self._base = self.start = self.end = offset

    @property
    def pending_bytes(self) -> int:
        """Bytes added and not taken."""
        return self.end - self.start

    @property
    def end_of_pieces(self) -> int:
        """The file offset up to which whole pieces were added, a multiple of their size."""
        return self.end - self.end % PIECE_BYTES

    @property
    def has_piece(self) -> bool:
        """Whether a whole piece was added and not taken."""
        return self.end_of_pieces > self.start

    def reserve(self, size: int) -> tuple[mmap, int]:
        """Reserve `size` bytes at the end for the caller to fill; return the memory and the offset in it."""
        at = self.end - self._base
        block = self._block
        if block is None or at + size > len(block.memory):
            block = self._next_block(size)
            at = self.end - self._base
        assert at + size <= len(block.memory)
        self.end += size
        return block.memory, at

    def add(self, data: Buffer) -> None:
        """Append bytes."""
        memory, at = self.reserve(len(data))
        memory[at : at + len(data)] = data

    def _next_block(self, size: int) -> _Block:
        """Return a block with space, with the bytes that are not taken yet moved to its front."""
        old, at, rest = self._block, self.start - self._base, self.end - self.start
        needed = rest + size
        if old is not None and not old.in_flight and needed <= len(old.memory):
            old.memory.move(0, at, rest)
            block = old
        else:
            spare, self._spare = self._spare, None
            if spare is not None and needed <= len(spare.memory):
                block = spare
            else:
                block = _Block(max(PIECE_BYTES + SPARE_BYTES, 1 << (needed - 1).bit_length()))
            if old is not None:
                block.memory[:rest] = memoryview(old.memory)[at : at + rest]
                self._keep(old)
        self._block, self._base = block, self.start
        return block

    def take(self, end: int) -> list[Piece]:
        """Take the bytes before the file offset `end`, split at the boundaries of pieces in the file."""
        block = self._block
        if block is None or end <= self.start:
            return []
        assert end <= self.end, "only bytes that were added are taken"
        view = memoryview(block.memory)
        found: list[Piece] = []
        while self.start < end:
            stop = min(end, self.start - self.start % PIECE_BYTES + PIECE_BYTES)
            found.append(Piece(self.start, view[self.start - self._base : stop - self._base], block))
            self.start = stop
        block.in_flight += len(found)
        return found

    def forget(self, piece: Piece) -> None:
        """Release a piece that was written or abandoned. Its block is reused once none of its pieces is in flight."""
        block = piece.block
        block.in_flight -= 1
        assert block.in_flight >= 0, "a piece is released once"
        if block is not self._block:
            self._keep(block)
        elif not block.in_flight and self.start == self.end:
            self._block = self._spare = None

    def _keep(self, block: _Block) -> None:
        if not block.in_flight and len(block.memory) == PIECE_BYTES + SPARE_BYTES:
            self._spare = block
