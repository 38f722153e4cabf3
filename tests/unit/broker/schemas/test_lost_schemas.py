"""Schemas in lost ledgers are found by topic and removed."""

from pathlib import Path

from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from quire_broker.schemas.lost_schemas import absent_schemas, forget_schemas
from quire_broker.schemas.stored import Location, encode_locator, node_path


async def test_schemas_in_lost_ledgers_are_found_and_removed(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(str(tmp_path))
    kept, lost = [Location(0, 5, 0, b"a")], [Location(0, 5, 0, b"b"), Location(1, 6, 0, b"c")]
    await store.put(node_path("public/default/kept"), encode_locator(kept))
    await store.put(node_path("public/default/lost"), encode_locator(lost))
    segment = Segment(EntryId(0), (BookieId("b"),))
    for ledger in (5, 6):
        await LedgerNodes(store).create(LedgerId(ledger), LedgerMetadata(1, 1, 1, (segment,)))
    found = await absent_schemas(store, {LedgerId(5)})
    assert found == {"public/default/lost": lost[1:]}
    await forget_schemas(store, found)
    assert await absent_schemas(store, {LedgerId(5)}) == {}
    assert await store.get(node_path("public/default/kept")) is not None
    assert await store.get(node_path("public/default/lost")) is None
    assert [ledger async for page in LedgerNodes(store).ids() for ledger in page] == [5]
    await store.close()
