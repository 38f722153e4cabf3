"""The epoch of the metadata as an operator raises it, without the review that `quire metadata raise-epoch` begins."""

from quire_bookie.metadata.epoch import EPOCH_PATH, encode_epoch, next_epoch, read_epoch_node
from quire_bookie.metadata.store import MetadataStore


async def raise_epoch(store: MetadataStore, now_ms: int) -> int:
    """Write an epoch above the present one, and return it. BadVersionError: another raised it at the same time."""
    found = await read_epoch_node(store)
    epoch = next_epoch(found.value, now_ms=now_ms)
    await store.put(EPOCH_PATH, encode_epoch(epoch), expected=found.version)
    return epoch
