"""Managed ledgers: each topic is a list of ledgers with cursors. Callers start at `ManagedLedgerFactory`."""

from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerState
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position, StoredEntry
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "Cursor",
    "ManagedLedger",
    "ManagedLedgerFactory",
    "ManagedLedgerSettings",
    "ManagedLedgerState",
    "Position",
    "StoredEntry",
]
