"""Errors of offloaded ledgers, besides those of the object store (`quire_bookie.object_store.errors`).

BrokerError
|- OffloadError             this ledger or these settings cannot be offloaded; the text has the remedy
   |- SegmentMissingError   an object of the segment is missing; no retry; the bookies may have the ledger
   |- SegmentDamagedError   an object does not match its ledger or index; never data; no retry
"""

from quire_broker.errors import BrokerError


class OffloadError(BrokerError):
    """A ledger is not offloaded. A retry helps only after the remedy in the text."""


class SegmentMissingError(OffloadError):
    """An object of an offloaded ledger is missing: it was deleted, or never created."""


class SegmentDamagedError(OffloadError):
    """An object of an offloaded ledger does not hold the expected content."""
