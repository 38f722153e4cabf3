"""Closes a ledger by compare-and-set. Pure functions interpret a lost one.

A writer closes OPEN -> CLOSED at its last confirmed entry; a recovery closes IN_RECOVERY -> CLOSED. If several clients
try at once, the metadata store decides, and the losers read the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from quire_bookie.errors import BadVersionError, LedgerClosedError, LedgerError, LedgerFencedError
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata, LedgerState, Segment

_ATTEMPTS_MAX = 10


class AfterConflict(Enum):
    """The consequence for a close if another client changed the node."""

    CLOSED_ALREADY = "the ledger is closed with an acceptable result"
    TRY_AGAIN = "an unrelated change: close on top of it"
    LOST_TO_RECOVERY = "a recovery took the ledger over"
    CLOSED_OTHERWISE = "closed at another entry"
    START_OVER = "the last segment has changed"


def writer_conflict(
    ours: LedgerMetadata,
    theirs: LedgerMetadata,
    last: EntryId,
    length: int,
    unsettled: LedgerMetadata | None = None,
) -> AfterConflict:
    """Interpret a conflict for a writer that closes at `last` with `length`.

    `unsettled`: metadata of its own ensemble change that may have been stored; they cover the confirmed entries too.
    """
    if theirs.state is LedgerState.CLOSED:
        same = theirs.last_entry == last and theirs.length == length
        return AfterConflict.CLOSED_ALREADY if same else AfterConflict.CLOSED_OTHERWISE
    if theirs.state is LedgerState.IN_RECOVERY:
        return AfterConflict.LOST_TO_RECOVERY
    expected = {metadata.segments[-1] for metadata in (ours, unsettled) if metadata is not None}
    return AfterConflict.TRY_AGAIN if theirs.segments[-1] in expected else AfterConflict.START_OVER


def recovery_conflict(ours: LedgerMetadata, theirs: LedgerMetadata, last: EntryId, length: int) -> AfterConflict:
    """Interpret a conflict for a recovery, which accepts every close, as other recoveries follow the same rules."""
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
    transact: Transact | None = None,
) -> Versioned[LedgerMetadata]:
    """Write CLOSED with `last` and `length` over the metadata `seen`. Return the resulting metadata.

    `tail`: segments that replace the last one, as far as they begin within the ledger. `transact`: see `LedgerNodes`.

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
            return await nodes.update(ledger, closed, seen.version, transact)
        except BadVersionError:
            found = await nodes.read(ledger)
        outcome = conflict(seen.value, found.value, last, length)
        if outcome is AfterConflict.CLOSED_ALREADY:
            return found
        if outcome is not AfterConflict.TRY_AGAIN:
            raise _conflict_error(ledger, outcome, found.value)
        seen = found
    raise BadVersionError(f"ledger {ledger}: its metadata changed {_ATTEMPTS_MAX} times during the close")


def _conflict_error(ledger: LedgerId, outcome: AfterConflict, found: LedgerMetadata) -> LedgerError | BadVersionError:
    if outcome is AfterConflict.LOST_TO_RECOVERY:
        return LedgerFencedError(f"ledger {ledger} is being recovered by another client")
    if outcome is AfterConflict.CLOSED_OTHERWISE:
        return LedgerClosedError(f"ledger {ledger} was closed by another client at entry {found.last_entry}")
    return BadVersionError(f"ledger {ledger}: its last segment was replaced by another client")
