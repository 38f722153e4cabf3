"""Counters of auto-recovery since its process began. Plain numbers; readers render them."""

from dataclasses import dataclass


@dataclass(slots=True)
class RecoveryStats:
    """Of the workers first, then of the auditor."""

    ledgers_repaired: int = 0
    replicas_replaced: int = 0
    """Positions of fragments that name another bookie now."""
    ledgers_raised: int = 0
    """Closed ledgers that got the copies which they lacked since they were created."""
    replicas_restored: int = 0
    """Positions of fragments that were completed where they are."""
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_read_back: int = 0
    """Of copies that a drained bookie's replicas were moved to."""
    ledgers_recovered: int = 0
    """Open ledgers that were taken over from a writer and closed."""
    limbo_ended: int = 0
    repairs_failed: int = 0
    """Attempts that left a ledger as it was, or not wholly repaired."""
    unrecoverable_noted: int = 0
    elections_won: int = 0
    searches: int = 0
    """For lost bookies, ended; the first ends the start of an auditor."""
    audits: int = 0
    marks_made: int = 0
    checks: int = 0
    """Of all ledgers, ended."""
    ledgers_checked: int = 0
    replicas_unknown: int = 0
    """Replicas that a check could say nothing about."""
    ledgers_without_copy: int = 0
    """With an entry of which no replica is whole, when all ledgers were checked last; like the next two."""
    ledgers_below_ack_quorum: int = 0
    ledgers_below_write_quorum: int = 0
    ledgers_below_configured_copies: int = 0
    """Created while too few bookies were writable, and not raised yet, when that was looked at last."""
    narrow_checks: int = 0
    """Looks for such ledgers, ended."""
    placement_checks: int = 0
    ledgers_misplaced: int = 0
    """That break the rules of racks and zones, when that was looked at last."""
    replicas_relocated: int = 0
    """Moved to satisfy them."""
    ledgers_unreadable: int = 0
    """Ledger nodes whose value is none that we know."""
    drains: int = 0
    """Wishes for bookies to be emptied, when the auditor last looked."""
    drain_ledgers_left: int = 0
    drain_bytes_left: int = 0
    """Of all drains together, then; as far as the metadata of closed ledgers says."""
    under_replicated: int = 0
    """Marked ledgers, when they were last counted."""
    under_replicated_oldest_ms: int = 0
    """Wall clock of the oldest mark then; 0: none."""
    under_replicated_oldest_s: int = 0
    """Its age then."""
    under_replicated_eta_s: int = 0
    """Seconds until none is marked, at the rate of the last minutes; 0: none is, -1: it cannot be told."""
