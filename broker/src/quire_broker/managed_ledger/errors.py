"""Errors of managed ledgers. Each class says whether a retry helps.

Each class is also one of the broker's errors, so the broker's single table gives it a protocol code.

BrokerError
|- ManagedLedgerError
   |- ManagedLedgerMissingError      no such managed ledger, and it was not to be created
   |- ManagedLedgerFencedError       another owner writes it now; open it at that owner, this handle is finished
   |    `- OutdatedError               not opened, because a node has changed since it was read ahead; open it without
   |- ManagedLedgerTerminatedError   it takes no more appends; a retry does not help
   |- ManagedLedgerClosedError       this handle was closed or its ledger deleted; open it again
   |- LedgerSwitchError              no ledger to append to could be created in time; a retry helps
   |- CursorMissingError             no such cursor
   |- CursorStateError               the stored state cannot be read now; a retry may help
   |- InvalidPositionError           an acknowledgment beyond the last confirmed entry
   |- ShadowLedgerError              an append to, or the end of, a managed ledger that shows the entries of another one
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
    """An error of a managed ledger or one of its cursors."""


class ManagedLedgerMissingError(ManagedLedgerError, TopicNotFoundError):
    """The managed ledger does not exist."""


class ManagedLedgerFencedError(ManagedLedgerError, ServiceNotReadyError):
    """Another owner took the managed ledger over. This handle acknowledges nothing any more."""


class OutdatedError(ManagedLedgerFencedError):
    """A prepared ledger, or a node that was read ahead, is outdated: nothing was opened."""


class ManagedLedgerTerminatedError(ManagedLedgerError, TopicTerminatedError):
    """The managed ledger was terminated: reads continue, appends always fail."""


class ManagedLedgerClosedError(ManagedLedgerError, ServiceNotReadyError):
    """The handle was closed. Pending appends may or may not be stored."""


class LedgerSwitchError(ManagedLedgerError, PersistenceError):
    """The ledger failed and no successor could be created in time. Pending appends may be stored; a retry helps."""


class CursorMissingError(ManagedLedgerError, SubscriptionNotFoundError):
    """The cursor does not exist."""


class CursorStateError(ManagedLedgerError, PersistenceError):
    """The cursor's state exists but cannot be read. It is not guessed: a guess could skip or redeliver any entry."""


class InvalidPositionError(ManagedLedgerError, NotAllowedError):
    """The position is beyond the last confirmed entry."""


class ShadowLedgerError(ManagedLedgerError, NotAllowedError):
    """It shows the entries of another managed ledger: it takes no appends and cannot be ended. Do not retry."""
