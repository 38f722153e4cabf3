"""The compare-and-set that closes a ledger, and what a lost one means. The meaning is decided by pure functions.

A writer closes OPEN -> CLOSED at its last confirmed entry; a recovery IN_RECOVERY -> CLOSED. Several may try at once:
the store decides, and whoever lost reads what won.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from quire_bookie.errors import BadVersionError, LedgerClosedError, LedgerError, LedgerFencedError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.versioned import Versioned
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata, LedgerState, Segment

_ATTEMPTS_MAX = 10


class AfterConflict(Enum):
    """What another writer of the node means for our close."""

    CLOSED_ALREADY = "the node says what we wanted to say, or what we accept"
    TRY_AGAIN = "something else changed: close on top of it"
    LOST_TO_RECOVERY = "a recovery took the ledger over"
    CLOSED_OTHERWISE = "closed at another entry"
    START_OVER = "the segment we worked on is no longer the last one"


def writer_conflict(
    ours: LedgerMetadata,
    theirs: LedgerMetadata,
    last: EntryId,
    length: int,
    unsettled: LedgerMetadata | None = None,
) -> AfterConflict:
    """For a writer that wanted to close at `last` with `length`.

    `unsettled`: an ensemble change of its own that may have been stored; it holds the confirmed entries as well.
    """
    if theirs.state is LedgerState.CLOSED:
        same = theirs.last_entry == last and theirs.length == length
        return AfterConflict.CLOSED_ALREADY if same else AfterConflict.CLOSED_OTHERWISE
    if theirs.state is LedgerState.IN_RECOVERY:
        return AfterConflict.LOST_TO_RECOVERY
    expected = {metadata.segments[-1] for metadata in (ours, unsettled) if metadata is not None}
    return AfterConflict.TRY_AGAIN if theirs.segments[-1] in expected else AfterConflict.START_OVER


def recovery_conflict(ours: LedgerMetadata, theirs: LedgerMetadata, last: EntryId, length: int) -> AfterConflict:
    """For a recovery: it accepts whatever another one closed, since that followed the same rules."""
    if theirs.state is LedgerState.CLOSED:
        return AfterConflict.CLOSED_ALREADY
    return AfterConflict.TRY_AGAIN if theirs.segments[-1] == ours.segments[-1] else AfterConflict.START_OVER


async def close_ledger(
    nodes: LedgerNodes,
    ledger: LedgerId,
    seen: Versioned[LedgerMetadata],
    last: EntryId,
    length: int,
    conflict: Callable[[LedgerMetadata, LedgerMetadata, EntryId, int], AfterConflict],
    tail: Sequence[Segment] = (),
) -> Versioned[LedgerMetadata]:
    """Write CLOSED with `last` and `length` over the metadata `seen`; the metadata that holds afterwards.

    `tail`: these segments instead of the last one, as far as they begin within the ledger.

    LedgerFencedError, LedgerClosedError (at another entry), BadVersionError (start over), NoSuchLedgerError (deleted),
    MetadataUnavailableError, MetadataUnknownError (calling again settles it).
    """
    for _ in range(_ATTEMPTS_MAX):
        segments = seen.value.segments
        if tail:
            kept = [segment for segment in tail[1:] if segment.first_entry <= last]
            segments = (*segments[:-1], tail[0], *kept)
        closed = replace(seen.value, state=LedgerState.CLOSED, last_entry=last, length=length, segments=segments)
        try:
            return await nodes.update(ledger, closed, seen.version)
        except BadVersionError:
            found = await nodes.read(ledger)
        outcome = conflict(seen.value, found.value, last, length)
        if outcome is AfterConflict.CLOSED_ALREADY:
            return found
        if outcome is not AfterConflict.TRY_AGAIN:
            raise _conflict_error(ledger, outcome, found.value)
        seen = found
    raise BadVersionError(f"ledger {ledger}: its metadata changed {_ATTEMPTS_MAX} times while it was to be closed")


def _conflict_error(ledger: LedgerId, outcome: AfterConflict, found: LedgerMetadata) -> LedgerError | BadVersionError:
    if outcome is AfterConflict.LOST_TO_RECOVERY:
        return LedgerFencedError(f"ledger {ledger} is being recovered by another client")
    if outcome is AfterConflict.CLOSED_OTHERWISE:
        return LedgerClosedError(f"ledger {ledger} was closed by another client at entry {found.last_entry}")
    return BadVersionError(f"ledger {ledger}: its last segment was replaced by another client")
