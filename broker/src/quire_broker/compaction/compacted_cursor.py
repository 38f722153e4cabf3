"""A cursor for `readCompacted`: reads the compacted ledger up to the horizon, then the topic's own ledgers.

    compacted ledger: a  c     f  |  horizon
    own ledgers:            d e f |  g h i            reads  a c f g h i

The compacted ledger also has entries whose own ledgers are trimmed. The wrapped cursor cannot name their positions, so
this one keeps its own while it reads them. They count as unacknowledged until the mark-delete position moves. Owns no
acknowledgement state. It must never skip an entry that no later one supersedes.
"""

from collections.abc import Sequence
from typing import Protocol

from quire_bookie.errors import LedgerError
from quire_broker.compaction.compacted_reader import CompactedReader
from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position, StoredEntry


class CompactedSource(Protocol):
    """A topic that may have a compacted ledger."""

    @property
    def reader(self) -> CompactedReader | None:
        """Reads the compacted ledger in use; None if there is none."""
        ...


class CompactedCursor:
    """Wraps the cursor of a subscription."""

    def __init__(self, cursor: Cursor, source: CompactedSource, start: Position | None = None) -> None:
        """`start`: the first entry that a reader asked for; None for a durable cursor."""
        self._cursor = cursor
        self._source = source
        self._ahead: Position | None = None
        """The next position to read while that is in the compacted ledger."""
        self._moves = 0
        self._start = EARLIEST
        self._floor = cursor.mark_delete
        self.begin_at(start)

    def begin_at(self, start: Position | None) -> None:
        """Begin at `start` until the mark-delete position moves: after a seek, or for a new reader.

        None: behind the mark-delete position, and at the first entry if no entry is acknowledged.
        """
        mark = self._floor = self._cursor.mark_delete
        if start is None and mark.entry_id < 0:
            start = EARLIEST
        elif start is None or start == LATEST:
            start = mark.following
        self._start = start
        self.rewind()

    @property
    def name(self) -> str:
        """Name of the subscription."""
        return self._cursor.name

    @property
    def has_more(self) -> bool:
        """Whether `read` may return an entry."""
        reader = self._source.reader
        waiting = self._ahead is not None and reader is not None and self._ahead <= reader.of.horizon
        return waiting or self._cursor.has_more

    @property
    def keeps_all_acks(self) -> bool:
        """See `EntryCursor`."""
        return self._cursor.keeps_all_acks

    def rewind(self) -> None:
        """Move the read position back behind the mark-delete position."""
        self._moves += 1
        self._cursor.rewind()
        self._ahead = self._start if self._cursor.mark_delete == self._floor else None

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Acknowledge whole entries."""
        self._cursor.acknowledge(positions)

    def is_acknowledged(self, position: Position) -> bool:
        """Return whether the whole entry is acknowledged."""
        mark = self._cursor.mark_delete
        return self._cursor.is_acknowledged(position) and (mark != self._floor or position > mark)

    @property
    def has_ack_sets(self) -> bool:
        """Whether a batch is partly acknowledged."""
        return self._cursor.has_ack_sets

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        """Return words of the unacknowledged messages of a partly acknowledged batch, else None."""
        return self._cursor.ack_set(position)

    def read_cached(self, entries_max: int, bytes_max: int) -> Sequence[StoredEntry]:
        """Return what `read` would if that needs no waiting, else nothing. The compacted ledger is not in the cache."""
        reader = self._source.reader
        if self._ahead is not None or (reader is not None and self._cursor.read_position <= reader.of.horizon):
            return ()
        return self._cursor.read_cached(entries_max, bytes_max)

    async def read(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Return the next unacknowledged entries; [] at the tail."""
        while True:
            reader = self._source.reader
            position = self._cursor.read_position if self._ahead is None else self._ahead
            if reader is None or position > reader.of.horizon:
                self._ahead = None  # the wrapped cursor is there, or at the first entry that still exists
                return await self._cursor.read(entries_max, bytes_max)
            moves = self._moves
            try:
                found = await reader.read(position, entries_max, bytes_max)
            except LedgerError:
                if self._source.reader is reader:
                    raise
                continue  # a newer compaction has deleted this ledger meanwhile
            if moves != self._moves:
                continue
            last = found[-1].position if found else reader.of.horizon
            self._ahead = last.following
            self._cursor.set_read_position(self._ahead)
            found = [entry for entry in found if not self.is_acknowledged(entry.position)]
            if found:
                return found
