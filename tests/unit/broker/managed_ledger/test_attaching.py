"""Ledgers adopted after a restore are added back to the list of their topic."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.restoration import RESTORATION, Restoration, RestorationState, encode_restoration
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_broker.managed_ledger.attaching import AttachError, attach
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.position import Position

NAME = "public/default/persistent/t"
OLD = LedgerListNode((LedgerRecord(1, 10, 100, 5), LedgerRecord(3)), {"a": "b"}, Position(9, 9))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalMetadataStore]:
    """A store under review, with a topic whose last ledger was being written at the time of the backup."""
    found = await LocalMetadataStore.open(str(tmp_path))
    review = Restoration("b", "c", RestorationState.REVIEW, 1, 2, 3, False)
    await found.put(RESTORATION, encode_restoration(review))
    await found.put(node_path(NAME), encode_list(OLD))
    for ledger, last in ((3, 4), (7, 0), (5, -1)):
        await add_ledger(found, ledger, LedgerState.CLOSED, last)
    await add_ledger(found, 8, LedgerState.OPEN, -1)
    yield found
    await found.close()


async def add_ledger(store: LocalMetadataStore, ledger: int, state: LedgerState, last: int) -> None:
    segment = Segment(EntryId(0), (BookieId("b"),))
    length = 10 * (last + 1)
    metadata = LedgerMetadata(1, 1, 1, (segment,), state=state, last_entry=EntryId(last), length=length)
    await LedgerNodes(store).create(LedgerId(ledger), metadata)


async def test_ledgers_come_back_in_order_with_their_counts_and_the_rest_stays(store: LocalMetadataStore) -> None:
    node = await attach(store, NAME, [LedgerId(7), LedgerId(5)], 77)
    assert node.ledgers == (
        LedgerRecord(1, 10, 100, 5),
        LedgerRecord(3, 5, 50, 77),
        LedgerRecord(5, 0, 0, 77),
        LedgerRecord(7, 1, 10, 77),
    )
    assert (node.properties, node.terminated) == (OLD.properties, OLD.terminated)
    stored = await store.get(node_path(NAME))
    assert stored is not None and decode_list(stored.value) == node
    assert await attach(store, NAME, [LedgerId(7)], 99) == node
    again = await store.get(node_path(NAME))
    assert again is not None and again.version == stored.version


async def test_a_ledger_that_was_adopted_again_gets_its_present_length(store: LocalMetadataStore) -> None:
    await attach(store, NAME, [LedgerId(7)], 77)
    await LedgerNodes(store).delete(LedgerId(7))
    await add_ledger(store, 7, LedgerState.CLOSED, 9)
    node = await attach(store, NAME, [LedgerId(7)], 99)
    assert node.ledgers[-1] == LedgerRecord(7, 10, 100, 99)


@pytest.mark.parametrize(
    ("ledger", "words"),
    [(8, "is not closed: .*orphans adopt 8"), (9, "is not in the metadata: .*orphans adopt 9")],
)
async def test_only_closed_ledgers_are_attached(store: LocalMetadataStore, ledger: int, words: str) -> None:
    with pytest.raises(AttachError, match=words):
        await attach(store, NAME, [LedgerId(ledger)], 77)
    stored = await store.get(node_path(NAME))
    assert stored is not None and stored.version == 0


async def test_without_a_review_or_a_topic_nothing_is_attached(store: LocalMetadataStore) -> None:
    with pytest.raises(AttachError, match="there is no topic"):
        await attach(store, "public/default/persistent/other", [LedgerId(7)], 77)
    made = await attach(store, "public/default/persistent/other", [LedgerId(7)], 77, create=True)
    assert [record.ledger_id for record in made.ledgers] == [7]
    assert await attach(store, "public/default/persistent/other", [LedgerId(7)], 78, create=True) == made
    writing = Restoration("b", "c", RestorationState.WRITING, 1, 2, 3, False)
    await store.put(RESTORATION, encode_restoration(writing))
    with pytest.raises(AttachError, match="no restore is under review"):
        await attach(store, NAME, [LedgerId(7)], 77)
    await store.delete(RESTORATION)
    with pytest.raises(AttachError, match="no restore is under review"):
        await attach(store, NAME, [LedgerId(7)], 77)
