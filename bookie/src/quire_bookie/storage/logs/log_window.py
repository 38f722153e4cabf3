"""The end of a log that is not on the disk yet: page-aligned memory, filled in place, handed on in whole pieces.

Owns memory only. It is page-aligned so that the disk may take it as it is, around the page cache. Filling goes on
behind pieces that are still being written. Never writes to a file, and never changes bytes that somebody was handed
before `forget` says that they are written.
"""

from mmap import mmap
from typing import Final

from quire_bookie import limits
from quire_bookie.env.page_memory import page_memory
from quire_bookie.model import Buffer

PIECE_BYTES: Final = limits.ENTRY_LOG_WRITE_BYTES
SPARE_BYTES: Final = 2 * limits.MIB
"""Memory beside that of a piece, a huge page: what is appended in one go seldom ends where a piece does."""


class _Block:
    """Some memory, and how many pieces of it are being written."""

    __slots__ = ("memory", "under_way")

    def __init__(self, size: int) -> None:
        self.memory = page_memory(size)
        self.under_way = 0


class Piece:
    """Bytes on their way to the file, unchanged until the window is told to forget them."""

    __slots__ = ("block", "data", "offset")

    def __init__(self, offset: int, data: memoryview, block: _Block) -> None:
        self.offset = offset
        self.data = data
        self.block = block


class LogWindow:
    """`start` and `end` are offsets of the file: of what was added and not taken yet.

    While `start` is a multiple of a page, pieces lie on pages. It holds the blocks of the pieces that are under way,
    the one being filled, and one to spare.
    """

    __slots__ = ("_base", "_block", "_spare", "end", "start")

    def __init__(self, offset: int = 0) -> None:
        self._block: _Block | None = None
        self._spare: _Block | None = None
        self._base = self.start = self.end = offset

    @property
    def pending_bytes(self) -> int:
        """Added and not taken."""
        return self.end - self.start

    @property
    def end_of_pieces(self) -> int:
        """Up to where whole pieces were added: a multiple of their size, in the file."""
        return self.end - self.end % PIECE_BYTES

    @property
    def has_piece(self) -> bool:
        """Whether one was added and not taken."""
        return self.end_of_pieces > self.start

    def reserve(self, size: int) -> tuple[mmap, int]:
        """Make room for `size` bytes at the end, which the caller fills: the memory, and where in it they go."""
        at = self.end - self._base
        block = self._block
        if block is None or at + size > len(block.memory):
            block = self._turn_over(size)
            at = self.end - self._base
        self.end += size
        return block.memory, at

    def add(self, data: Buffer) -> None:
        """Bytes at the end."""
        memory, at = self.reserve(len(data))
        memory[at : at + len(data)] = data

    def _turn_over(self, size: int) -> _Block:
        """Go on at the front of some memory, with what is not taken yet."""
        old, at, rest = self._block, self.start - self._base, self.end - self.start
        needed = rest + size
        if old is not None and not old.under_way and needed <= len(old.memory):
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
        """What lies before the offset `end`, cut where the file's pieces meet."""
        block = self._block
        if block is None or end <= self.start:
            return []
        view = memoryview(block.memory)
        found: list[Piece] = []
        while self.start < end:
            stop = min(end, self.start - self.start % PIECE_BYTES + PIECE_BYTES)
            found.append(Piece(self.start, view[self.start - self._base : stop - self._base], block))
            self.start = stop
        block.under_way += len(found)
        return found

    def forget(self, piece: Piece) -> None:
        """It is written, or never will be. Its memory is used again once nothing else of it is under way."""
        block = piece.block
        block.under_way -= 1
        if block is not self._block:
            self._keep(block)
        elif not block.under_way and self.start == self.end:
            self._block = self._spare = None

    def _keep(self, block: _Block) -> None:
        if not block.under_way and len(block.memory) == PIECE_BYTES + SPARE_BYTES:
            self._spare = block
