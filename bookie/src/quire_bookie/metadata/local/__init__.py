"""The metadata store of a standalone Quire: SQLite in a folder, used by one process."""
