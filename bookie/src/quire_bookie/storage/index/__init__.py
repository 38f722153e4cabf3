"""The index of entries: the store on RocksDB, its numbered commits, and checks of RocksDB's files."""
