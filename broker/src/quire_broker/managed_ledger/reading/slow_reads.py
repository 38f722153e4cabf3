"""Says which part of a slow read for a subscription took long: the wait for memory, or the bookies or the bucket.

Reads from the cache are not timed: they do not wait.
"""

import asyncio
from collections.abc import Sequence

from quire_bookie.env.slow_log import SlowLog
from quire_broker.managed_ledger.ledger_port import Entry


class SlowReads:
    """Logs the slow reads of one managed ledger."""

    def __init__(self, log: SlowLog, name: str) -> None:
        self._log = log
        self._name = name
        self._loop = asyncio.get_running_loop()

    def done(self, ledger_id: int, first: int, began_s: float, ready_s: float, entries: Sequence[Entry]) -> None:
        """Log a read that has just returned, if it was slow. `ready_s`: when there was memory for it."""
        now_s = self._loop.time()
        if now_s - began_s < self._log.after_s:
            return
        self._log.note(
            "read",
            now_s - began_s,
            {
                "ledger_name": self._name,
                "ledger": ledger_id,
                "first": first,
                "entries": len(entries),
                "bytes": sum(len(entry.payload) for entry in entries),
                "memory_s": ready_s - began_s,
                "ledger_s": now_s - ready_s,
            },
        )
