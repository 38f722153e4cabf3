"""Collects the metrics of a bookie, under the names of BookKeeper's dashboards.

Latencies are reported twice: as summaries in milliseconds, under BookKeeper's names, with the quantiles of the last
minute, and as histograms in seconds, which can be added up over bookies. Metrics without a counterpart in BookKeeper
are named `quire_bookie_*`.
"""

import dataclasses

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
from quire_bookie.admin.security_readings import security_readings
from quire_bookie.metrics import LatencyHistogram, LatencyWindow, Reading, of_histogram, of_stats, of_window
from quire_bookie.server.process import BookieState, RunningBookie
from quire_bookie.server.upkeep.read_only import ReadOnlyReason

_STATUS = {BookieState.WRITABLE: 1, BookieState.READ_ONLY: 0, BookieState.POISONED: -1, BookieState.STOPPED: -1}


class BookieReadings:
    """Collects metrics of bookies, labelled with their ids. Keeps the latency windows between two scrapes."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], LatencyWindow] = {}

    def of(self, bookie: RunningBookie, now_s: float) -> list[Reading]:
        """Return all readings of one bookie; `now_s` is the time of a monotonic clock."""
        labels = {"bookie": str(bookie.bookie_id)}
        readings = _gauges(bookie, labels) + security_readings(bookie.guard, labels)
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
            readings += of_stats(stats, names, labels)
            readings += self._latencies(stats, labels, now_s)
        return readings

    def _latencies(self, stats: object, labels: dict[str, str], now_s: float) -> list[Reading]:
        found: list[Reading] = []
        assert dataclasses.is_dataclass(stats)
        for attribute in (field.name for field in dataclasses.fields(stats)):
            histogram = getattr(stats, attribute)
            if isinstance(histogram, LatencyHistogram):
                summary, name, text = LATENCIES[attribute]
                window = self._windows.setdefault((labels["bookie"], attribute), LatencyWindow())
                counts = window.look(histogram, now_s)
                found += of_window(histogram, counts, summary, f"{text}, in ms", {**labels, "success": "true"})
                found += of_histogram(histogram, name, text, labels)
        return found


def _gauges(bookie: RunningBookie, labels: dict[str, str]) -> list[Reading]:
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
    readings = [Reading(name, "gauge", text, float(value), labels) for name, text, value in values]
    for reason in ReadOnlyReason:
        given = float(reason in bookie.read_only_mode.reasons)
        readings.append(
            Reading("quire_bookie_read_only", "gauge", "1: a reason applies", given, {**labels, "reason": reason.value})
        )
    for step, took_s in bookie.start_steps.seconds.items():
        text = "duration of a step of the last start; steps may overlap"
        readings.append(Reading("quire_bookie_start_seconds", "gauge", text, took_s, {**labels, "step": step}))
    for folder in () if monitor is None else monitor.folders:
        if folder.usage.total_bytes:
            used = 100.0 * (1.0 - folder.usage.free_bytes / folder.usage.total_bytes)
            name, text = "bookie_ledger_dir_usage", "share of a ledger folder's disk in use, in percent"
            readings.append(Reading(name, "gauge", text, used, {**labels, "ledgerDir": folder.path}))
    return readings
