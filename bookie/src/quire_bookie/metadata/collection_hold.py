"""The cluster's hold on garbage collection: while its node exists no bookie deletes a ledger. Owns that one node.

Set by whoever changes metadata in bulk, before the first change, and released after the last: a restore, for example.
The value is the reason, for a person.
"""

from quire_bookie.metadata.store import MetadataStore

HOLD_PATH = "/quire/garbage-collection-hold"


async def read_collection_hold(store: MetadataStore) -> str | None:
    """Why nothing may be deleted, linearizable; None when it may."""
    node = await store.get(HOLD_PATH)
    return None if node is None else node.value.decode("utf-8", "replace") or "no reason given"


async def set_collection_hold(store: MetadataStore, reason: str) -> None:
    """No bookie deletes a ledger from here on, but for the one that it may be at. Again replaces the reason."""
    await store.put(HOLD_PATH, reason.encode())


async def release_collection_hold(store: MetadataStore) -> None:
    """Garbage collection goes on. Released already is fine."""
    if await store.get(HOLD_PATH) is not None:
        await store.delete(HOLD_PATH)
