"""Creates a ledger that is deleted unless a transaction puts it into use: see `deletion`."""

from collections.abc import Awaitable

from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.ledger_port import Writer


async def unreferenced(context: ManagedLedgerContext, creation: Awaitable[Writer]) -> Writer:
    """Create a ledger and record it as unreferenced. Errors of client and store; then it is deleted."""
    writer = await creation
    recorded = False
    try:
        for operation in context.deletions.record([writer.ledger_id]):
            await context.store.put(operation.key, operation.value)
        recorded = True
    finally:
        if not recorded:
            context.background.start(context.maker.discard(writer), f"discarding ledger {writer.ledger_id}")
    return writer
