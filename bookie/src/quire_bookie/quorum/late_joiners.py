"""Finds bookies that lack, or may lack, confirmed entries because a writer died before it had sent them. Pure.

A writer that replaces a bookie changes the metadata first and sends the new bookie its entries afterwards. If it dies
in between, the new bookie lacks entries that the others confirmed, and a recovery does not send those up to the LAC
again. When the first segment was changed before anything was confirmed, the metadata do not show a late joiner; only
the responses of the bookies do.
"""

from collections.abc import Mapping

from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set


def late_joiners(metadata: LedgerMetadata, lac: EntryId) -> list[BookieId]:
    """Return the bookies, sorted, that are in the last segment but not in the one before, if `lac` is in the last one.

    If the ensembles are equal, a bookie took its own position again and the metadata do not say which: returns all
    bookies of the last segment. These are candidates only, and most have every entry; auto-recovery checks them.
    """
    last = metadata.segments[-1]
    if len(metadata.segments) < 2 or lac < last.first_entry:
        return []
    return sorted(set(last.ensemble) - set(metadata.segments[-2].ensemble) or last.ensemble)


def behind(metadata: LedgerMetadata, lac: EntryId, last_held: Mapping[BookieId, EntryId]) -> list[BookieId]:
    """Return the fenced bookies of the last segment that lack the last entry up to `lac` that they must hold."""
    size, first = metadata.ensemble_size, metadata.segments[-1].first_entry
    found: set[BookieId] = set()
    for entry in range(max(first, lac - size + 1), lac + 1):
        for position in write_set(EntryId(entry), size, metadata.write_quorum):
            bookie = metadata.segments[-1].ensemble[position]
            if last_held.get(bookie, entry) < entry:
                found.add(bookie)
    return sorted(found)
