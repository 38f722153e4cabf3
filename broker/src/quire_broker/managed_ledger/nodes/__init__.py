"""The metadata nodes of a managed ledger: their formats, and compare-and-set updates."""
