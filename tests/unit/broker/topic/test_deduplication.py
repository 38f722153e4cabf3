"""Deduplication: the rule in tables and by random search, the snapshot, the replay."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.topic.deduplication import Deduplication, DeduplicationSettings, SequenceIds, Verdict
from quire_broker.wire.entry import peek, seal
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata


def entry(producer: str, sequence_id: int, **fields: Any) -> bytes:
    metadata = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=1, **fields)
    return seal(metadata, b"x")


class Cursor:
    """The part of a cursor that deduplication uses, over entries in memory."""

    def __init__(self, entries: list[StoredEntry], properties: Mapping[str, int] | None = None, mark: int = -1) -> None:
        self.entries = entries
        self.properties = dict(properties or {})
        self.mark = mark
        self.read_at = 0
        self.saved: list[tuple[dict[str, int], Position]] = []

    def rewind(self) -> None:
        self.read_at = self.mark + 1

    @property
    def has_more(self) -> bool:
        return self.read_at < len(self.entries)

    async def read(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        found = self.entries[self.read_at : self.read_at + min(entries_max, 3)]
        self.read_at += len(found)
        return found

    def set_properties(self, properties: Mapping[str, int]) -> None:
        self.properties = dict(properties)

    def acknowledge_cumulative(self, position: Position) -> None:
        self.mark = position.entry_id
        self.saved.append((dict(self.properties), position))


def stored(*entries: bytes) -> list[StoredEntry]:
    return [StoredEntry(Position(1, number), data) for number, data in enumerate(entries)]


def test_the_rule() -> None:
    ids = SequenceIds({"p": 5})
    assert ids.push("p", 5, 5) is Verdict.DUPLICATE
    assert ids.push("p", 6, 8) is Verdict.PUSH
    assert ids.push("p", 6, 8) is Verdict.UNKNOWN
    assert ids.push("p", 8, 8) is Verdict.UNKNOWN
    ids.stored("p", 8)
    assert ids.push("p", 8, 8) is Verdict.DUPLICATE
    assert ids.push("p", 9, 9) is Verdict.PUSH
    assert ids.push("q", 0, 0) is Verdict.PUSH
    assert (ids.last_of("p"), ids.last_of("q")) == (8, -1)


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=60))
def test_every_sequence_id_is_stored_at_most_once_and_duplicates_were_stored(actions: list[tuple[int, bool]]) -> None:
    ids = SequenceIds()
    pushed: list[int] = []
    durable: set[int] = set()
    for sequence_id, confirm in actions:
        verdict = ids.push("p", sequence_id, sequence_id)
        if verdict is Verdict.PUSH:
            assert sequence_id not in durable
            assert sequence_id not in pushed
            pushed.append(sequence_id)
        if verdict is Verdict.DUPLICATE:
            assert any(known >= sequence_id for known in durable)
        if confirm and pushed:
            durable.add(pushed.pop(0))
            ids.stored("p", max(durable))


def test_idle_producers_are_dropped_but_never_connected_ones() -> None:
    ids = SequenceIds({"gone": 1, "here": 2, "old": 3})
    ids.disconnected("gone", 100.0)
    ids.disconnected("old", 0.0)
    ids.forget_idle(now_s=150.0, idle_s=100.0, producers_max=10)
    assert set(ids.persisted) == {"gone", "here"}
    ids.forget_idle(now_s=151.0, idle_s=100.0, producers_max=1)
    assert set(ids.persisted) == {"here"}
    ids.forget_idle(now_s=1e9, idle_s=100.0, producers_max=0)
    assert set(ids.persisted) == {"here"}


async def test_loading_uses_the_snapshot_and_replays_later_entries() -> None:
    entries = stored(entry("p", 1), entry("p", 2), entry("q", 7, highest_sequence_id=9), entry("p", 3), b"no message")
    deduplication = Deduplication(Cursor(entries, {"p": 2}, mark=1), DeduplicationSettings(), lambda: 0.0)  # type: ignore[arg-type]
    await deduplication.recover()
    assert (deduplication.last_of("p"), deduplication.last_of("q")) == (3, 9)


async def test_chunks_before_the_last_are_neither_checked_nor_recorded() -> None:
    chunks = [entry("p", 4, num_chunks_from_msg=3, chunk_id=number, total_chunk_msg_size=9) for number in range(3)]
    cursor = Cursor(stored(*chunks[:2]))
    deduplication = Deduplication(cursor, DeduplicationSettings(), lambda: 0.0)  # type: ignore[arg-type]
    await deduplication.recover()
    assert deduplication.last_of("p") == -1
    verdicts = [deduplication.check("p", 4, 4, peek(chunk)) for chunk in chunks]
    assert verdicts == [Verdict.PUSH] * 3
    deduplication.stored("p", 4, Position(1, 2))
    assert [deduplication.check("p", 4, 4, peek(chunk)) for chunk in chunks] == [
        Verdict.PUSH,
        Verdict.PUSH,
        Verdict.DUPLICATE,
    ]


async def test_markers_bypass_it() -> None:
    deduplication = Deduplication(Cursor([], {"p": 9}), DeduplicationSettings(), lambda: 0.0)  # type: ignore[arg-type]
    assert deduplication.check("p", 1, 1, peek(entry("p", 1, marker_type=21))) is Verdict.PUSH


@pytest.mark.parametrize("count", [3, 7])
async def test_a_snapshot_is_taken_after_a_number_of_entries_with_its_end_position(count: int) -> None:
    cursor = Cursor([])
    deduplication = Deduplication(cursor, DeduplicationSettings(entries_interval=count), lambda: 0.0)  # type: ignore[arg-type]
    for number in range(count * 2):
        deduplication.check("p", number, number, peek(entry("p", number)))
        deduplication.stored("p", number, Position(1, number))
    assert cursor.saved == [
        ({"p": count - 1}, Position(1, count - 1)),
        ({"p": 2 * count - 1}, Position(1, 2 * count - 1)),
    ]


async def test_a_snapshot_is_taken_after_an_interval_if_anything_happened() -> None:
    cursor = Cursor([])
    now = [0.0]
    deduplication = Deduplication(cursor, DeduplicationSettings(interval_s=10.0), lambda: now[0])  # type: ignore[arg-type]
    now[0] = 100.0
    deduplication.snapshot_when_due()
    assert cursor.saved == []
    deduplication.stored("p", 1, Position(1, 0))
    deduplication.snapshot_when_due()
    assert cursor.saved == [({"p": 1}, Position(1, 0))]
    deduplication.stored("p", 2, Position(1, 1))
    deduplication.snapshot_when_due()
    assert len(cursor.saved) == 1
