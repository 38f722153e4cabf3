"""Takes a backup: all nodes of the store at one revision, except those of sessions.

Parts are written first and the manifest last, so an interrupted backup has no manifest and is ignored. Retention
deletes only backups of the same cluster, and only after the new one was read back.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final, Protocol, runtime_checkable

from quire_bookie import __version__
from quire_bookie.backup.format import (
    MANIFEST,
    BackupError,
    Manifest,
    Part,
    backup_name,
    begun_ms,
    checksum,
    encode_manifest,
    encode_part,
    encode_record,
)
from quire_bookie.backup.reading import list_backups, verify
from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.limits import MIB
from quire_bookie.metadata import layout
from quire_bookie.metadata.contract import is_key
from quire_bookie.metadata.store import Node
from quire_bookie.object_store.store import ObjectStore

PART_BYTES: Final = 16 * MIB
"""Size of a part before it is compressed."""
ATTEMPTS_MAX: Final = 3
ABANDONED_MS: Final = 24 * 3600 * 1000
"""A backup without a manifest that started longer ago is abandoned."""
_log = logging.getLogger("quire.backup")


@runtime_checkable
class Revisions(Protocol):
    """A store with revisions."""

    def snapshot(self, prefix: str) -> AsyncIterator[tuple[int, list[Node]]]:
        """Yield pages like `MetadataStore.scan`, each with its revision."""
        ...


class Pages(Protocol):
    """What a backup is taken of: a metadata store, or nodes that were read from elsewhere."""

    def scan(self, prefix: str) -> AsyncIterator[list[Node]]:
        """Yield the nodes whose key begins with `prefix`, ascending, in pages."""
        ...


@dataclass(slots=True)
class _Collected:
    parts: list[Part]
    nodes: int = 0
    value_bytes: int = 0
    ledgers: int = 0
    left_out: int = 0
    revision: int | None = None
    instance_id: str | None = None


async def take_backup(store: Pages, objects: ObjectStore, *, clock: WallClock, chance: Chance) -> Manifest:
    """Write a backup and return its manifest. MetadataError, BackupError: no complete backup was written.

    After BackupError parts of it may be left.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        now_ms = clock.now_ms()
        name = backup_name(now_ms, chance.token(2))
        try:
            return await _write(store, objects, name, now_ms)
        except MetadataUnavailableError as error:
            await _remove(objects, name)
            if attempt == ATTEMPTS_MAX:
                raise
            _log.warning("the backup starts again: %s", error)
    raise AssertionError("unreachable")


async def _write(store: Pages, objects: ObjectStore, name: str, now_ms: int) -> Manifest:
    found = _Collected([])
    roots: Counter[str] = Counter()
    records: list[bytes] = []
    size_bytes = 0
    async for revision, page in _pages(store):
        found.revision = revision
        for node in page:
            if node.ephemeral:
                found.left_out += 1
                continue
            if "\ufffd" in node.key or not is_key(node.key):
                raise BackupError(f"the key {node.key!r} is not a path in UTF-8; delete it first")
            if node.key == layout.INSTANCE_ID:
                found.instance_id = node.value.decode("utf-8", "replace")
            roots["/" + node.key.split("/")[1]] += 1
            found.ledgers += layout.ledger_of_path(node.key) is not None
            found.nodes += 1
            found.value_bytes += len(node.value)
            records.append(encode_record(node))
            size_bytes += len(records[-1])
        if size_bytes >= PART_BYTES:
            found.parts.append(await _put_part(objects, name, len(found.parts), records))
            records, size_bytes = [], 0
    if found.instance_id is None:
        raise BackupError(f"the metadata store holds no cluster to back up ({layout.INSTANCE_ID} is missing)")
    if records:
        found.parts.append(await _put_part(objects, name, len(found.parts), records))
    manifest = Manifest(
        name=name,
        created_ms=now_ms,
        instance_id=found.instance_id,
        revision=found.revision,
        quire_version=__version__,
        nodes=found.nodes,
        value_bytes=found.value_bytes,
        ledgers=found.ledgers,
        left_out=found.left_out,
        roots=dict(sorted(roots.items())),
        parts=tuple(found.parts),
    )
    await objects.put(f"{name}/{MANIFEST}", encode_manifest(manifest))
    return manifest


async def _pages(store: Pages) -> AsyncIterator[tuple[int | None, list[Node]]]:
    if isinstance(store, Revisions):
        async for revision, page in store.snapshot("/"):
            yield revision, page
        return
    async for page in store.scan("/"):
        yield None, page


async def _put_part(objects: ObjectStore, name: str, number: int, records: list[bytes]) -> Part:
    data = encode_part(records)
    part = Part(f"part-{number:05d}.gz", len(records), len(data), checksum(data))
    await objects.put(f"{name}/{part.name}", data)
    return part


async def keep_newest(objects: ObjectStore, taken: Manifest, keep: int, clock: WallClock) -> list[str]:
    """Delete all but the newest `keep` backups of this cluster, after the new one was read back; return the deleted
    names.

    Also deletes backups that were interrupted more than a day ago. Backups with a later time than the new one stay and
    are not counted: a clock was wrong, and it is unknown which. DamagedBackupError: the new backup is damaged, and
    nothing was deleted.
    """
    await verify(objects, taken)
    backups = await list_backups(objects)
    whole = [each.manifest for each in backups if each.manifest is not None]
    own = sorted((each for each in whole if each.instance_id == taken.instance_id), key=_age)
    later = [each.name for each in own if _age(each) > _age(taken)]
    if later:
        _log.warning("%d backups have a later time than this one and stay, from %s on", len(later), later[0])
    obsolete = [each.name for each in own[: len(own) - len(later)][:-keep]]
    obsolete += [
        each.name
        for each in backups
        if each.manifest is None and not each.has_manifest and clock.now_ms() - begun_ms(each.name) > ABANDONED_MS
    ]
    for name in obsolete:
        await _remove(objects, name)
    return obsolete


def _age(backup: Manifest) -> tuple[int, str]:
    return backup.created_ms, backup.name


async def _remove(objects: ObjectStore, name: str) -> None:
    """Delete the manifest first, so that a part of a backup never looks like a complete one."""
    await objects.delete(f"{name}/{MANIFEST}")
    for each in await objects.names(name):
        await objects.delete(each)
