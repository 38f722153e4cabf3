"""Describes a ledger's metadata in plain values, for users and tools. Pure; never includes the password."""

from typing import Any

from quire_bookie.model import LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.wanted_copies import wanted_copies


def describe(ledger: LedgerId, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return a JSON object. `lastEntry`, `entries` and `length` are null while the ledger is not closed.

    `wantedCopies` is above `writeQuorum` for a ledger that has fewer copies than configured.
    """
    closed = metadata.state is LedgerState.CLOSED
    return {
        "ledgerId": ledger,
        "state": metadata.state.name,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "wantedCopies": wanted_copies(metadata),
        "digestType": metadata.digest_type.name,
        "lastEntry": metadata.last_entry if closed else None,
        "entries": metadata.last_entry + 1 if closed else None,
        "length": metadata.length if closed else None,
        "segments": [
            {"firstEntry": segment.first_entry, "ensemble": list(segment.ensemble)} for segment in metadata.segments
        ],
        "custom": {key: value.decode(errors="replace") for key, value in metadata.custom.items()},
        "formatVersion": metadata.format_version,
    }
