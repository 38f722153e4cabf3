"""Reads journal files forward: a window over a file, and the search for a later group.

Owns no state beyond one window of bytes. Must never decide what a found group means.
"""

from quire_bookie.env.disk import DiskFile
from quire_bookie.journal.format import DATA_START, GROUP_HEAD_BYTES, GROUP_MAGIC, GroupHead, parse_group_head
from quire_bookie.limits import MIB

WINDOW_BYTES = 4 * MIB
SCAN_STEP_BYTES = 512
"""The smallest alignment of any journal: groups start at multiples of it."""


class Window:
    """Buffers bytes of a file that is read forward: one read per `WINDOW_BYTES`, not per group."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    async def bytes_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`; fewer only at the end of the file."""
        begin = offset - self._start
        if begin < 0 or begin + size > len(self._data):
            self._data = await self._file.read(offset, max(size, WINDOW_BYTES))
            self._start, begin = offset, 0
        return self._data[begin : begin + size]


async def find_group(
    file: DiskFile, start: int, end: int, uuid: bytes, generation: int, *, sequence: int = 0, exact: bool = False
) -> GroupHead | None:
    """Return the first group head in [start, end) of this journal with at least that generation and sequence.

    `exact` restricts the search to that generation. Bodies are not checked: only one group is in flight at a time, so
    any head that was written at all was submitted after every earlier group was durable.
    """
    offset = max(start, DATA_START)
    while offset < end:
        # Steps are multiples of the alignment, so no head lies across two of them.
        data = await file.read(offset, min(WINDOW_BYTES, end - offset + GROUP_HEAD_BYTES))
        found = data.find(GROUP_MAGIC)
        while found >= 0 and offset + found < end:
            head = parse_group_head(data, found) if (offset + found) % SCAN_STEP_BYTES == 0 else None
            if head is not None and head.uuid == uuid and head.sequence >= sequence:
                wanted = head.generation == generation if exact else head.generation >= generation
                if wanted:
                    return head
            found = data.find(GROUP_MAGIC, found + 1)
        offset += WINDOW_BYTES
    return None
