"""Says which part of a slow publish took long: a limit, the wait for a ledger, the bookies, the receipt.

An append costs nothing for it: the queue notes one time for all appends of a loop iteration, and the appender compares
it when their batch is confirmed. The line is written after the receipts, which leave in the same loop iteration.
"""

import asyncio
from typing import NamedTuple

from quire_bookie.env.slow_log import SlowLog, Value
from quire_bookie.errors import QuireError
from quire_bookie.model import EntryId, ReplicaState
from quire_bookie.spans import TraceContext
from quire_broker.managed_ledger.appending.append_queue import AppendBatch
from quire_broker.managed_ledger.ledger_port import Writer


class _Confirmed(NamedTuple):
    first: int
    entries: int
    size_bytes: int
    writer: Writer


class SlowAppends:
    """Logs the slow appends of one managed ledger; `after_s` as in `SlowLog`."""

    def __init__(self, log: SlowLog, name: str) -> None:
        self.after_s = log.after_s
        self._log = log
        self._name = name
        self._loop = asyncio.get_running_loop()

    def confirmed(self, writer: Writer, batch: AppendBatch, now_s: float, trace: TraceContext | None = None) -> None:
        """Log a batch whose appends were answered in this step, once the receipts are written.

        `trace`: that of one of them, if there is one.
        """
        times = batch.times
        fields: dict[str, Value] = {
            "ledger_name": self._name,
            "ledger": writer.ledger_id,
            "first": batch.first,
            "entries": len(batch.dones),
            "bytes": batch.size_bytes,
            "limit_s": times.held_s,
            "wait_s": times.submitted_s - times.queued_s,
            "ledger_s": now_s - times.submitted_s,
        }
        states = writer.replica_states(EntryId(batch.first))
        for state in ReplicaState:
            bookies = [bookie for bookie, found in states.items() if found is state]
            if bookies:
                fields[f"bookies_{state.value}"] = ",".join(bookies)
        if trace is not None:
            fields["trace"] = trace.trace_text
        self._loop.call_soon(self._answered, times.began_s, now_s, fields)

    def _answered(self, began_s: float, confirmed_s: float, fields: dict[str, Value]) -> None:
        now_s = self._loop.time()
        self._log.note("publish", now_s - began_s, fields | {"answer_s": now_s - confirmed_s})

    def failed(self, oldest_s: float, appends: int, error: QuireError) -> None:
        """Log appends that fail now. `oldest_s`: when the first of them began."""
        took_s = self._loop.time() - oldest_s
        if took_s >= self.after_s:
            self._log.note("publish", took_s, {"ledger_name": self._name, "entries": appends, "error": str(error)})
