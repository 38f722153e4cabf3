"""Up to which ledger a bookie that lost something is in limbo: all ledgers that exist when it starts.

A ledger that is created later is created after the loss, so nothing of it can be lost. Ids are given out in two spaces,
each with a bound of its own. Must be read before the bookie listens or registers; without the metadata it must not
start.
"""

from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import LedgerId
from quire_bookie.storage.ledgers.limbo import LONG_IDS_START


async def existing_bounds(metadata: MetadataStore) -> list[LedgerId]:
    """The largest existing id of each space, at one revision; empty without ledgers. MetadataUnavailableError."""
    short = long = LedgerId(-1)
    async for page in LedgerNodes(metadata).ids():
        for ledger in page:
            if ledger < LONG_IDS_START:
                short = max(short, ledger)
            else:
                long = max(long, ledger)
    return [bound for bound in (short, long) if bound >= 0]
