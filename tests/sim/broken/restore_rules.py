"""Broken variants: rules of a restore of the metadata, each removed."""

from typing import Any

from quire_bookie.metadata.store import MetadataStore
from quire_bookie.server.upkeep import collection_doubts
from tests.sim.broken.variant import Variant, replaced


def _without_the_hold() -> tuple[Any, ...]:
    """Neither the hold nor the restore itself stops garbage collection."""

    async def broken(store: MetadataStore) -> None:
        return None

    return (
        replaced(collection_doubts, "read_collection_hold", broken),
        replaced(collection_doubts, "read_restoration", broken),
    )


RESTORE_RULES = (Variant("restore: no hold on garbage collection", "restore", 0, _without_the_hold),)
