"""Decides when a ledger leaves quarantine. Pure: garbage collection acts on the decisions.

A quarantined ledger is deleted once its time has passed. If a disk is almost full, the oldest ones are deleted earlier,
until their bytes cover the excess, but none before the minimum time; the same applies above the maximum number of
ledgers. An undeleted ledger becomes an ordinary one again once the metadata names it, or once the time set by the
administrator has passed.
"""

from collections.abc import Sequence, Set

from quire_bookie.model import LedgerId
from quire_bookie.settings.collection import QuarantineSettings
from quire_bookie.storage.ledger_quarantine import QuarantinedLedger


def due(
    known: Sequence[QuarantinedLedger],
    clock_ms: int,
    settings: QuarantineSettings,
    *,
    excess_bytes: int = 0,
    excess_ledgers: int = 0,
) -> list[LedgerId]:
    """Return the quarantined ledgers to delete now, oldest first. `excess_bytes`: the bytes to free."""
    found: list[LedgerId] = []
    for one in sorted(known, key=lambda one: (one.since_clock_ms, one.ledger)):
        age_ms = clock_ms - one.since_clock_ms
        if one.is_undeleted or age_ms < settings.keep_min_ms:
            continue
        if age_ms < settings.keep_ms and excess_bytes <= 0 and excess_ledgers <= 0:
            continue
        excess_bytes -= one.size_bytes
        excess_ledgers -= 1
        found.append(one.ledger)
    return found


def released(known: Sequence[QuarantinedLedger], clock_ms: int, missing: Set[LedgerId]) -> list[LedgerId]:
    """Return ledgers that are ordinary again: the metadata names them, or the time of their undeletion has passed."""
    return [
        one.ledger
        for one in known
        if one.ledger not in missing
        or (one.is_undeleted and one.lasts_ms > 0 and clock_ms - one.since_clock_ms >= one.lasts_ms)
    ]
