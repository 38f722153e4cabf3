"""Names the fields of a slow request for entries, for the log of slow operations."""

from collections.abc import Mapping

from quire_bookie.env.slow_log import Value
from quire_bookie.server.requests.connections import Connection


def slow_fields(
    connection: Connection, ledger: int, first: int, entries: int, size_bytes: int, parts: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the fields. `first`: the id of the first entry; `parts`: those of the duration, and others."""
    return {
        "client": connection.client,
        "ledger": ledger,
        "first": first,
        "entries": entries,
        "bytes": size_bytes,
        **parts,
        "unsent_bytes": connection.unsent_bytes(),
    }
