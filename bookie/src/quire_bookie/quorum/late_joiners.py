"""Which bookies lack confirmed entries, or may, because a writer died before it had sent them. Pure.

A writer that replaces a bookie changes the metadata first and sends what the new bookie has to have afterwards. Dead in
between, it leaves entries that are confirmed by the others, and that no recovery sends again: those up to the LAC. A
first segment that was changed before anything was confirmed does not tell: there only what the bookies say does.
"""

from collections.abc import Mapping

from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set


def newcomers(metadata: LedgerMetadata, lac: EntryId) -> list[BookieId]:
    """Bookies that the last segment names and the one before does not, when entries up to `lac` belong to it; sorted.

    All of the last segment where it names nobody else: somebody took its own place again, and it is not written who.
    They are suspects: most have everything. Whoever looks after replicas finds out.
    """
    last = metadata.segments[-1]
    if len(metadata.segments) < 2 or lac < last.first_entry:
        return []
    return sorted(set(last.ensemble) - set(metadata.segments[-2].ensemble) or last.ensemble)


def behind(metadata: LedgerMetadata, lac: EntryId, last_held: Mapping[BookieId, EntryId]) -> list[BookieId]:
    """Fenced bookies of the last segment whose last entry lies before the last one up to `lac` that they must hold."""
    size, first = metadata.ensemble_size, metadata.segments[-1].first_entry
    found: set[BookieId] = set()
    for entry in range(max(first, lac - size + 1), lac + 1):
        for position in write_set(EntryId(entry), size, metadata.write_quorum):
            bookie = metadata.segments[-1].ensemble[position]
            if last_held.get(bookie, entry) < entry:
                found.add(bookie)
    return sorted(found)
