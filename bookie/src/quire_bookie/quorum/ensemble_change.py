"""The segment in which other bookies take the places of lost ones, and what a lost compare-and-set on it means. Pure.

Why acknowledging may go on while the change is under way (BookKeeper's own client holds everything back). Let c be the
last confirmed entry when the change is proposed, and s = c + 1 the first entry of the new segment.

1. At that moment what the lost bookie acknowledged from s on becomes void. So whatever is confirmed from then on has Qa
   acknowledgements of bookies that keep their positions: they are in the write set of the entry in the old ensemble
   and in the new one. A reader or a recovery finds the quorum under either metadata; it does not matter whether the
   compare-and-set took effect, is still on its way, or lost.
2. The new bookie counts only once the compare-and-set is known to have taken effect; before that it is sent nothing.
   A recovery that began earlier has changed the state, so that ours loses; one that begins later sees and fences the
   new ensemble.
3. Everything below s is confirmed in the old ensemble, so a recovery that starts at s - 1 passes nothing over.
4. An entry of the new segment is missing for a recovery when Qw-Qa+1 of its replicas say no. Of a confirmed one Qa
   replicas kept their place and hold it: at most Qw-Qa, the new bookie among them, can say no.
5. The new bookie is sent everything from s on, what was confirmed meanwhile included: it belongs to its segment.
   Those bytes are therefore kept until it has answered, or until it is given up and (ledger, bookie) is marked.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment


class AfterLostChange(Enum):
    """What the metadata found after a lost compare-and-set means for the change."""

    TOOK_EFFECT = "an earlier attempt of ours was done after all"
    PROPOSE_AGAIN = "only what lies before our segment changed: propose the same on top of it"
    FENCED = "a recovery took the ledger over"
    CLOSED = "another client closed the ledger"
    LOST = "the segment being written is another one: nobody but its writer may do that"


def with_replacements(metadata: LedgerMetadata, start: EntryId, replacements: Mapping[int, BookieId]) -> LedgerMetadata:
    """`metadata` with the bookies of `replacements` at these positions for the entries from `start` on.

    A segment that would start where the last one does replaces it. A bookie may take its own place again: the segment
    before then keeps what it lacks apart from what it will have.
    """
    last = metadata.segments[-1]
    assert start >= last.first_entry, "entries before the last segment are settled"
    ensemble = tuple(replacements.get(position, bookie) for position, bookie in enumerate(last.ensemble))
    assert len(set(ensemble)) == len(ensemble), "a bookie at two positions counts twice"
    before = metadata.segments[:-1] if last.first_entry == start else metadata.segments
    return replace(metadata, segments=(*before, Segment(start, ensemble)))


def after_lost_change(base: LedgerMetadata, proposed: LedgerMetadata, found: LedgerMetadata) -> AfterLostChange:
    """`base`: what `proposed` was built on; `found`: what is stored now."""
    if found.state is LedgerState.CLOSED:
        return AfterLostChange.CLOSED
    if found.state is LedgerState.IN_RECOVERY:
        return AfterLostChange.FENCED
    if _same_shape(found, proposed):
        return AfterLostChange.TOOK_EFFECT
    return AfterLostChange.PROPOSE_AGAIN if _same_shape(found, base) else AfterLostChange.LOST


def _same_shape(one: LedgerMetadata, other: LedgerMetadata) -> bool:
    """The same last segment behind segments of the same starts, whose bookies re-replication may have changed."""
    starts = [[segment.first_entry for segment in metadata.segments] for metadata in (one, other)]
    return starts[0] == starts[1] and one.segments[-1] == other.segments[-1]
