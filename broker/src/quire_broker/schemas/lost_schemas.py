"""Finds schemas whose ledgers no bookie holds, and removes them, while a restore of the metadata is under review."""

from collections.abc import Collection, Mapping, Sequence

from quire_bookie.metadata import layout
from quire_bookie.metadata.store import Delete, MetadataStore
from quire_bookie.model import LedgerId
from quire_broker.schemas.stored import ROOT, Location, decode_locator, node_path


async def absent_schemas(store: MetadataStore, held: Collection[LedgerId]) -> dict[str, list[Location]]:
    """Return the versions that cannot be read, by `tenant/namespace/topic`. MetadataFormatError, MetadataError."""
    found: dict[str, list[Location]] = {}
    async for page in store.scan(f"{ROOT}/"):
        for node in page:
            lost = [one for one in decode_locator(node.key, node.value) if LedgerId(one.ledger_id) not in held]
            if lost:
                found[node.key.removeprefix(f"{ROOT}/")] = lost
    return found


async def forget_schemas(store: MetadataStore, absent: Mapping[str, Sequence[Location]]) -> None:
    """Remove all schemas of these topics: the next producer registers its schema as the first version."""
    for identity, lost in absent.items():
        for one in lost:  # the node comes last: until then a repetition finds the same versions
            await store.transact([], [Delete(layout.ledger_path(LedgerId(one.ledger_id)))])
        await store.transact([], [Delete(node_path(identity))])
