from pathlib import Path

import pytest

from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_broker.offload.format import data_key, index_key
from quire_jobs.offload.attempt_notes import FOLDER, NOTE_KEPT_MS, AttemptNote, Swept, decode_note, sweep, write_note

UUID = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0"
OTHER = "1f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0"
NOW_MS = 10 * NOTE_KEPT_MS


def note_of(uuid: str = UUID, cluster: str = "c1", begun_ms: int = NOW_MS, asked: bool = False) -> AttemptNote:
    return AttemptNote(cluster, "public/default/persistent/t", 7, uuid, "me", begun_ms, asked)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_object_store(f"file://{tmp_path}", {})


async def left_behind(objects: ObjectStore, note: AttemptNote) -> None:
    """Write the note and objects of a run that was killed after its upload."""
    await write_note(objects, note)
    await objects.put(data_key(note.uuid, 7), b"data")
    await objects.put(index_key(note.uuid, 7), b"index")


async def swept(objects: ObjectStore, states: dict[str, bool | None], cluster: str = "c1") -> Swept:
    async def is_noted(note: AttemptNote) -> bool | None:
        return states[note.uuid]

    return await sweep(objects, cluster, is_noted, NOW_MS)


async def test_objects_of_an_unknown_attempt_are_removed_and_its_note_a_day_later(objects: ObjectStore) -> None:
    await left_behind(objects, note_of())
    assert await swept(objects, {UUID: None}) == Swept(segments=1)
    assert await objects.names() == [f"{FOLDER}/{data_key(UUID, 7)}"]
    await left_behind(objects, note_of(begun_ms=NOW_MS - NOTE_KEPT_MS))
    assert await swept(objects, {UUID: None}) == Swept(segments=1, settled=1)
    assert await objects.names() == []


async def test_objects_of_an_attempt_that_may_be_complete_are_kept(objects: ObjectStore) -> None:
    """After a restore of older metadata the objects may be the only copy."""
    await left_behind(objects, note_of(asked=True))
    assert await swept(objects, {UUID: None}) == Swept()
    await write_note(objects, note_of(asked=True, begun_ms=NOW_MS - NOTE_KEPT_MS))
    assert await swept(objects, {UUID: None}) == Swept(settled=1)
    assert await objects.names() == [data_key(UUID, 7), index_key(UUID, 7)]


async def test_a_complete_attempt_keeps_its_objects_and_loses_its_note(objects: ObjectStore) -> None:
    await left_behind(objects, note_of())
    assert await swept(objects, {UUID: True}) == Swept(settled=1)
    assert await objects.names() == [data_key(UUID, 7), index_key(UUID, 7)]


async def test_a_begun_attempt_is_left_alone(objects: ObjectStore) -> None:
    await left_behind(objects, note_of())
    before = await objects.names()
    assert await swept(objects, {UUID: False}) == Swept(under_way=1)
    assert await objects.names() == before


async def test_other_clusters_and_objects_without_a_note_are_left_alone(objects: ObjectStore) -> None:
    await left_behind(objects, note_of(cluster="c2"))
    await objects.put(data_key(OTHER, 7), b"complete long ago, or of a broker")
    await objects.put(f"{FOLDER}/notes.txt", b"{")
    before = await objects.names()
    assert await swept(objects, {}) == Swept()
    assert await objects.names() == before


def test_a_note_must_match_its_name() -> None:
    note = note_of()
    assert decode_note(note.name, note.encode()) == note
    assert decode_note(note_of(OTHER).name, note.encode()) == note_of(OTHER)
    asked = note_of(asked=True)
    assert decode_note(asked.name, asked.encode()) == asked
    unclear = decode_note(note.name, note.encode().replace(b'"asked": false', b'"asked": null'))
    assert unclear is not None and unclear.asked
    assert decode_note(f"{FOLDER}/{data_key(UUID, 8)}", note.encode()) is None
    assert decode_note(f"{FOLDER}/{index_key(UUID, 7)}", note.encode()) is None
    assert decode_note(note.name, b"[]") is None
    assert decode_note(note.name, b'{"ledgerId": 7}') is None
