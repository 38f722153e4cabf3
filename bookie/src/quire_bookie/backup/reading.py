"""Finds, checks and reads backups. Never writes."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from quire_bookie.backup.format import (
    MANIFEST,
    BackupError,
    DamagedBackupError,
    Manifest,
    checksum,
    decode_manifest,
    decode_part,
    is_backup_name,
)
from quire_bookie.metadata.store import Node
from quire_bookie.places.place import Place


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """A folder of a backup. Without a manifest that can be read, `problem` says why."""

    name: str
    manifest: Manifest | None
    problem: str = ""
    has_manifest: bool = False


async def found_backups(place: Place) -> list[FoundBackup]:
    """All of them, the oldest first. BackupError when the place cannot be read."""
    folders: dict[str, bool] = {}
    for path in await place.names():
        name, _, rest = path.partition("/")
        if is_backup_name(name) and rest:
            folders[name] = folders.get(name, False) or rest == MANIFEST
    found = []
    for name, has_manifest in sorted(folders.items()):
        if not has_manifest:
            found.append(FoundBackup(name, None, "incomplete: it is being written, or was broken off"))
            continue
        try:
            found.append(FoundBackup(name, await read_manifest(place, name), has_manifest=True))
        except DamagedBackupError as error:
            found.append(FoundBackup(name, None, str(error), has_manifest=True))
    return found


async def read_manifest(place: Place, name: str) -> Manifest:
    """The manifest of a backup. BackupError when there is none, DamagedBackupError."""
    data = await place.get(f"{name}/{MANIFEST}") if is_backup_name(name) else None
    if data is None:
        raise BackupError(
            f"{place.url}: no complete backup is called {name}; `quire metadata list` shows what there is"
        )
    return decode_manifest(name, data)


async def choose_backup(place: Place, name: str | None) -> Manifest:
    """The backup of this name, or the newest whole one. BackupError, also for a choice between clusters.

    Where etcd was lost, the cluster that a start made in the empty one may have been backed up since.
    """
    if name is not None:
        return await read_manifest(place, name)
    whole = [each.manifest for each in await found_backups(place) if each.manifest is not None]
    if not whole:
        raise BackupError(f"{place.url}: there is no complete backup")
    newest: dict[str, Manifest] = {}
    for each in sorted(whole, key=lambda each: (each.created_ms, each.name)):
        newest[each.instance_id] = each
    if len(newest) > 1:
        said = ", ".join(f"{each.name} ({each.ledgers} ledgers)" for each in newest.values())
        raise BackupError(f"{place.url}: there are backups of several clusters; choose with --backup, e.g. {said}")
    return next(iter(newest.values()))


async def nodes_of(place: Place, manifest: Manifest) -> AsyncIterator[list[Node]]:
    """All nodes of a backup, by key, a list a part; each part is checked before any of it is handed out."""
    for part in manifest.parts:
        name = f"{manifest.name}/{part.name}"
        data = await place.get(name)
        if data is None:
            raise DamagedBackupError(f"{place.url}: {name} is missing: the backup cannot be used")
        if len(data) != part.size_bytes or checksum(data) != part.sha256:
            raise DamagedBackupError(f"{place.url}: {name} is not what was written: the backup cannot be used")
        nodes = list(decode_part(name, data))
        if len(nodes) != part.nodes:
            raise DamagedBackupError(f"{place.url}: {name} holds {len(nodes)} nodes instead of {part.nodes}")
        yield nodes


async def verify(place: Place, manifest: Manifest) -> None:
    """Read all of a backup. DamagedBackupError with what is wrong."""
    count = 0
    before = ""
    async for nodes in nodes_of(place, manifest):
        for node in nodes:
            if node.key <= before:
                raise DamagedBackupError(f"backup {manifest.name}: {node.key} stands behind {before}")
            before = node.key
        count += len(nodes)
    if count != manifest.nodes:
        raise DamagedBackupError(f"backup {manifest.name} holds {count} nodes instead of {manifest.nodes}")
