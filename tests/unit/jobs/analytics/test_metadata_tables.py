"""Tables of a real embedded metadata store, with nodes as brokers and bookies write them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quire_bookie.errors import BookieUnavailableError, NoSuchLedgerError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_broker.managed_ledger.cursors.cursor_state import CursorNode, CursorState, StateBounds, encode_node
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, encode_list
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.managed_ledger.position import Position
from quire_broker.names import parse_topic
from quire_jobs.analytics.audit import drop_changed
from quire_jobs.analytics.metadata_tables import (
    MetadataTables,
    OpenLedger,
    expected_last,
    matches,
    read_tables,
    unmark_trimmed,
)

UUID = "11111111-2222-3333-4444-555555555555"
TOPIC = "persistent://acme/shop/a/b <x>"
NAME = parse_topic(f"{TOPIC}-partition-2").ledger_name
A, B, C = BookieId("a:1"), BookieId("b:1"), BookieId("c:1")


def closed(last: int, *segments: Segment, custom: dict[str, bytes] | None = None) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        segments=segments or (Segment(EntryId(0), (A, B, C)),),
        state=LedgerState.CLOSED,
        last_entry=EntryId(last),
        length=10 * (last + 1),
        custom=custom or {},
        ctime_ms=1_000,
    )


async def gone(ledger_id: int) -> OpenLedger:
    raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")


async def away(ledger_id: int) -> OpenLedger:
    raise BookieUnavailableError(f"no bookie of ledger {ledger_id} responds")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """Ledgers 1 (closed), 2 (offloaded, deleted on bookies), 3 (listed, missing), 4 (open); 9 is a cursor's."""
    opened = await open_metadata_store(f"local:{tmp_path}/metadata")
    nodes = LedgerNodes(opened)
    await nodes.create(LedgerId(1), closed(99, custom={"pulsar/managed-ledger": NAME.encode()}))
    await nodes.create(LedgerId(9), closed(0, custom={"pulsar/managed-ledger": NAME.encode(), "pulsar/cursor": b"s"}))
    await nodes.create(LedgerId(50), closed(0))
    properties = (("bucket", "b"), ("region", ""))
    offload = OffloadContext(UUID, "aws-s3", properties, complete=True, bookies_deleted=True)
    records = (
        LedgerRecord(1, 100, 1000, 5_000),
        LedgerRecord(2, 10, 100, 6_000, offload=offload),
        LedgerRecord(3, 10, 100, 7_000),
        LedgerRecord(4),
    )
    await opened.put(f"/managed-ledgers/{NAME}", encode_list(LedgerListNode(records)))
    state = CursorState(Position(1, 9))
    state.ranges.add(1, 20, 29)
    bounds = StateBounds(100, 100, 100_000, bitmap=False)
    await opened.put(f"/managed-ledgers/{NAME}/s", encode_node(CursorNode(-1, state, {}, 8_000), bounds))
    await opened.put(
        f"/managed-ledgers/{NAME}/in+ledger", encode_node(CursorNode(9, CursorState(Position(1, 3))), bounds)
    )
    await opened.put("/managed-ledgers/acme/shop/persistent/torn", b"\xff\xff")
    yield opened
    await opened.close()


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


async def test_rows_of_ledgers_combine_lists_and_metadata(store: MetadataStore) -> None:
    tables = await read_tables(store, gone)
    assert [row[:5] for row in tables.ledgers] == [
        (TOPIC, 2, 1, 100, 1000),
        (TOPIC, 2, 2, 10, 100),
        (TOPIC, 2, 3, 10, 100),
        (TOPIC, 2, 4, 0, 0),
    ]
    first, offloaded, missing, tail = tables.ledgers
    assert first[5:] == (at(1_000), at(5_000), "closed", False, False, None, 3, 2, 2, [A, B, C])
    assert offloaded[6:11] == (at(6_000), "closed", True, True, UUID)
    assert missing[7] == "missing"
    assert tail[6:8] == (None, "missing")
    assert [(driver, dict(pairs)["bucket"]) for driver, pairs in tables.targets] == [("aws-s3", "b")]
    assert list(tables.unreadable) == ["persistent://acme/shop/torn"]
    assert tables.unknown_owners == {"acme/shop/persistent/torn"}


async def test_a_ledger_whose_metadata_cannot_be_read_is_not_missing(store: MetadataStore) -> None:
    await store.put(layout.ledger_path(LedgerId(3)), b"torn")
    tables = await read_tables(store, gone)
    assert [row[7] for row in tables.ledgers if row[2] == 3] == ["closed"]
    assert "ledger 3" in tables.unreadable
    # It exists, so a bookie's copy of it is not an orphan.
    assert 3 in drop_changed(tables, {1, 3, 9, 50})


async def test_an_owner_with_an_unreadable_cursor_is_unknown(store: MetadataStore) -> None:
    await store.put(f"/managed-ledgers/{NAME}/worn", b"\xff\xff")
    assert NAME in (await read_tables(store, gone)).unknown_owners


async def test_ledgers_created_or_deleted_while_bookies_were_asked_are_left_out(store: MetadataStore) -> None:
    tables = await read_tables(store, gone)
    assert drop_changed(tables, {9, 50, 60}) == {1, 60}  # deleted and created
    assert [row[0] for row in tables.stored] == [9, 50]
    assert {row[0] for row in tables.expected} == {9, 50}
    assert [row[2] for row in tables.ledgers] == [2, 3, 4]


async def test_objects_of_a_ledger_that_was_trimmed_meanwhile_are_not_lost(store: MetadataStore) -> None:
    tables = await read_tables(store, gone)
    await unmark_trimmed(store, tables, {f"{UUID}-ledger-2"})
    assert [row[8] for row in tables.ledgers] == [False, True, False, False]  # still listed: its index is lost
    await store.put(f"/managed-ledgers/{NAME}", encode_list(LedgerListNode((LedgerRecord(4),))))
    await unmark_trimmed(store, tables, {f"{UUID}-ledger-2", f"{UUID}-ledger-2-index"})
    assert [row[8] for row in tables.ledgers] == [False, True, False, False]
    await unmark_trimmed(store, tables, {f"{UUID}-ledger-2"})
    assert [row[8] for row in tables.ledgers] == [False, False, False, False]


async def test_cursors_have_their_position_or_the_reason_why_it_may_be_outdated(store: MetadataStore) -> None:
    tables = await read_tables(store, gone)
    in_ledger, in_node = tables.cursors
    assert in_node == (TOPIC, 2, "s", 1, 9, at(8_000), None)
    assert in_ledger[:5] == (TOPIC, 2, "in ledger", 1, 3)
    assert "ledger 9 does not exist" in in_ledger[6]
    assert tables.acked == [(TOPIC, 2, "s", 1, 20, 29)]
    assert tables.cursor_ledgers == [(9,)]


async def test_all_ledgers_of_bookkeeper_are_included(store: MetadataStore) -> None:
    tables = await read_tables(store, gone, ["other/*"])
    assert tables.ledgers == []
    assert [(row[0], row[4], row[5]) for row in tables.stored] == [(1, NAME, None), (9, NAME, "s"), (50, None, None)]
    assert (1, A, 99, True) in tables.expected


async def test_an_open_ledger_without_a_reachable_bookie_is_unreadable(store: MetadataStore) -> None:
    tables: MetadataTables = await read_tables(store, away)
    assert tables.ledgers[-1][3:5] == (None, None)
    assert any("no bookie of ledger 4 responds" in why for why in tables.unreadable.values())


def test_the_last_entry_of_each_bookie_follows_the_write_sets() -> None:
    # Entries 0 to 5 stripe over a, b, c two by two: 5 is on c and a, 4 on b and c, 3 on a and b.
    assert expected_last(closed(5)) == {A: 5, B: 4, C: 5}
    other = BookieId("d:1")
    moved = closed(5, Segment(EntryId(0), (A, B, C)), Segment(EntryId(4), (A, other, C)))
    assert expected_last(moved) == {A: 5, B: 3, C: 5, other: 4}
    assert expected_last(closed(-1)) == {A: -1, B: -1, C: -1}
    assert expected_last(closed(0)) == {A: 0, B: 0, C: -1}


def test_patterns_match_topics_with_all_their_partitions() -> None:
    topic = parse_topic("persistent://acme/shop/orders-partition-3")
    assert matches(topic, [])
    assert matches(topic, ["acme/shop/orders"]) and matches(topic, ["persistent://acme/*"])
    assert not matches(topic, ["acme/shop/order"])
