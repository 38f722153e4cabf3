"""Finds the limbo bounds of a bookie that lost data: the largest ids of the ledgers that exist when it starts.

Ledgers created later are created after the loss, so none of their entries can be lost. Ids are allocated from two
ranges, each with its own bound. The bounds must be read before the bookie listens or registers; without the metadata
it must not start.
"""

from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import LedgerId
from quire_bookie.storage.ledgers.limbo import LONG_IDS_START


async def existing_bounds(metadata: MetadataStore) -> list[LedgerId]:
    """Return the largest existing id of each range, at one revision. MetadataUnavailableError."""
    short = long = LedgerId(-1)
    async for page in LedgerNodes(metadata).ids():
        for ledger in page:
            if ledger < LONG_IDS_START:
                short = max(short, ledger)
            else:
                long = max(long, ledger)
    return [bound for bound in (short, long) if bound >= 0]
