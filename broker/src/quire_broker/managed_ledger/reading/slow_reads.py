"""Says which part of a slow read for a subscription took long: the wait for memory, or the bookies or the bucket.

Reads from the cache are not timed: they do not wait.
"""

import asyncio
from collections.abc import Sequence

from quire_bookie.env.slow_log import SlowLog
from quire_bookie.env.tracing import Times, chosen_in
from quire_bookie.spans import Attribute, Kind, TraceContext, entry_context
from quire_broker.managed_ledger.ledger_port import Entry
from quire_broker.traced_entries import Traces
from quire_broker.wire.trace_context import context_in


class SlowReads:
    """Logs the slow reads of one managed ledger."""

    def __init__(self, log: SlowLog, name: str, traces: Traces | None = None) -> None:
        self._log = log
        self._traces = traces
        self._name = name
        self._loop = asyncio.get_running_loop()

    def done(self, ledger_id: int, first: int, began_s: float, ready_s: float, entries: Sequence[Entry]) -> None:
        """Log a read that has just returned, if it was slow. `ready_s`: when there was memory for it."""
        now_s = self._loop.time()
        trace = None
        if self._traces is not None and entries:
            trace = self._trace(self._traces, ledger_id, (began_s, ready_s, now_s), entries)
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
                **({} if trace is None else {"trace": trace.trace_text}),
            },
        )

    def _trace(
        self, traces: Traces, ledger_id: int, times: tuple[float, float, float], entries: Sequence[Entry]
    ) -> TraceContext | None:
        """Report the read for its chosen entry, in the trace of that entry in its bookies, and trace its deliveries.

        Return a context of that trace; None if no entry is chosen.
        """
        tracing, first = traces.tracing, entries[0].entry_id
        entry = chosen_in(tracing.stride, ledger_id, first, len(entries))
        if entry is None or not tracing.admit():
            return None
        began_s, ready_s, now_s = times
        stored = entry_context(ledger_id, entry)
        attributes: dict[str, Attribute] = {
            "messaging.system": "pulsar",
            "quire.managed_ledger": self._name,
            "quire.ledger": ledger_id,
            "quire.entry": entry,
            "quire.entries": len(entries),
        }
        read = tracing.below(stored, "read", Times(began_s, now_s), attributes, Kind.CLIENT)
        tracing.part(read, "memory", Times(began_s, ready_s))
        traces.entries.add(ledger_id, entry, context_in(entries[entry - first].payload) or read, now_s)
        return read
