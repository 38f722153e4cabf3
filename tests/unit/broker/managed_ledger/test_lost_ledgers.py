"""Ledgers that no bookie holds are found by topic, and forgotten without touching what a bucket has."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from quire_broker.managed_ledger.cursors.cursor_state import CursorNode, CursorState, StateBounds, encode_node
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.lost_ledgers import Absent, Fate, LostLedgersError, absent_ledgers, forget
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.managed_ledger.position import Position

TOPIC, OTHER = "public/default/persistent/t", "public/default/persistent/t-2"
UUID = "12345678-1234-5678-1234-567812345678"
BUCKET = OffloadContext(UUID, "aws-s3", complete=True, offloaded_ms=5)
ATTEMPT = OffloadContext(UUID, "aws-s3")
RECORDS = (
    LedgerRecord(1, 10, 100, 5, offload=BUCKET),
    LedgerRecord(2, 10, 100, 5, offload=ATTEMPT),
    LedgerRecord(3, 10, 100, 5),
    LedgerRecord(4, 0, 0, 5),
    LedgerRecord(5, 10, 100, 5),
    LedgerRecord(6),
)
HELD = {LedgerId(5)}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalMetadataStore]:
    """A topic with a ledger of each kind, one without, and a cursor with a ledger."""
    found = await LocalMetadataStore.open(str(tmp_path))
    await found.put(node_path(TOPIC), encode_list(LedgerListNode(RECORDS, {"a": "b"})))
    await found.put(node_path(OTHER), encode_list(LedgerListNode((LedgerRecord(5, 1, 1, 5),))))
    for name, ledger in (("moved", 7), ("kept", -1), ("deleted", 8)):
        node = CursorNode(ledger, CursorState(Position(1, 3)))
        await found.put(f"{node_path(TOPIC)}/{name}", encode_node(node, StateBounds(1, 1, 1000)))
    for ledger in (1, 2, 3, 5, 6, 7):
        metadata = LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (BookieId("b"),)),))
        await LedgerNodes(found).create(LedgerId(ledger), metadata)
    yield found
    await found.close()


async def ids(store: LocalMetadataStore) -> list[int]:
    return [ledger async for page in LedgerNodes(store).ids() for ledger in page]


async def records(store: LocalMetadataStore) -> LedgerListNode:
    stored = await store.get(node_path(TOPIC))
    assert stored is not None
    return decode_list(stored.value)


async def test_each_ledger_without_a_holder_is_reported_with_what_remains_of_it(store: LocalMetadataStore) -> None:
    assert await absent_ledgers(store, HELD) == [
        Absent(TOPIC, LedgerId(1), Fate.IN_BUCKET, 10),
        Absent(TOPIC, LedgerId(2), Fate.ATTEMPT, 10),
        Absent(TOPIC, LedgerId(3), Fate.LOST, 10),
        Absent(TOPIC, LedgerId(6), Fate.LOST, None),
        Absent(TOPIC, LedgerId(7), Fate.CURSOR, cursor="moved"),
    ]


async def test_what_is_lost_leaves_the_list_and_the_rest_stays(store: LocalMetadataStore) -> None:
    await forget(store, await absent_ledgers(store, HELD))
    node = await records(store)
    assert [record.ledger_id for record in node.ledgers] == [1, 2, 4, 5]
    assert node.ledgers[0].offload is not None and node.ledgers[0].offload.bookies_deleted
    assert node.ledgers[1:] == (RECORDS[1], RECORDS[3], RECORDS[4]) and node.properties == {"a": "b"}
    assert await ids(store) == [2, 5]
    assert {one.fate for one in await absent_ledgers(store, HELD)} == {Fate.IN_BUCKET, Fate.ATTEMPT}


async def test_a_repetition_finishes_what_was_interrupted(store: LocalMetadataStore) -> None:
    absent = await absent_ledgers(store, HELD)
    await LedgerNodes(store).delete(LedgerId(3))
    await forget(store, absent)
    changed = await store.get(node_path(TOPIC))
    await forget(store, absent)
    again = await store.get(node_path(TOPIC))
    assert changed is not None and again is not None and again.value == changed.value


async def test_a_list_that_changes_meanwhile_is_an_error_that_names_it(
    store: LocalMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = await absent_ledgers(store, HELD)
    before = await records(store)
    get = store.get

    async def get_and_write(key: str) -> object:
        found = await get(key)
        await store.put(node_path(TOPIC), encode_list(before))
        return found

    monkeypatch.setattr(store, "get", get_and_write)
    with pytest.raises(LostLedgersError, match=f"the list of {TOPIC} was changed meanwhile"):
        await forget(store, absent)
