"""Quire's ledger store: bookies, the quorum client and the metadata that they share."""

__version__ = "0.1.0"
