"""The ADD frames of a run as sent, kept so that they can be sent again. Owns their slicing; sends nothing."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from quire_bookie.model import Buffer, EntryId

_LENGTH = Struct(">i")
_ENTRY_LENGTH = Struct(">q")
_ENTRY_LENGTH_OFFSET = 4 + 4 + 20 + 24  # frame length, header word, master key, then ledger, entry, LAC


class SentRun(NamedTuple):
    """Consecutive entries whose frames were sent together, joined in one buffer."""

    first: EntryId
    end: int
    """The entry after the last."""
    frames: bytes
    length: int
    """Payload bytes of the ledger up to and including the last entry."""
    sent_s: float

    def split(self) -> Iterator[memoryview]:
        """Yield the ADD frames one by one."""
        view, stop = memoryview(self.frames), 0
        while stop < len(view):
            start = stop
            stop += 4 + _LENGTH.unpack_from(view, start)[0]
            yield view[start:stop]

    def frames_of(self, first: int, end: int) -> memoryview:
        """Return the ADD frames of entries `first` to `end` - 1. Walks the frames: only slow paths call it."""
        assert self.first <= first < end <= self.end
        view, start, stop = memoryview(self.frames), 0, 0
        for entry in range(self.first, end):
            start = start if entry > first else stop
            stop += 4 + _LENGTH.unpack_from(view, stop)[0]
        return view[start:stop]

    def length_at(self, entry: EntryId) -> int:
        """Return the payload bytes of the ledger up to and including `entry`, from its header."""
        (length,) = _ENTRY_LENGTH.unpack_from(self.frames_of(entry, entry + 1), _ENTRY_LENGTH_OFFSET)
        assert isinstance(length, int)
        return length

    def frames_for(self, position: int, first: EntryId, write_sets: Sequence[tuple[int, ...]]) -> Buffer:
        """Return the ADD frames from `first` on of a position of the ensemble; may be empty."""
        begin = max(first, self.first)
        if begin >= self.end:
            return b""
        if len(write_sets[0]) == len(write_sets):
            return self.frames if begin == self.first else self.frames_of(begin, self.end)
        size = len(write_sets)
        mine = [
            frame
            for entry, frame in enumerate(self.split(), self.first)
            if entry >= first and position in write_sets[entry % size]
        ]
        return b"".join(mine)
