"""Delivers appended entries to the dispatchers of one topic that wait for them, without a task switch for each of them.

A dispatcher at the tail joins the line when entries are appended. A turn of the loop serves from the front until enough
entries were delivered, so that thousands of subscriptions do not hold the loop. All of a turn read the same entries.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_broker.dispatch.delivery import Delivery
from quire_broker.managed_ledger.position import StoredEntry

ENTRIES_AT_ONCE = 256
"""Served dispatchers and delivered entries together, after which other work of the loop goes first: one to two ms."""


class AtTail(Protocol):
    """A dispatcher that waits for an append."""

    def serve(self) -> int:
        """Deliver the appended entries, or leave them to its task. Return the number of delivered entries."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Deliveries that every consumer of a turn gets alike. Do not change them."""

    entries: Sequence[StoredEntry]
    epoch: int | None
    deliveries: list[Delivery]
    messages: int
    size_bytes: int


class TailTurns:
    """The line of the dispatchers."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        """What the last dispatcher of this turn delivered, if others may deliver the same."""
        self._line: deque[AtTail] = deque()
        self._is_due = False

    def join(self, dispatcher: AtTail) -> None:
        """Serve this dispatcher soon. The caller adds it only once until then."""
        self._line.append(dispatcher)
        self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        line, left = self._line, ENTRIES_AT_ONCE
        while line and left > 0:
            left -= 1 + line.popleft().serve()
        self.batch = None
        if line:
            self._run_soon()
