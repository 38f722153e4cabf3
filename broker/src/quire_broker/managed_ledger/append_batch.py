"""Appends that went to a ledger together. A value, nothing else."""

from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.errors import QuireError
from quire_broker.managed_ledger.entry_cache import sizes
from quire_broker.managed_ledger.ledger_port import Payload
from quire_broker.managed_ledger.position import Position

AppendDone: TypeAlias = Callable[[Position | None, QuireError | None], None]
"""Called once per append, in order: with the position, or with the error."""


class AppendBatch:
    """What one submit took: parallel lists, and the id of the first entry."""

    __slots__ = ("dones", "entries", "first", "size_bytes")

    def __init__(self, first: int, entries: list[Payload], dones: list[AppendDone], size_bytes: int) -> None:
        self.first = first
        self.entries = entries
        self.dones = dones
        self.size_bytes = size_bytes

    def split(self, count: int) -> "AppendBatch":
        """Take the first `count` entries out, as a batch of their own."""
        entries = self.entries[:count]
        head = AppendBatch(self.first, entries, self.dones[:count], sizes(entries))
        self.first += count
        self.entries = self.entries[count:]
        self.dones = self.dones[count:]
        self.size_bytes -= head.size_bytes
        return head
