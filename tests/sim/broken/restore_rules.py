"""Rules of a restore of the metadata, each left out."""

from typing import Any

from quire_bookie.metadata.store import MetadataStore
from quire_bookie.server import garbage_collection
from tests.sim.broken.variant import Variant, replaced


def _without_the_hold() -> tuple[Any, ...]:
    async def broken(store: MetadataStore) -> None:
        return None

    return (replaced(garbage_collection, "read_collection_hold", broken),)


RESTORE_RULES = (Variant("restore: no hold on garbage collection", "restore", 0, _without_the_hold),)
