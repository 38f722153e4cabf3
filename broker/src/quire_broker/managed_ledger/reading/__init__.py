"""The read side: entries from the cache, the open ledger, closed ledgers and object storage."""
