"""Loads a managed ledger: takes its list over, then its cursors, then what earlier owners left to delete."""

from functools import partial

from quire_bookie.metadata.retrying import retry_unavailable
from quire_broker.managed_ledger.claim import Claim
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.opening import open_list
from quire_broker.managed_ledger.preparation import Preparation
from quire_broker.managed_ledger.reading.entry_cache import EntryCache


async def open_managed_ledger(
    context: ManagedLedgerContext,
    cache: EntryCache,
    prepared: Preparation | None,
    claim: Claim | None,
    *,
    create: bool,
) -> ManagedLedger:
    """Take over and load one managed ledger. Waits while the metadata store is unavailable. Errors of the claim.

    After an error nothing is open; the prepared ledger is the caller's, unless `is_used`.
    """
    wait_s = context.settings.metadata_retry_s
    take = partial(open_list, context, prepared, claim, create=create)
    opened = await retry_unavailable(take, context.backoff(), wait_s)
    ledger, beside = ManagedLedger(context, opened, cache), opened.beside
    ledger.was_read_ahead = prepared is not None and prepared.ahead is not None
    try:
        if ledger.source is not None:
            await retry_unavailable(ledger.source.load, context.backoff(), wait_s)
        await retry_unavailable(lambda: ledger.recover_cursors(beside.cursors), context.backoff(), wait_s)
        for resume in (
            partial(context.deletions.resume, beside.ledger_records),
            partial(context.segments.resume, beside.segment_records),
        ):
            if resume.args != ([],):
                context.background.start(
                    retry_unavailable(resume, context.backoff(), wait_s), f"deletions of {context.name} that were left"
                )
    except BaseException:
        ledger.stop()
        await ledger.release()
        raise
    return ledger
