"""How many copies of each entry a ledger is meant to have, and what it takes to raise a ledger to them. Pure.

While fewer bookies are writable than the configured write quorum, a ledger is created on those that are: it is
*narrow*. Its custom metadata then say the configured write quorum, under `WANTED_WRITE_QUORUM`. Stock clients keep
custom metadata as they find them. A narrow ledger is never striped (E = Qw): every bookie of an ensemble has all its
entries. That makes it safe to raise E and Qw of a closed one together: the new bookies come behind the others in each
ensemble, so that a reader with the old metadata finds every entry where it looks for it. Java's client follows changes
of the ensembles and keeps the E and Qw with which it opened the ledger: it goes on with the former bookies.
"""

from collections.abc import Mapping
from dataclasses import replace

from quire_bookie.limits import ENSEMBLE_SIZE_MAX
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment

WANTED_WRITE_QUORUM = "quire/wanted-write-quorum"
"""Key of the custom metadata. Its value is a decimal number in ASCII."""
_COMPONENTS = (b"managed-ledger", b"schema")
"""The `component` of the ledgers that a broker creates."""


def narrowed(ensemble_size: int, write_quorum: int, ack_quorum: int, writable: int) -> tuple[int, int]:
    """Ensemble size and write quorum for a new ledger when only `writable` bookies are writable; at least Qa."""
    size = min(ensemble_size, max(ack_quorum, writable))
    return size, min(write_quorum, size)


def wanted_mark(write_quorum: int) -> dict[str, bytes]:
    """The custom metadata of a ledger that has fewer copies than `write_quorum`."""
    return {WANTED_WRITE_QUORUM: b"%d" % write_quorum}


def wanted_copies(metadata: LedgerMetadata, unmarked: int = 0) -> int:
    """How many copies each entry must have: at least Qw, and more for a narrow ledger.

    `unmarked`: the copies wanted of a broker's ledger that does not say how many, because an older version created
    it; 0: as many as it has.
    """
    if metadata.ensemble_size != metadata.write_quorum:
        return metadata.write_quorum
    value = metadata.custom.get(WANTED_WRITE_QUORUM)
    if value is None:
        wanted = unmarked if metadata.custom.get("component") in _COMPONENTS else 0
    else:
        wanted = int(value) if value.isdigit() and len(value) <= 3 else 0
    return max(metadata.write_quorum, min(wanted, ENSEMBLE_SIZE_MAX))


def missing_copies(metadata: LedgerMetadata, unmarked: int = 0) -> int:
    """How many copies of each entry a ledger lacks because it is narrow; 0: it is not."""
    return wanted_copies(metadata, unmarked) - metadata.write_quorum


def with_more_copies(
    metadata: LedgerMetadata, newcomers: Mapping[EntryId, tuple[BookieId, ...]]
) -> LedgerMetadata | None:
    """The metadata of a closed ledger with further bookies at the end of each ensemble, and E and Qw raised by as many.

    `newcomers`: by the first entry of a segment, as many for each segment. None when the ledger is not closed, is
    striped, has other segments, or would name a bookie twice.
    """
    counts = {len(bookies) for bookies in newcomers.values()}
    if (
        metadata.state is not LedgerState.CLOSED
        or metadata.ensemble_size != metadata.write_quorum
        or {segment.first_entry for segment in metadata.segments} != set(newcomers)
        or len(counts) != 1
    ):
        return None
    segments = tuple(
        Segment(segment.first_entry, (*segment.ensemble, *newcomers[segment.first_entry]))
        for segment in metadata.segments
    )
    if any(len(set(segment.ensemble)) != len(segment.ensemble) for segment in segments):
        return None
    size = metadata.ensemble_size + counts.pop()
    return replace(metadata, ensemble_size=size, write_quorum=size, segments=segments)
