"""Owns the node of the cluster's hold on garbage collection: while it exists no bookie deletes a ledger.

A bulk change of the metadata, for example a restore, sets the hold before its first write and releases it after the
last. The value is the reason, shown to users.
"""

from quire_bookie.metadata.store import MetadataStore

HOLD_PATH = "/quire/garbage-collection-hold"


async def read_collection_hold(store: MetadataStore) -> str | None:
    """Return why nothing may be deleted, or None if deletion is allowed. Linearizable."""
    node = await store.get(HOLD_PATH)
    return None if node is None else node.value.decode("utf-8", "replace") or "no reason given"
