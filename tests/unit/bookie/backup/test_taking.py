"""Tests of backups: their content, when they are valid, and which ones retention deletes."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from quire_bookie.backup.format import MANIFEST, BackupError, DamagedBackupError, backup_name, begun_ms, decode_manifest
from quire_bookie.backup.reading import choose_backup, list_backups, read_nodes, verify
from quire_bookie.backup.taking import keep_newest, take_backup
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import MetadataUnavailableError, ObjectStoreError
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.store import MetadataStore, Node, Put
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore

DAY_MS = 24 * 3600 * 1000


class SetClock:
    """A clock that a test sets."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


class BrokenPlace:
    """An object store that fails after a number of writes."""

    def __init__(self, objects: ObjectStore, writes: int) -> None:
        self._objects = objects
        self._writes = writes
        self.url = objects.url
        self.names, self.get, self.delete, self.stored = objects.names, objects.get, objects.delete, objects.stored
        self.get_range, self.put_stream = objects.get_range, objects.put_stream

    async def put(
        self, name: str, data: bytes, *, overwrite: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        if self._writes == 0:
            raise ObjectStoreError("the object store broke")
        self._writes -= 1
        await self._objects.put(name, data, overwrite=overwrite, attributes=attributes)


def objects_in(folder: Path) -> ObjectStore:
    return open_object_store(f"file://{folder}", {})


async def a_cluster(folder: Path) -> LocalMetadataStore:
    store = await LocalMetadataStore.open(str(folder / "store"))
    await initialise(store, SystemChance())
    await store.put("/ledgers/00/0000/L0007", b"seven")
    await store.put("/managed-ledgers/public/default/persistent/topic", bytes(range(256)))
    await store.put("/ledgers/available/gone", b"here", ephemeral=True)
    for _ in range(5):
        await store.put("/ledgers/idgen", b"")
    return store


async def nodes_in(objects: ObjectStore) -> list[Node]:
    return [node async for nodes in read_nodes(objects, await choose_backup(objects, None)) for node in nodes]


async def test_backup_holds_every_node_but_those_of_sessions(tmp_path: Path) -> None:
    store, objects = await a_cluster(tmp_path), objects_in(tmp_path)
    manifest = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    kept = {node.key: node for node in await nodes_in(objects)}
    there = {node.key: node async for page in store.scan("/") for node in page if not node.ephemeral}
    assert kept == there
    assert kept["/ledgers/idgen"].version == 4
    assert (manifest.nodes, manifest.ledgers, manifest.left_out) == (len(there), 1, 1)
    assert manifest.roots == {"/ledgers": 6, "/managed-ledgers": 1}
    assert await choose_backup(objects, manifest.name) == manifest
    await store.close()


async def test_many_nodes_are_split_into_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, objects = await a_cluster(tmp_path), objects_in(tmp_path)
    monkeypatch.setattr("quire_bookie.backup.taking.PART_BYTES", 1)
    for start in range(0, 1500, 100):
        await store.transact([], [Put(f"/admin/n{number:04d}", b"x") for number in range(start, start + 100)])
    manifest = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    assert len(manifest.parts) == 2
    await verify(objects, manifest)
    assert len(await nodes_in(objects)) == manifest.nodes == 1507
    await store.close()


@pytest.mark.parametrize("writes", [0, 1])
async def test_interrupted_backup_is_invalid(tmp_path: Path, writes: int) -> None:
    store, objects = await a_cluster(tmp_path), objects_in(tmp_path)
    whole = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    with pytest.raises(ObjectStoreError, match="broke"):
        await take_backup(store, BrokenPlace(objects, writes), clock=SetClock(1_700_000_100_000), chance=SystemChance())
    assert await choose_backup(objects, None) == whole
    assert [bool(each.problem) for each in await list_backups(objects)] == [False, True][: 1 + writes]
    await store.close()


async def test_any_damage_is_found(tmp_path: Path) -> None:
    store, objects = await a_cluster(tmp_path), objects_in(tmp_path)
    manifest = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    part = tmp_path / manifest.name / manifest.parts[0].name
    data = part.read_bytes()
    for damaged in (data[:-1], bytes([data[0] ^ 1]) + data[1:], data + b"x"):
        part.write_bytes(damaged)
        with pytest.raises(DamagedBackupError, match="does not match its checksum"):
            await verify(objects, manifest)
    part.unlink()
    with pytest.raises(DamagedBackupError, match="missing"):
        await verify(objects, manifest)
    file = tmp_path / manifest.name / MANIFEST
    text = file.read_bytes()
    for at in range(0, len(text), 7):
        with pytest.raises(DamagedBackupError):
            decode_manifest(manifest.name, text[:at] + bytes([text[at] ^ 16]) + text[at + 1 :])
    with pytest.raises(BackupError, match="no complete backup"):
        await choose_backup(objects, "20200101T000000Z-0000")
    await store.close()


async def test_only_the_newest_backups_of_the_same_cluster_are_kept(tmp_path: Path) -> None:
    store, objects, clock = await a_cluster(tmp_path), objects_in(tmp_path), SetClock()
    taken = []
    for _ in range(4):
        clock.now += 1000
        taken.append(await take_backup(store, objects, clock=clock, chance=SystemChance()))
    (tmp_path / "20230101T000000Z-beef").mkdir()
    (tmp_path / "20230101T000000Z-beef" / "part-00000.gz").write_bytes(b"broken off")
    (tmp_path / "20230101T000000Z-notes.txt").write_text("not ours")
    removed = await keep_newest(objects, taken[3], 2, clock)
    assert sorted(removed) == sorted([taken[0].name, taken[1].name, "20230101T000000Z-beef"])
    assert not any((tmp_path / name).exists() for name in removed)
    assert [each.manifest for each in await list_backups(objects)] == taken[2:]
    assert (tmp_path / "20230101T000000Z-notes.txt").exists()
    await store.close()


async def test_clock_set_back_deletes_no_earlier_backup(tmp_path: Path) -> None:
    store, objects, clock = await a_cluster(tmp_path), objects_in(tmp_path), SetClock()
    before = await take_backup(store, objects, clock=clock, chance=SystemChance())
    clock.now -= 30 * DAY_MS
    taken = []
    for _ in range(3):
        clock.now += 1000
        taken.append(await take_backup(store, objects, clock=clock, chance=SystemChance()))
        await keep_newest(objects, taken[-1], 2, clock)
    assert [each.manifest for each in await list_backups(objects)] == [*taken[1:], before]
    await store.close()


async def test_backups_of_another_cluster_are_kept(tmp_path: Path) -> None:
    first, objects, clock = await a_cluster(tmp_path / "a"), objects_in(tmp_path), SetClock()
    second = await a_cluster(tmp_path / "b")
    kept = await take_backup(first, objects, clock=clock, chance=SystemChance())
    clock.now += DAY_MS
    newest = await take_backup(second, objects, clock=clock, chance=SystemChance())
    assert await keep_newest(objects, newest, 1, clock) == []
    assert [each.manifest for each in await list_backups(objects)] == [kept, newest]
    with pytest.raises(BackupError, match=f"several clusters; .* {kept.name} .1 ledgers., {newest.name}"):
        await choose_backup(objects, None)
    assert await choose_backup(objects, kept.name) == kept
    await first.close()
    await second.close()


async def test_damaged_new_backup_deletes_no_other(tmp_path: Path) -> None:
    store, objects, clock = await a_cluster(tmp_path), objects_in(tmp_path), SetClock()
    await take_backup(store, objects, clock=clock, chance=SystemChance())
    clock.now += 1000
    newest = await take_backup(store, objects, clock=clock, chance=SystemChance())
    (tmp_path / newest.name / newest.parts[0].name).write_bytes(b"")
    with pytest.raises(DamagedBackupError):
        await keep_newest(objects, newest, 1, clock)
    assert len(await list_backups(objects)) == 2
    await store.close()


class Compacted:
    """A store whose listing fails a number of times."""

    def __init__(self, store: MetadataStore, failures: int) -> None:
        self._store = store
        self.failures = failures

    async def snapshot(self, prefix: str):  # type: ignore[no-untyped-def]
        async for page in self._store.scan(prefix):
            if self.failures:
                self.failures -= 1
                raise MetadataUnavailableError("compacted")
            yield 42, page


async def test_failed_listing_is_repeated_and_leaves_no_objects(tmp_path: Path) -> None:
    store, objects = await a_cluster(tmp_path), objects_in(tmp_path)
    manifest = await take_backup(Compacted(store, 2), objects, clock=SetClock(), chance=SystemChance())  # type: ignore[arg-type]
    assert manifest.revision == 42
    assert [each.manifest for each in await list_backups(objects)] == [manifest]
    with pytest.raises(MetadataUnavailableError):
        await take_backup(Compacted(store, 3), objects, clock=SetClock(), chance=SystemChance())  # type: ignore[arg-type]
    await store.close()


async def test_empty_store_is_refused(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(str(tmp_path / "store"))
    with pytest.raises(BackupError, match="holds no cluster"):
        await take_backup(store, objects_in(tmp_path), clock=SetClock(), chance=SystemChance())
    await store.close()


def test_name_of_a_backup_contains_its_start_time() -> None:
    assert backup_name(1_700_000_000_123, b"\x01\x02") == "20231114T221320Z-0102"
    assert begun_ms("20231114T221320Z-0102") == 1_700_000_000_000
