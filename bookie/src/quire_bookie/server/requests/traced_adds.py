"""Reports the spans of chosen adds and reads of a bookie: see `env.tracing` for which ones are chosen.

    add        arrived                                  answered
      space    |--|
      queue       |-----|     the journal groups before it
      journal           |---|     written and synced
      answer                |------|
    read       arrived                                  answered
      queue, memory, disk

The spans belong to the trace of the entry (`spans.entry_context`), below the span of the broker that stored it.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from quire_bookie.env.slow_log import Value
from quire_bookie.env.tracing import SPREAD, Times, Tracing, chosen_in
from quire_bookie.model import LedgerId, RunBatch
from quire_bookie.spans import Attribute, Kind, entry_context

Row: TypeAlias = tuple[LedgerId, int, int]
"""A ledger, the first entry of a run, and the number of its entries."""


class TracedAdds:
    """Reports chosen adds of one bookie."""

    def __init__(self, tracing: Tracing, bookie: str) -> None:
        self._tracing = tracing
        self._bookie = bookie
        self.by_position = tracing.by_position
        """Whether any entries are chosen; slow operations are reported in any case."""

    def batch(self, batch: RunBatch) -> list[Row]:
        """Return the chosen entries of runs that are answered together, as runs of one entry."""
        stride, chosen = self._tracing.stride, []
        for _records, rows in batch.pieces:  # in plain loops: a call for each batch costs as much as the rest
            for row in rows:
                ahead = -(row[1] + row[0] * SPREAD) % stride
                if ahead < row[2]:
                    chosen.append((row[0], row[1] + ahead, 1))
        return chosen

    def chosen(self, ledger: LedgerId, first: int, count: int) -> list[Row]:
        """Return the chosen entry of one run, if there is one."""
        entry = chosen_in(self._tracing.stride, ledger, first, count)
        return [] if entry is None else [(ledger, entry, 1)]

    def report(
        self, chosen: Sequence[Row], client: str, parts: Mapping[str, Value], times: Times, name: str = "add"
    ) -> list[Row]:
        """Report these operations, and return them; without those beyond the maximum.

        `parts`: of their duration, in order, with the suffix `_s`.
        """
        admitted = [row for row in chosen if self._tracing.admit()]
        for ledger, entry, _count in admitted:
            self._tracing.defer(self._entry, name, ledger, entry, client, parts, times)
        return admitted

    def _entry(self, name: str, ledger: int, entry: int, client: str, parts: Mapping[str, Value], times: Times) -> None:
        """Report an operation on one entry."""
        common: dict[str, Attribute] = {
            "quire.bookie": self._bookie,
            "quire.ledger": ledger,
            "quire.entry": entry,
            "network.peer.address": client,
        }
        tracing, parent = self._tracing, entry_context(ledger, entry)
        made = tracing.below(parent, f"bookie {name}", times, common, Kind.SERVER)
        at_s = times.start_s
        for part, took_s in parts.items():
            if isinstance(took_s, str) or not part.endswith("_s"):
                continue
            tracing.part(made, part[:-2], Times(at_s, at_s + took_s))
            at_s += took_s


def shown(reported: Sequence[Row]) -> dict[str, Value]:
    """Return what the line of a slow operation adds: the trace of the first entry that was reported."""
    return {"trace": entry_context(*reported[0][:2]).trace_text} if reported else {}
