"""Where a ledger's entries are by now: its writer and auto-recovery replace bookies under whoever reads it.

Reads the metadata, and only for somebody whose read failed; changes nothing. That the bookies known so far lack an
entry means nothing until the metadata say that they are still the ones: else it is *unknown*, never *no such entry*.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.errors import LedgerError, MetadataError, NoSuchEntryError, QuorumError
from quire_bookie.model import LedgerMetadata

_MOVES_MAX = 5  # under one read


class Followed(NamedTuple):
    """What was read, and by which metadata."""

    entries: list[LedgerEntry]
    metadata: LedgerMetadata


async def read_where_stored(
    handle: LedgerHandle, known: LedgerMetadata, read: Callable[[LedgerMetadata], Awaitable[list[LedgerEntry]]]
) -> Followed:
    """What `read` gives with `known`, or with the segments that are stored by now when it fails. Errors as `read`.

    NoSuchEntryError only with segments that were current; QuorumError where that cannot be found out.
    """
    for _ in range(_MOVES_MAX):
        try:
            return Followed(await read(known), known)
        except LedgerError as error:
            failure = error
            known = await _find_moved(handle, known, error)
    raise QuorumError(f"the replicas moved {_MOVES_MAX} times under one read; the last one: {failure}") from failure


async def _find_moved(handle: LedgerHandle, known: LedgerMetadata, failure: LedgerError) -> LedgerMetadata:
    """`known` with the segments and quorums that are stored by now. Raises `failure` when they are the same."""
    try:
        found = (await handle.nodes.read(handle.ledger)).value
    except LedgerError as deleted:
        raise failure from deleted
    except MetadataError as error:
        if not isinstance(failure, NoSuchEntryError):
            raise failure from error
        raise QuorumError(f"{failure}; whether others hold it by now cannot be found out: {error}") from error
    if found.is_another_than(known) or found.segments == known.segments:
        raise failure
    # A closed ledger may have got further copies: its ensembles are larger then.
    return replace(known, segments=found.segments, ensemble_size=found.ensemble_size, write_quorum=found.write_quorum)
