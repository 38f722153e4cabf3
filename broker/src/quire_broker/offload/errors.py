"""What can go wrong with offloaded ledgers, beyond the place that keeps them (`quire_bookie.places.errors`).

BrokerError
|- OffloadError             this ledger cannot be offloaded, or not so; the text says what to change
   |- SegmentMissingError   an object of the segment is not there; no retry; the bookies may have the ledger
   |- SegmentDamagedError   an object is not what its ledger or index says; never data; no retry
"""

from quire_broker.errors import BrokerError


class OffloadError(BrokerError):
    """A ledger is not offloaded. No retry before what the text says was changed."""


class SegmentMissingError(OffloadError):
    """An object of an offloaded ledger is gone. Somebody deleted it, or it never came to be."""


class SegmentDamagedError(OffloadError):
    """An object of an offloaded ledger does not hold what it should."""
