"""Where a ledger's entries are by now: its writer and auto-recovery replace bookies under whoever reads it.

Reads the metadata, and only for somebody whose read failed; changes nothing.
"""

from dataclasses import replace

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.errors import LedgerError, MetadataError
from quire_bookie.model import LedgerMetadata


async def find_moved(handle: LedgerHandle, known: LedgerMetadata) -> LedgerMetadata | None:
    """`known` with the segments that are stored by now; None when they are the same, or cannot be read."""
    try:
        found = (await handle.nodes.read(handle.ledger)).value
    except (MetadataError, LedgerError):
        return None  # the error of the read that failed says more
    if found.c_token != known.c_token or found.segments == known.segments:
        return None
    return replace(known, segments=found.segments)
