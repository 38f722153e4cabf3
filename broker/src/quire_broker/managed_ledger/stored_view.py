"""Reads a managed ledger from the metadata store without opening it.

The ledger that is (or may be) written counts as empty: only its writer and the bookies know its entries.
"""

from collections.abc import Mapping
from dataclasses import field
from urllib.parse import unquote_plus

from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.store import MetadataStore
from quire_broker.managed_ledger.cursors.registry import BROKER_CURSORS
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import decode_list


@dataclass(frozen=True, slots=True)
class StoredView:
    """Facts about a managed ledger that are known without opening it."""

    entries: int = 0
    """Number of entries in closed ledgers."""
    size_bytes: int = 0
    cursors: tuple[str, ...] = ()
    """Names of the durable cursors of subscribers."""
    properties: Mapping[str, str] = field(default_factory=dict)


async def stored_view(store: MetadataStore, name: str) -> StoredView | None:
    """Return the view; None if there is no such managed ledger. MetadataError."""
    path = node_path(name)
    node = await store.get(path)
    if node is None:
        return None
    stored = decode_list(node.value)
    ledgers = stored.ledgers
    cursors = {unquote_plus(encoded) for encoded in await store.children(path)} - BROKER_CURSORS
    return StoredView(
        sum(record.entries for record in ledgers),
        sum(record.size_bytes for record in ledgers),
        tuple(sorted(cursors)),
        stored.properties,
    )
