"""Appends that were submitted to a ledger together. A value only."""

from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.errors import QuireError
from quire_broker.managed_ledger.entry_cache import sizes
from quire_broker.managed_ledger.ledger_port import Payload
from quire_broker.managed_ledger.position import Position

AppendDone: TypeAlias = Callable[[Position | None, QuireError | None], None]
"""Called once for each append, in order, with its position or its error."""


class AppendBatch:
    """The entries of one submit with their callbacks, as parallel lists, and the id of the first entry."""

    __slots__ = ("dones", "entries", "first", "size_bytes")

    def __init__(self, first: int, entries: list[Payload], dones: list[AppendDone], size_bytes: int) -> None:
        self.first = first
        self.entries = entries
        self.dones = dones
        self.size_bytes = size_bytes

    def split(self, count: int) -> "AppendBatch":
        """Remove the first `count` entries and return them as a separate batch."""
        entries = self.entries[:count]
        head = AppendBatch(self.first, entries, self.dones[:count], sizes(entries))
        self.first += count
        self.entries = self.entries[count:]
        self.dones = self.dones[count:]
        self.size_bytes -= head.size_bytes
        return head
