"""Computes the wanted copies of each entry of a ledger, and the metadata that raise a ledger to them. Pure.

While fewer bookies are writable than the configured write quorum, a ledger is created on the writable ones: it is
*narrow*. Its custom metadata then contain the configured write quorum under `WANTED_WRITE_QUORUM`; stock clients keep
custom metadata unchanged. A narrow ledger is never striped (E = Qw): every bookie of an ensemble has all its entries.
It is therefore safe to raise E and Qw of a closed one together: the new bookies are appended to each ensemble, so that
a reader with the old metadata still finds every entry. Java's client follows changes of the ensembles but keeps the E
and Qw with which it opened the ledger, so it continues with the former bookies.
"""

from collections.abc import Mapping
from dataclasses import replace

from quire_bookie.limits import ENSEMBLE_SIZE_MAX
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment

WANTED_WRITE_QUORUM = "quire/wanted-write-quorum"
"""Key of the custom metadata. Its value is a decimal number in ASCII."""
_COMPONENTS = (b"managed-ledger", b"compacted-topic", b"schema")
"""The `component` of the ledgers that a broker creates."""


def narrowed(ensemble_size: int, write_quorum: int, ack_quorum: int, writable: int) -> tuple[int, int]:
    """Return ensemble size and write quorum for a new ledger if only `writable` bookies are writable; at least Qa."""
    size = min(ensemble_size, max(ack_quorum, writable))
    copies = min(write_quorum, size)
    assert copies <= size <= ensemble_size and copies <= write_quorum
    return size, copies


def wanted_mark(write_quorum: int) -> dict[str, bytes]:
    """Return the custom metadata of a ledger that has fewer copies than `write_quorum`."""
    return {WANTED_WRITE_QUORUM: b"%d" % write_quorum}


def wanted_copies(metadata: LedgerMetadata, unmarked: int = 0) -> int:
    """Return how many copies each entry must have: at least Qw, and more for a narrow ledger.

    `unmarked`: the wanted copies of a broker's ledger whose metadata do not contain them, because an older version
    created it; 0: the copies that it has.
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
    """Return how many copies of each entry a narrow ledger lacks; 0 if it is not narrow."""
    return wanted_copies(metadata, unmarked) - metadata.write_quorum


def with_more_copies(
    metadata: LedgerMetadata, additions: Mapping[EntryId, tuple[BookieId, ...]]
) -> LedgerMetadata | None:
    """Return the metadata of a closed ledger with bookies appended to each ensemble, and E and Qw raised accordingly.

    `additions`: by the first entry of a segment, the same number for each segment. Returns None if the ledger is not
    closed, is striped, has other segments, or would contain a bookie twice in an ensemble.
    """
    counts = {len(bookies) for bookies in additions.values()}
    if (
        metadata.state is not LedgerState.CLOSED
        or metadata.ensemble_size != metadata.write_quorum
        or {segment.first_entry for segment in metadata.segments} != set(additions)
        or len(counts) != 1
    ):
        return None
    segments = tuple(
        Segment(segment.first_entry, (*segment.ensemble, *additions[segment.first_entry]))
        for segment in metadata.segments
    )
    if any(len(set(segment.ensemble)) != len(segment.ensemble) for segment in segments):
        return None
    size = metadata.ensemble_size + counts.pop()
    assert size > metadata.ensemble_size and all(len(segment.ensemble) == size for segment in segments)
    return replace(metadata, ensemble_size=size, write_quorum=size, segments=segments)
