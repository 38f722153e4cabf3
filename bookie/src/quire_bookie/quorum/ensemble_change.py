"""Builds the segment in which other bookies replace lost ones, and interprets a lost compare-and-set on it. Pure.

Why entries may be acknowledged while the change is in progress (BookKeeper's client defers all of them). Let c be the
last confirmed entry when the change is proposed, and s = c + 1 the first entry of the new segment.

1. At that moment the acknowledgements of the lost bookie from s on become void. Each entry confirmed from then on has
   Qa acknowledgements of bookies that keep their positions: they are in the write set of the entry in the old ensemble
   and in the new one. A reader or a recovery finds the quorum under either metadata, whether the compare-and-set took
   effect, is still in progress, or lost.
2. The new bookie counts only when the compare-and-set is known to have taken effect; before that it is sent nothing.
   A recovery that began earlier has changed the state, so that our compare-and-set loses; one that begins later sees
   and fences the new ensemble.
3. Everything below s is confirmed in the old ensemble, so a recovery that starts at s - 1 skips nothing.
4. A recovery considers an entry of the new segment missing when Qw-Qa+1 of its replicas lack it. For a confirmed entry,
   Qa replicas kept their position and hold it, so at most Qw-Qa replicas, including the new bookie, can lack it.
5. The new bookie is sent everything from s on, including entries confirmed meanwhile, because they belong to its
   segment. Their bytes are therefore kept until it has acknowledged them, or until the writer gives it up and marks
   (ledger, bookie).
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment


class AfterLostChange(Enum):
    """The consequence for the change of the metadata found after a lost compare-and-set."""

    TOOK_EFFECT = "an earlier attempt of this writer took effect"
    PROPOSE_AGAIN = "only earlier segments changed: propose the same change on top of them"
    FENCED = "a recovery took the ledger over"
    CLOSED = "another client closed the ledger"
    LOST = "the last segment was changed, which only its writer may do"


def with_replacements(metadata: LedgerMetadata, start: EntryId, replacements: Mapping[int, BookieId]) -> LedgerMetadata:
    """Return `metadata` with the bookies of `replacements` at their positions for the entries from `start` on.

    A segment with the same start as the last one replaces it. A bookie may take its own position again: the separate
    segments then distinguish the entries that it may lack from those that it will have.
    """
    last = metadata.segments[-1]
    assert start >= last.first_entry, "entries before the last segment are settled"
    assert all(0 <= position < len(last.ensemble) for position in replacements)
    ensemble = tuple(replacements.get(position, bookie) for position, bookie in enumerate(last.ensemble))
    # Stored metadata may already name a bookie twice.
    assert len(set(ensemble)) >= len(set(last.ensemble)), "a bookie at two positions counts twice"
    before = metadata.segments[:-1] if last.first_entry == start else metadata.segments
    return replace(metadata, segments=(*before, Segment(start, ensemble)))


def after_lost_change(base: LedgerMetadata, proposed: LedgerMetadata, found: LedgerMetadata) -> AfterLostChange:
    """Interpret a lost compare-and-set. `base`: the metadata that `proposed` changed; `found`: the stored metadata."""
    if found.state is LedgerState.CLOSED:
        return AfterLostChange.CLOSED
    if found.state is LedgerState.IN_RECOVERY:
        return AfterLostChange.FENCED
    if _same_shape(found, proposed):
        return AfterLostChange.TOOK_EFFECT
    return AfterLostChange.PROPOSE_AGAIN if _same_shape(found, base) else AfterLostChange.LOST


def _same_shape(one: LedgerMetadata, other: LedgerMetadata) -> bool:
    """Return whether last segment and starts are equal. Re-replication may have changed bookies of earlier segments."""
    starts = [[segment.first_entry for segment in metadata.segments] for metadata in (one, other)]
    return starts[0] == starts[1] and one.segments[-1] == other.segments[-1]
