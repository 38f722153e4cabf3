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


async def set_collection_hold(store: MetadataStore, reason: str) -> None:
    """Stop deletions on all bookies, except a deletion already in progress. A second call replaces the reason."""
    await store.put(HOLD_PATH, reason.encode())


async def release_collection_hold(store: MetadataStore) -> None:
    """Resume garbage collection. Does nothing if the hold is released already."""
    if await store.get(HOLD_PATH) is not None:
        await store.delete(HOLD_PATH)
