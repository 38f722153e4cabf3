"""Decides which ledgers may open with the password in their own metadata instead of the configured one. Pure.

Pulsar's broker refuses such a ledger, so a changed `managedLedgerPassword` makes its topics unreadable. Here earlier
ledgers stay readable; new ledgers get the configured password.
"""

from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.model import LedgerMetadata, LedgerState

AcceptStored: TypeAlias = Callable[[LedgerMetadata], bool]
MANAGED_LEDGER = "pulsar/managed-ledger"
"""Key in a ledger's custom metadata: the managed ledger that it was created for, also for a cursor's ledger."""
CURSOR = "pulsar/cursor"
"""Key in the custom metadata of a cursor's ledger: the name of the cursor."""


def to_read(metadata: LedgerMetadata) -> bool:
    """Accept every ledger: a read shows bookies no password, and the reader already has the metadata that hold it."""
    return True


def to_recover(managed_ledger: str) -> AcceptStored:
    """Accept ledgers of `managed_ledger`.

    A recovery fences, and the id may meanwhile belong to another owner's ledger.
    """

    def accept(metadata: LedgerMetadata) -> bool:
        if metadata.state is LedgerState.CLOSED:
            return True  # nothing is fenced, and metadata rebuilt from the bookies name no owner
        owner = metadata.custom.get(MANAGED_LEDGER)
        if owner is None:
            return not metadata.password  # created before brokers stored the owner
        return owner == managed_ledger.encode()

    return accept
