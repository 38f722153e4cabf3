"""Follows replicas that moved: a ledger's writer and auto-recovery replace bookies while it is read.

Reads the metadata only after a failed read; changes nothing. That the known bookies lack an entry is conclusive only if
the current metadata still contain them. Otherwise the result is *unknown*, never *no such entry*.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.errors import LedgerError, MetadataError, NoSuchEntryError, QuorumError
from quire_bookie.model import LedgerMetadata

_MOVES_MAX = 5  # during one read


class Followed(NamedTuple):
    """The entries and the metadata with which they were read."""

    entries: list[LedgerEntry]
    metadata: LedgerMetadata


async def read_where_stored(
    handle: LedgerHandle, known: LedgerMetadata, read: Callable[[LedgerMetadata], Awaitable[list[LedgerEntry]]]
) -> Followed:
    """Return the result of `read` with `known`, or after a failure with the current segments. Errors as `read`.

    NoSuchEntryError only if the segments were current; QuorumError if the metadata cannot be read.
    """
    for _ in range(_MOVES_MAX):
        try:
            return Followed(await read(known), known)
        except LedgerError as error:
            failure = error
            known = await _find_moved(handle, known, error)
    raise QuorumError(f"the replicas moved {_MOVES_MAX} times during one read; last error: {failure}") from failure


async def _find_moved(handle: LedgerHandle, known: LedgerMetadata, failure: LedgerError) -> LedgerMetadata:
    """Return `known` with the current segments and quorums. Raise `failure` if they are unchanged."""
    try:
        found = (await handle.nodes.read(handle.ledger)).value
    except LedgerError as deleted:
        raise failure from deleted
    except MetadataError as error:
        if not isinstance(failure, NoSuchEntryError):
            raise failure from error
        raise QuorumError(f"{failure}; cannot read the metadata to find its current bookies: {error}") from error
    if found.is_another_than(known) or found.segments == known.segments:
        raise failure
    # A closed ledger with additional copies has larger ensembles.
    return replace(known, segments=found.segments, ensemble_size=found.ensemble_size, write_quorum=found.write_quorum)
