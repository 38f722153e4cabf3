"""Which ledgers open with the password in their own metadata, where the configured one is another. Pure.

A stock broker refuses such a ledger, so that a changed `managedLedgerPassword` makes its topics unreadable. Here the
ledgers of before stay readable; new ones have the configured password.
"""

from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.model import LedgerMetadata, LedgerState

AcceptStored: TypeAlias = Callable[[LedgerMetadata], bool]
MANAGED_LEDGER = "pulsar/managed-ledger"
"""Key of a ledger's custom metadata: the managed ledger that it was made for, of a cursor's ledger too."""


def to_read(metadata: LedgerMetadata) -> bool:
    """Accept every ledger: a read shows bookies no password, and the reader has the metadata with it."""
    return True


def to_recover(managed_ledger: str) -> AcceptStored:
    """Accept what `managed_ledger` owns: a recovery fences, and the id may be that of another owner's ledger by now."""

    def accept(metadata: LedgerMetadata) -> bool:
        if metadata.state is LedgerState.CLOSED:
            return True  # nothing is fenced, and metadata that were rebuilt from the bookies name no owner
        owner = metadata.custom.get(MANAGED_LEDGER)
        if owner is None:
            return not metadata.password  # made before brokers noted the owner
        return owner == managed_ledger.encode()

    return accept
