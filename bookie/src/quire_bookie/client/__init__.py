"""The quorum client: ledgers written, read, recovered and deleted."""
