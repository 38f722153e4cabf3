"""Metrics of the spans of a process."""

from quire_bookie.env.span_export import SpanExport
from quire_bookie.exposition.families import Families


class SpanCollector:
    """Collects what became of the spans."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export

    def collect(self) -> Families:
        """Return the families."""
        families, stats = Families(), self._export.stats
        name, text = "quire_trace_spans_total", "spans by outcome: exported, or lost"
        for outcome, count in (
            ("exported", stats.exported),
            ("queue_full", stats.lost_full),
            ("collector_failed", stats.lost_failed),
        ):
            families.add(name, "counter", text, count, {"outcome": outcome})
        name, text = "quire_trace_spans_waiting", "spans that wait for the collector"
        families.add(name, "gauge", text, self._export.waiting, {})
        return families
