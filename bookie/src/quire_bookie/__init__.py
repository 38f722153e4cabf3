"""Quire's ledger store: bookies, the quorum client and the metadata they share."""

__version__ = "0.1.0"
