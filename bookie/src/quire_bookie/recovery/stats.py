"""Counters of auto-recovery since its process began. Plain numbers; readers render them."""

from quire_bookie.dataclass import dataclass


@dataclass(slots=True)
class RecoveryStats:
    """Counters of the workers first, then of the auditor."""

    ledgers_repaired: int = 0
    replicas_replaced: int = 0
    """Fragment positions that now name another bookie."""
    ledgers_raised: int = 0
    """Closed ledgers, created with too few copies, that received the missing ones."""
    replicas_restored: int = 0
    """Fragment positions whose missing entries were restored on the same bookie."""
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_read_back: int = 0
    """Bytes read back from the new bookies of replicas that moved off drained bookies."""
    ledgers_recovered: int = 0
    """Open ledgers that were taken over from a writer and closed."""
    limbo_ended: int = 0
    repairs_failed: int = 0
    """Attempts that repaired a ledger not at all or only in part."""
    repairs_stalled: int = 0
    """Attempts that were given up because they made no progress; they count as failed too."""
    unrecoverable_noted: int = 0
    elections_won: int = 0
    searches: int = 0
    """Completed searches for lost bookies. After the first, the auditor has started."""
    audits: int = 0
    marks_made: int = 0
    checks: int = 0
    """Completed checks of all ledgers."""
    ledgers_checked: int = 0
    replicas_unknown: int = 0
    """Replicas whose state a check could not determine."""
    ledgers_without_copy: int = 0
    """Ledgers with an entry that no replica holds intact, at the last check of all ledgers. The next two likewise."""
    ledgers_below_ack_quorum: int = 0
    ledgers_below_write_quorum: int = 0
    ledgers_below_configured_copies: int = 0
    """Ledgers created while too few bookies were writable and not raised yet, at the last narrow check."""
    narrow_checks: int = 0
    """Completed checks for ledgers below the configured number of copies."""
    placement_checks: int = 0
    ledgers_misplaced: int = 0
    """Ledgers that violate the rules of machines, racks and zones, at the last placement check."""
    replicas_relocated: int = 0
    """Replicas moved to satisfy the rules of machines, racks and zones."""
    ledgers_unreadable: int = 0
    """Ledger nodes whose value has an unknown format."""
    drains: int = 0
    """Drain requests when the auditor last checked."""
    drain_ledgers_left: int = 0
    drain_bytes_left: int = 0
    """Bytes left in all drains together at that time; counts closed ledgers only, whose metadata have their length."""
    under_replicated: int = 0
    """Marked ledgers when they were last counted."""
    under_replicated_oldest_ms: int = 0
    """Wall clock of the oldest mark at that time, in ms; 0 if there was none."""
    under_replicated_oldest_s: int = 0
    """Age of the oldest mark at that time, in seconds."""
    under_replicated_eta_s: int = 0
    """Seconds until no ledger is marked, at the rate of the last minutes; 0 if none is marked, -1 if unknown."""
