"""Backups where another party can write: read in bounded memory, refused whole, or restored as they say.

Such a party decides what a restore writes: no checksum proves who wrote a backup. It decides nothing else.
"""

import asyncio
import gzip
import json
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.backup import format as backup_format
from quire_bookie.backup.format import BackupError, DamagedBackupError, Manifest, checksum
from quire_bookie.backup.reading import list_backups, read_manifest, read_nodes, verify
from quire_bookie.backup.restore import inspect_backup, inspect_store, restore
from quire_bookie.backup.taking import take_backup
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import MetadataFormatError, ObjectStoreError
from quire_bookie.metadata import layout
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.restoration import RESTORATION
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from tests.integration.conftest import etcd_server
from tests.security.test_hostile_content import harmless, on_terminal
from tests.support.etcd_server import EtcdServer
from tests.unit.bookie.backup.test_taking import SetClock

__all__ = ["etcd_server"]

NAME = "20260101T000000Z-0000"
FIRST_LINE = b"quire-metadata-backup 1\n"
Record = tuple[bytes, bytes, int]
INSTANCE: Record = (layout.INSTANCE_ID.encode(), b"cluster", 0)


def packed(*records: Record) -> bytes:
    """Return the uncompressed bytes of a part."""
    return FIRST_LINE + b"".join(
        struct.pack("<IIq", len(key), len(value), version) + key + value for key, value, version in records
    )


def forge(folder: Path, objects: Sequence[tuple[str, bytes]], count: int, /, **changed: Any) -> ObjectStore:
    """Write a backup with correct checksums, as any client with access to the object store can."""
    listed = [
        {"name": name, "nodes": count, "size_bytes": len(data), "sha256": checksum(data)} for name, data in objects
    ]
    fields = {
        "format": 1,
        "name": NAME,
        "created_ms": 1,
        "instance_id": "cluster",
        "revision": 5,
        "quire_version": "0.1.0",
        "nodes": count,
        "value_bytes": 1,
        "ledgers": 0,
        "left_out": 0,
        "roots": {"/ledgers": 1},
        "parts": listed,
    } | changed
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    (folder / NAME).mkdir(parents=True, exist_ok=True)
    (folder / NAME / "manifest.json").write_text(json.dumps({**fields, "checksum": checksum(canonical)}))
    for name, data in objects:
        (folder / NAME / name).write_bytes(data)
    return open_object_store(f"file://{folder}", {})


def forged(folder: Path, *records: Record, **changed: Any) -> ObjectStore:
    data = gzip.compress(packed(*records))
    return forge(folder, [("part-00000.gz", data)], len(records), **changed)


async def write(store: LocalMetadataStore, objects: ObjectStore) -> None:
    """Restore the backup."""
    manifest = await read_manifest(objects, NAME)
    seen = await inspect_store(store, manifest)
    found = await inspect_backup(objects, manifest)
    await restore(store, objects, manifest, seen, found, clock=SetClock())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalMetadataStore]:
    found = await LocalMetadataStore.open(str(tmp_path / "store"))
    yield found
    await found.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"created_ms": "now"},
        {"created_ms": -1},
        {"created_ms": 10**30},
        {"created_ms": True},
        {"nodes": 1.5},
        {"revision": 10**30},
        {"instance_id": 5},
        {"instance_id": "x" * 1_000},
        {"roots": []},
        {"roots": {"/": "many"}},
        {"parts": {"name": 1}},
        {"parts": [5]},
        {"parts": [{"name": "part-00000.gz"}]},
        {"parts": [{"name": "../../secret", "nodes": 1, "size_bytes": 1, "sha256": ""}]},
        {"parts": [{"name": "/etc/passwd", "nodes": 1, "size_bytes": 1, "sha256": ""}]},
        {"parts": [{"name": "part-00000.gz\x1b[2J", "nodes": 1, "size_bytes": 1, "sha256": ""}]},
        {"parts": [{"name": "part-00000.gz", "nodes": 1, "size_bytes": 2**62, "sha256": ""}]},
        {"parts": [{"name": "part-00000.gz", "nodes": 1, "size_bytes": "1", "sha256": ""}]},
        {"unknown": 1},
    ],
)
async def test_a_forged_manifest_is_no_backup(tmp_path: Path, changed: dict[str, Any]) -> None:
    objects = forged(tmp_path, INSTANCE, **changed)
    with pytest.raises(DamagedBackupError, match="manifest"):
        await read_manifest(objects, NAME)
    [found] = await list_backups(objects)
    assert found.manifest is None and found.problem


@pytest.mark.parametrize("content", [b"", b"[" * 1_000_000, b'{"format":1}', b"\xff", b"[]", b"9" * 10_000, b"null"])
async def test_a_manifest_that_is_none_hides_no_other_backup(tmp_path: Path, content: bytes) -> None:
    objects = forged(tmp_path, INSTANCE)
    other = NAME.replace("2026", "2025")
    (tmp_path / other).mkdir()
    (tmp_path / other / "manifest.json").write_bytes(content)
    (tmp_path / "99999999T999999Z-0000").mkdir()  # a time that does not exist
    (tmp_path / "99999999T999999Z-0000" / "part-00000.gz").write_bytes(b"")
    found = await list_backups(objects)
    assert [each.manifest is not None for each in found] == [False, True]


async def test_objects_of_any_size_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = forged(tmp_path, INSTANCE)
    manifest = await read_manifest(objects, NAME)
    with (tmp_path / NAME / "part-00000.gz").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedBackupError, match="does not match its checksum"):
        await verify(objects, manifest)
    with (tmp_path / NAME / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr("quire_bookie.backup.reading.MANIFEST_BYTES_MAX", 1 << 20)
    with pytest.raises(DamagedBackupError):
        await read_manifest(objects, NAME)


@pytest.mark.parametrize(
    "bomb",
    [gzip.compress(FIRST_LINE + bytes(40 << 20), mtime=0), gzip.compress(FIRST_LINE, mtime=0) * 2, b"", b"\x1f\x8b"],
    ids=["large", "two members", "empty", "cut off"],
)
async def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: bytes) -> None:
    objects = forge(tmp_path, [("part-00000.gz", bomb)], 1)
    manifest = await read_manifest(objects, NAME)
    monkeypatch.setattr(backup_format, "PART_BYTES_MAX", 32 << 20)
    with pytest.raises(DamagedBackupError, match="cannot be unpacked"):
        await verify(objects, manifest)


@pytest.mark.parametrize(
    "body",
    [
        FIRST_LINE + struct.pack("<IIq", 2**32 - 1, 2**32 - 1, 0),
        FIRST_LINE + b"\0" * 15,
        FIRST_LINE + struct.pack("<IIq", 2, 0, 0) + b"/\xff",
        b"quire-metadata-backup 2\n",
    ],
)
async def test_records_that_lie_about_their_length_are_refused(tmp_path: Path, body: bytes) -> None:
    objects = forge(tmp_path, [("part-00000.gz", gzip.compress(body))], 1)
    with pytest.raises(DamagedBackupError):
        await verify(objects, await read_manifest(objects, NAME))


@pytest.mark.parametrize(
    "records",
    [
        [(b"", b"", 0), INSTANCE],
        [INSTANCE, (b"outside", b"", 0)],
        [INSTANCE, (b"/ledgers/x/", b"", 0)],
        [INSTANCE, INSTANCE],
        [(b"/z", b"", 0), INSTANCE],
        [INSTANCE, (b"/z", b"", -1)],
        [INSTANCE, (b"/z", b"", 2**62)],  # a counter: as many writes
        [INSTANCE, (b"/z", bytes(2 << 20), 0)],
        [(b"/ledgers/idgen-long/HOB-9999999999", b"", 0), INSTANCE],
        [INSTANCE, (RESTORATION.encode(), b"[" * 100_000, 0)],
        [INSTANCE, (RESTORATION.encode(), b'{"state":"review"}', 0)],
    ],
)
async def test_a_backup_that_cannot_be_restored_whole_is_not_begun(
    tmp_path: Path, store: LocalMetadataStore, records: list[Record]
) -> None:
    objects = forged(tmp_path / "objects", *records)
    with pytest.raises((DamagedBackupError, MetadataFormatError)):
        await write(store, objects)
    assert [node.key async for page in store.scan("/") for node in page] == [], "nothing was written"


async def test_digits_of_other_scripts_are_no_counter(tmp_path: Path, store: LocalMetadataStore) -> None:
    odd = "/ledgers/idgen-long/HOB-" + "\u00b2" * 10
    await write(store, forged(tmp_path / "objects", INSTANCE, (odd.encode(), b"", 0)))
    assert (await store.get(odd)) is not None


async def test_a_link_in_a_folder_of_backups_is_not_followed_out_of_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"content")
    objects = forged(tmp_path / "objects", INSTANCE)
    part = tmp_path / "objects" / NAME / "part-00000.gz"
    part.unlink()
    part.symlink_to(secret)
    with pytest.raises((DamagedBackupError, ObjectStoreError)) as caught:
        await verify(objects, await read_manifest(objects, NAME))
    assert "content" not in str(caught.value)


async def test_a_key_that_no_restore_could_write_is_reported_when_the_backup_is_taken(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    store = await open_metadata_store(etcd_server.url)
    await store.put(layout.INSTANCE_ID, b"cluster")
    etcd_server.call("kv/put", {"key": b64encode(b"/other/").decode(), "value": ""})
    objects = open_object_store(f"file://{tmp_path / 'objects'}", {})
    with pytest.raises(BackupError, match="'/other/' is not a path"):
        await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    await store.close()


def test_a_terminal_does_not_act_on_a_forged_backup(tmp_path: Path) -> None:
    attack = "\x1b]0;owned\x07\x1b[2J\u202e"
    forged(tmp_path, (b"/" + attack.encode(), b"", 0), (b"/a", b"", 0), instance_id=attack, quire_version=attack)
    for words in (("list",), ("verify", "--backup", NAME)):
        shown = on_terminal("metadata", *words, "--from", f"file://{tmp_path}")
        assert harmless(shown), ascii(shown)
    assert asyncio.run(_names(tmp_path)) == [NAME]


async def _names(folder: Path) -> list[str]:
    return [each.name for each in await list_backups(open_object_store(f"file://{folder}", {}))]


async def test_a_backup_is_read_as_it_was_written(tmp_path: Path) -> None:
    objects = forged(tmp_path, INSTANCE, (b"/z", b"value", 3))
    manifest: Manifest = await read_manifest(objects, NAME)
    assert [node.key async for nodes in read_nodes(objects, manifest) for node in nodes] == [layout.INSTANCE_ID, "/z"]
