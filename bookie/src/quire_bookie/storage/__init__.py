"""Entries at rest: write cache, entry logs, block index, read cache, ledger state."""
