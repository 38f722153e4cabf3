"""What can go wrong with a managed ledger. Each class says whether a retry helps.

Each class is also one of the broker's errors, so that the broker's one table gives it the protocol's code.

BrokerError
|- ManagedLedgerError
   |- ManagedLedgerMissingError      no such managed ledger, and none was to be created
   |- ManagedLedgerFencedError       another owner writes it now; this handle is finished, open it elsewhere
   |- ManagedLedgerTerminatedError   nothing is appended to it any more; no retry
   |- ManagedLedgerClosedError       this handle was closed or its ledger deleted; open it again
   |- LedgerSwitchError              no ledger to append to could be made in time; a retry helps
   |- CursorMissingError             no such cursor
   |- CursorStateError               the persisted state cannot be read now; a retry may help
   |- InvalidPositionError           an acknowledgment beyond what was ever confirmed
"""

from quire_broker.errors import (
    BrokerError,
    NotAllowedError,
    PersistenceError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    TopicTerminatedError,
)


class ManagedLedgerError(BrokerError):
    """Something about a managed ledger or one of its cursors."""


class ManagedLedgerMissingError(ManagedLedgerError, TopicNotFoundError):
    """There is no such managed ledger."""


class ManagedLedgerFencedError(ManagedLedgerError, ServiceNotReadyError):
    """Another owner took it over. Nothing is acknowledged through this handle any more."""


class ManagedLedgerTerminatedError(ManagedLedgerError, TopicTerminatedError):
    """It was terminated: reads go on, appends never."""


class ManagedLedgerClosedError(ManagedLedgerError, ServiceNotReadyError):
    """The handle was closed. What was pending may or may not be stored."""


class LedgerSwitchError(ManagedLedgerError, PersistenceError):
    """The ledger failed and its successor could not be made in time. What was pending may be stored; retry helps."""


class CursorMissingError(ManagedLedgerError, SubscriptionNotFoundError):
    """There is no such cursor."""


class CursorStateError(ManagedLedgerError, PersistenceError):
    """The cursor's state exists but cannot be read. Refused, because any guess acks or redelivers at random."""


class InvalidPositionError(ManagedLedgerError, NotAllowedError):
    """A position beyond the last confirmed entry."""
