"""The index of entries: RocksDB, its commits, and how lookups go through several stores."""
