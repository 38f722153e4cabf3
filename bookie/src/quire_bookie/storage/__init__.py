"""Stores entries and ledger states: write cache, entry logs, block index, read cache.

`LedgerStorage` is the facade. `index_rocksdb.RocksIndexStore` is imported from its own module, so that RocksDB is
loaded only where it is used.
"""

from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage.flush_worker import Marks
from quire_bookie.storage.ledger_storage import LedgerStorage
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.stats import StorageStats

__all__ = ["LedgerInfo", "LedgerStorage", "Marks", "StorageSettings", "StorageStats"]
