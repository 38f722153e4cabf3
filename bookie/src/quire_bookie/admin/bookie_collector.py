"""Collects the metrics of bookies, under the names of BookKeeper's dashboards.

Latencies are reported twice: as summaries in milliseconds, under BookKeeper's names, with the quantiles of the last
minute, and as histograms in seconds, which can be added up over bookies. Metrics without a counterpart in BookKeeper
are named `quire_bookie_*`.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from quire_bookie.admin.names import (
    COLLECTION,
    COMPACTION,
    COMPACTION_SCHEDULE,
    DAMAGE,
    JOURNAL,
    LATENCIES,
    REGISTRATION,
    SCRUBBING,
    SERVER,
    STORAGE,
)
from quire_bookie.admin.security_metrics import add_security
from quire_bookie.exposition.connection_memory import add_connection_memory
from quire_bookie.exposition.families import Families
from quire_bookie.exposition.slow_operations import Named, add_slow_operations
from quire_bookie.metrics import LatencyHistogram, LatencyWindow
from quire_bookie.server.process import BookieState, RunningBookie
from quire_bookie.server.upkeep.read_only import ReadOnlyReason

_STATUS = {BookieState.WRITABLE: 1, BookieState.READ_ONLY: 0, BookieState.POISONED: -1, BookieState.STOPPED: -1}

_SLOW: tuple[Named, Named] = (
    ("quire_bookie_slow_operations_total", "counter", "operations that took slowOperationMs or longer, by kind"),
    ("quire_bookie_slow_operations_suppressed_total", "counter", "slow operations without a line in the log"),
)


class BookieCollector:
    """Collects the metrics of bookies, labelled with their ids. Keeps the latency windows between two scrapes."""

    def __init__(self, bookies: Callable[[], Iterable[RunningBookie]], *, own_memory: bool) -> None:
        """`bookies`: those that run now. `own_memory`: no other part of the process shares the connections' memory."""
        self._bookies = bookies
        self._own_memory = own_memory
        self._windows: dict[tuple[str, str], LatencyWindow] = {}

    def collect(self) -> Iterable[Metric]:
        """Return all families. Called on the event loop."""
        families, now_s = Families(), asyncio.get_running_loop().time()
        for bookie in self._bookies():
            self._add(families, bookie, now_s)
        return families

    def _add(self, families: Families, bookie: RunningBookie, now_s: float) -> None:
        labels = {"bookie": str(bookie.bookie_id)}
        _add_gauges(families, bookie, labels)
        add_security(families, bookie.guard, labels)
        for stats, names in (
            (bookie.bookie.stats, SERVER),
            (bookie.journal.stats, JOURNAL),
            (bookie.storage.stats, STORAGE),
            (bookie.garbage_collection.stats, COLLECTION),
            (bookie.compaction.stats, COMPACTION_SCHEDULE),
            (bookie.storage.compaction.stats, COMPACTION),
            (bookie.scrubbing.stats, SCRUBBING),
            (bookie.scrubbing.damage.stats, DAMAGE),
            (bookie.registration.stats, REGISTRATION),
        ):
            families.add_stats(stats, names, labels)
            self._add_latencies(families, stats, labels, now_s)
        add_slow_operations(families, bookie.bookie.slow, *_SLOW, labels)
        if self._own_memory:
            add_connection_memory(families, bookie.memory, labels)

    def _add_latencies(self, families: Families, stats: object, labels: dict[str, str], now_s: float) -> None:
        assert dataclasses.is_dataclass(stats)
        for attribute in (field.name for field in dataclasses.fields(stats)):
            histogram = getattr(stats, attribute)
            if isinstance(histogram, LatencyHistogram):
                summary, name, text = LATENCIES[attribute]
                window = self._windows.setdefault((labels["bookie"], attribute), LatencyWindow())
                counts = window.counts(histogram, now_s)
                families.add_window(histogram, counts, summary, f"{text}, in ms", {**labels, "success": "true"})
                families.add_histogram(histogram, name, text, labels)


def _add_gauges(families: Families, bookie: RunningBookie, labels: dict[str, str]) -> None:
    monitor = bookie.disk_monitor
    total, free, writable = (
        (0, 0, 0) if monitor is None else (monitor.total_bytes, monitor.free_bytes, monitor.writable_folders)
    )
    values: tuple[tuple[str, str, float], ...] = (
        ("bookie_SERVER_STATUS", "1 writable, 0 read-only, -1 failed or stopped", _STATUS[bookie.state]),
        ("bookie_journal_JOURNAL_MEMORY_USED", "bytes waiting for the journal", bookie.journal.queued_bytes),
        ("bookie_write_cache_size", "bytes in the write cache", bookie.storage.write_cache_bytes),
        ("bookie_ACTIVE_ENTRY_LOG_TOTAL", "entry logs", bookie.storage.compaction.active_logs),
        (
            "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES",
            "committed bytes of entry logs",
            bookie.storage.compaction.active_log_bytes,
        ),
        ("bookie_ledger_writable_dirs", "ledger folders that accept new logs", writable),
        ("quire_bookie_limbo", "1: missing entries may have been lost", bookie.storage.in_limbo),
        (
            "quire_bookie_metadata_in_doubt",
            "1: the metadata went back in time",
            bookie.metadata_doubt.reason is not None,
        ),
        ("quire_bookie_logs_quarantined", "entry logs that cannot be trusted", len(bookie.storage.quarantined)),
        ("quire_gc_quarantine_ledgers", "ledgers in quarantine", bookie.storage.ledger_quarantine.ledgers),
        ("quire_gc_quarantine_bytes", "their flushed bytes", bookie.storage.ledger_quarantine.size_bytes),
        ("quire_bookie_disk_total_bytes", "size of the ledgers' file systems", total),
        ("quire_bookie_disk_free_bytes", "free bytes of the ledgers' file systems", free),
    )
    for name, text, value in values:
        families.add(name, "gauge", text, value, labels)
    for reason in ReadOnlyReason:
        name, text, given = "quire_bookie_read_only", "1: a reason applies", reason in bookie.read_only_mode.reasons
        families.add(name, "gauge", text, given, {**labels, "reason": reason.value})
    for step, took_s in bookie.start_steps.seconds.items():
        text = "duration of a step of the last start; steps may overlap"
        families.add("quire_bookie_start_seconds", "gauge", text, took_s, {**labels, "step": step})
    for folder in () if monitor is None else monitor.folders:
        if folder.usage.total_bytes:
            used = 100.0 * (1.0 - folder.usage.free_bytes / folder.usage.total_bytes)
            name, text = "bookie_ledger_dir_usage", "share of a ledger folder's disk in use, in percent"
            families.add(name, "gauge", text, used, {**labels, "ledgerDir": folder.path})
