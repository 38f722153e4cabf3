"""Puts new replicas into a ledger's metadata by compare-and-set, in place of those that are gone.

An update applies only to exactly the fragment that was copied, of exactly the ledger that it was copied from, and only
while the fragment still names the replaced bookies. Any other state wins: the copy is then void and costs nothing but
space, which garbage collection frees. `LedgerNodes` reads an unknown outcome back.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import Enum

from quire_bookie.errors import BadVersionError, NoSuchLedgerError
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.wanted_copies import with_more_copies
from quire_bookie.recovery.fragments import Fragment, closed_fragments, same_instance

_ATTEMPTS_MAX = 10


class EnsembleUpdate(Enum):
    """The outcome of an update."""

    DONE = "the new replicas are named"
    VOID = "the fragment has changed: check again"
    GONE = "the ledger was deleted, or its id belongs to another ledger now"


def with_replaced(
    metadata: LedgerMetadata, fragment: Fragment, replacements: Mapping[int, BookieId]
) -> LedgerMetadata | None:
    """Return the metadata with bookies replaced by position. Pure.

    None if the metadata have no such fragment, or if they would then name a bookie twice. New bookies are never members
    already: each would count as two copies.
    """
    if fragment not in closed_fragments(metadata):
        return None
    ensemble = list(fragment.ensemble)
    assert replacements and all(0 <= position < len(ensemble) for position in replacements)
    for position, bookie in replacements.items():
        ensemble[position] = bookie
    if len(set(ensemble)) != len(ensemble):
        return None
    changed = Segment(fragment.first, tuple(ensemble))
    segments = tuple(changed if one.first_entry == fragment.first else one for one in metadata.segments)
    return replace(metadata, segments=segments)


async def update_ensemble(
    nodes: LedgerNodes,
    ledger: LedgerId,
    copied_from: LedgerMetadata,
    fragment: Fragment,
    replacements: Mapping[int, BookieId],
    may_go_on: Callable[[], Awaitable[bool]],
) -> EnsembleUpdate:
    """Name the new replicas. `may_go_on` is called right before each attempt; False makes the outcome VOID.

    Raises MetadataUnavailableError, MetadataUnknownError (the update may have happened), MetadataFormatError.
    """
    for _ in range(_ATTEMPTS_MAX):
        try:
            found = await nodes.read(ledger)
        except NoSuchLedgerError:
            return EnsembleUpdate.GONE
        if not same_instance(found.value, copied_from):
            return EnsembleUpdate.GONE
        wanted = with_replaced(found.value, fragment, replacements)
        if wanted is None or not await may_go_on():
            return EnsembleUpdate.VOID
        try:
            await nodes.update(ledger, wanted, found.version)
        except BadVersionError:
            continue  # the writer, a recovery or another worker changed it: decide again on the new state
        return EnsembleUpdate.DONE
    return EnsembleUpdate.VOID


def with_empty_replaced(metadata: LedgerMetadata, replacements: Mapping[int, BookieId]) -> LedgerMetadata | None:
    """Return the metadata with other bookies in the empty last segment; None if it may hold an entry. Pure."""
    last = metadata.segments[-1]
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry >= last.first_entry:
        return None
    ensemble = [replacements.get(position, bookie) for position, bookie in enumerate(last.ensemble)]
    if len(set(ensemble)) != len(ensemble):
        return None
    return replace(metadata, segments=(*metadata.segments[:-1], Segment(last.first_entry, tuple(ensemble))))


async def update_empty_segment(
    nodes: LedgerNodes, ledger: LedgerId, looked_at: LedgerMetadata, replacements: Mapping[int, BookieId]
) -> EnsembleUpdate:
    """Name other bookies for a last segment without entries. Raises as `update_ensemble`."""
    try:
        found = await nodes.read(ledger)
        if not same_instance(found.value, looked_at):
            return EnsembleUpdate.GONE
        wanted = with_empty_replaced(found.value, replacements)
        if wanted is None or found.value.segments != looked_at.segments:
            return EnsembleUpdate.VOID
        await nodes.update(ledger, wanted, found.version)
    except NoSuchLedgerError:
        return EnsembleUpdate.GONE
    except BadVersionError:
        return EnsembleUpdate.VOID
    return EnsembleUpdate.DONE


async def update_copies(
    nodes: LedgerNodes,
    ledger: LedgerId,
    copied_from: LedgerMetadata,
    added: Mapping[EntryId, tuple[BookieId, ...]],
    may_go_on: Callable[[], Awaitable[bool]],
) -> EnsembleUpdate:
    """Raise a closed ledger to more copies, which the new bookies of each segment hold already.

    Applies only to exactly the metadata that were copied from. `may_go_on` and errors as for `update_ensemble`.
    """
    try:
        found = await nodes.read(ledger)
        if not same_instance(found.value, copied_from):
            return EnsembleUpdate.GONE
        wanted = with_more_copies(found.value, added)
        is_same = (found.value.segments, found.value.last_entry) == (copied_from.segments, copied_from.last_entry)
        if wanted is None or not is_same or not await may_go_on():
            return EnsembleUpdate.VOID
        await nodes.update(ledger, wanted, found.version)
    except NoSuchLedgerError:
        return EnsembleUpdate.GONE
    except BadVersionError:
        return EnsembleUpdate.VOID
    return EnsembleUpdate.DONE
