"""Entries at rest: write cache, entry logs, block index, read cache, ledger state.

`LedgerStorage` is the facade; `index_rocksdb.RocksIndexStore` is imported by name where it is wanted, so that nobody
else loads RocksDB.
"""

from quire_bookie.storage.flush_worker import Marks
from quire_bookie.storage.ledger_storage import LedgerStorage
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.settings import StorageSettings, StorageStats

__all__ = ["LedgerInfo", "LedgerStorage", "Marks", "StorageSettings", "StorageStats"]
