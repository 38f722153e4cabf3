"""Collects the metrics of an auto-recovery process. BookKeeper has no counterparts of most."""

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from quire_bookie.exposition.families import Families, Names
from quire_bookie.recovery import RunningAutoRecovery

RECOVERY: Names = {
    "ledgers_repaired": ("quire_autorecovery_ledgers_repaired", "counter", "ledgers repaired"),
    "replicas_replaced": (
        "quire_autorecovery_replicas_replaced",
        "counter",
        "fragment positions that now name another bookie",
    ),
    "ledgers_raised": ("quire_autorecovery_ledgers_raised", "counter", "ledgers that got their missing copies"),
    "replicas_restored": (
        "quire_autorecovery_replicas_restored",
        "counter",
        "fragment positions whose missing entries were restored on the same bookie",
    ),
    "entries_copied": ("quire_autorecovery_entries_copied", "counter", "entries copied"),
    "bytes_copied": ("quire_autorecovery_bytes_copied", "counter", "bytes copied"),
    "bytes_read_back": (
        "quire_autorecovery_bytes_read_back",
        "counter",
        "bytes read back from the new bookies of replicas that moved off drained bookies",
    ),
    "ledgers_recovered": (
        "quire_autorecovery_ledgers_recovered",
        "counter",
        "open ledgers that were taken over from a writer and closed",
    ),
    "limbo_ended": ("quire_autorecovery_limbo_ended", "counter", "limbos of ledgers at bookies that were ended"),
    "repairs_failed": (
        "quire_autorecovery_repairs_failed",
        "counter",
        "attempts that repaired a ledger not at all or only in part",
    ),
    "repairs_stalled": (
        "quire_autorecovery_repairs_stalled",
        "counter",
        "attempts that were given up because they made no progress",
    ),
    "unrecoverable_noted": ("quire_autorecovery_unrecoverable_noted", "counter", "ledgers noted as unrecoverable"),
    "elections_won": ("quire_autorecovery_elections_won", "counter", "times that this process became the auditor"),
    "searches": ("quire_autorecovery_searches", "counter", "completed searches for lost bookies"),
    "audits": ("quire_autorecovery_audits", "counter", "audits of lost bookies"),
    "marks_made": ("quire_autorecovery_marks_made", "counter", "ledgers marked as under-replicated"),
    "checks": ("quire_autorecovery_checks", "counter", "completed checks of all ledgers"),
    "ledgers_checked": ("quire_autorecovery_ledgers_checked", "counter", "ledgers checked"),
    "replicas_unknown": (
        "quire_autorecovery_replicas_unknown",
        "counter",
        "replicas whose state a check could not determine",
    ),
    "ledgers_without_copy": (
        "quire_autorecovery_ledgers_without_copy",
        "gauge",
        "ledgers with an entry that no replica holds intact, at the last check of all ledgers",
    ),
    "ledgers_below_ack_quorum": (
        "quire_autorecovery_ledgers_below_ack_quorum",
        "gauge",
        "ledgers with fewer intact copies than the ack quorum, at the last check of all ledgers",
    ),
    "ledgers_below_write_quorum": (
        "quire_autorecovery_ledgers_below_write_quorum",
        "gauge",
        "ledgers with fewer intact copies than the write quorum, at the last check of all ledgers",
    ),
    "ledgers_below_configured_copies": (
        "quire_autorecovery_ledgers_below_configured_copies",
        "gauge",
        "ledgers created with fewer copies than configured and not raised yet, at the last narrow check",
    ),
    "narrow_checks": (
        "quire_autorecovery_narrow_checks",
        "counter",
        "completed checks for ledgers below the configured number of copies",
    ),
    "placement_checks": ("quire_autorecovery_placement_checks", "counter", "completed placement checks"),
    "ledgers_misplaced": (
        "quire_autorecovery_ledgers_misplaced",
        "gauge",
        "ledgers that violate the rules of machines, racks and zones, at the last placement check",
    ),
    "replicas_relocated": (
        "quire_autorecovery_replicas_relocated",
        "counter",
        "replicas moved to satisfy the rules of machines, racks and zones",
    ),
    "ledgers_unreadable": (
        "quire_autorecovery_ledgers_unreadable",
        "counter",
        "reads of ledger nodes whose value has an unknown format",
    ),
    "drains": ("quire_autorecovery_drains", "gauge", "drain requests when the auditor last checked"),
    "drain_ledgers_left": ("quire_autorecovery_drain_ledgers_left", "gauge", "ledgers left in all drains"),
    "drain_bytes_left": ("quire_autorecovery_drain_bytes_left", "gauge", "bytes of closed ledgers left in all drains"),
    "under_replicated": ("quire_autorecovery_under_replicated", "gauge", "marked ledgers when they were last counted"),
    "under_replicated_oldest_ms": (
        "quire_autorecovery_under_replicated_oldest_ms",
        "gauge",
        "time of the oldest mark, in ms since the epoch; 0: none",
    ),
    "under_replicated_oldest_s": (
        "quire_autorecovery_under_replicated_oldest_s",
        "gauge",
        "age of that mark in s",
    ),
    "under_replicated_eta_s": (
        "quire_autorecovery_under_replicated_eta_s",
        "gauge",
        "estimated time until no ledger is marked, in s; 0: none is marked; -1: unknown",
    ),
}


class RecoveryCollector:
    """Collects counters since the start of the process, and the gauges of the last check of the marks."""

    def __init__(self, running: RunningAutoRecovery) -> None:
        self._running = running

    def collect(self) -> Iterable[Metric]:
        """Return all families."""
        families, running = Families(), self._running
        families.add_stats(running.stats, RECOVERY, {})
        auditor, health = running.auditor, running.access.pool.health
        leads = auditor is not None and auditor.leads
        families.add("quire_autorecovery_auditor", "gauge", "1 if this process is the auditor", leads, {})
        name, text = "quire_autorecovery_ledgers_in_progress", "ledgers in repair"
        families.add(name, "gauge", text, len(running.workers.busy), {})
        name, text = "quire_autorecovery_speculative_reads", "reads sent to a further replica because one was slow"
        families.add(name, "counter", text, health.speculative_reads, {})
        name = "quire_autorecovery_foreign_ledger_answers"
        text = "unused answers of bookies that hold another ledger under the id"
        families.add(name, "counter", text, health.foreign_answers, {})
        return families
