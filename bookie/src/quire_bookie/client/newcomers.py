"""Which bookies may lack confirmed entries because a writer died right after it had named them. Pure.

A writer that replaces a bookie changes the metadata first and sends what the new bookie has to have afterwards. Dead in
between, it leaves entries that are confirmed by the others, and that no recovery sends again: those up to the LAC.
"""

from quire_bookie.model import BookieId, EntryId, LedgerMetadata


def newcomers(metadata: LedgerMetadata, lac: EntryId) -> list[BookieId]:
    """Bookies that the last segment names and the one before does not, when entries up to `lac` belong to it; sorted.

    All of the last segment where it names nobody else: somebody took its own place again, and it is not written who.
    They are suspects: most have everything. Whoever looks after replicas finds out.
    """
    last = metadata.segments[-1]
    if len(metadata.segments) < 2 or lac < last.first_entry:
        return []
    return sorted(set(last.ensemble) - set(metadata.segments[-2].ensemble) or last.ensemble)
