"""Lists, checks and reads backups. Never writes."""

from collections.abc import AsyncIterator

from quire_bookie.backup.counters import is_counter
from quire_bookie.backup.format import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    VERSION_MAX,
    BackupError,
    DamagedBackupError,
    Manifest,
    checksum,
    decode_manifest,
    decode_part,
    is_backup_name,
)
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataError, ObjectMissingError
from quire_bookie.metadata.contract import check_value, is_key
from quire_bookie.metadata.store import Node
from quire_bookie.object_store.store import ObjectStore


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """A folder of a backup. `problem`: why `manifest` is None."""

    name: str
    manifest: Manifest | None
    problem: str = ""
    has_manifest: bool = False


async def list_backups(objects: ObjectStore) -> list[FoundBackup]:
    """Return all backups, the oldest first. ObjectStoreError when the object store cannot be read."""
    folders: dict[str, bool] = {}
    for path in await objects.names():
        name, _, rest = path.partition("/")
        if is_backup_name(name) and rest:
            folders[name] = folders.get(name, False) or rest == MANIFEST
    found = []
    for name, has_manifest in sorted(folders.items()):
        if not has_manifest:
            found.append(FoundBackup(name, None, "incomplete: it is still being written, or was interrupted"))
            continue
        try:
            found.append(FoundBackup(name, await read_manifest(objects, name), has_manifest=True))
        except DamagedBackupError as error:
            found.append(FoundBackup(name, None, str(error), has_manifest=True))
    return found


async def read_manifest(objects: ObjectStore, name: str) -> Manifest:
    """Return the manifest of a backup. BackupError when there is none, DamagedBackupError when it is invalid."""
    data = await _content(objects, f"{name}/{MANIFEST}", MANIFEST_BYTES_MAX) if is_backup_name(name) else None
    if data is None:
        raise BackupError(f"{objects.url} has no complete backup named {name}; `quire metadata list` shows the backups")
    return decode_manifest(name, data)


async def choose_backup(objects: ObjectStore, name: str | None) -> Manifest:
    """Return the manifest of the backup `name`, or of the newest complete one.

    BackupError when there is none, or when backups of several clusters exist and `name` is None: after a loss of etcd,
    a start creates a new cluster in the empty etcd, and that may have been backed up since.
    """
    if name is not None:
        return await read_manifest(objects, name)
    whole = [each.manifest for each in await list_backups(objects) if each.manifest is not None]
    if not whole:
        raise BackupError(f"{objects.url} has no complete backup")
    newest: dict[str, Manifest] = {}
    for each in sorted(whole, key=lambda each: (each.created_ms, each.name)):
        newest[each.instance_id] = each
    if len(newest) > 1:
        examples = ", ".join(f"{each.name} ({each.ledgers} ledgers)" for each in newest.values())
        raise BackupError(f"{objects.url} has backups of several clusters; choose one with --backup: {examples}")
    return next(iter(newest.values()))


async def read_nodes(objects: ObjectStore, manifest: Manifest) -> AsyncIterator[list[Node]]:
    """Yield the nodes of a backup, ascending by key, one list a part. A part is checked before it is yielded.

    DamagedBackupError, also for nodes that no store has: a restore must not meet them half way.
    """
    before = ""
    for part in manifest.parts:
        name = f"{manifest.name}/{part.name}"
        data = await _content(objects, name, part.size_bytes)
        if data is None:
            raise DamagedBackupError(f"{objects.url}: {name} is missing: the backup cannot be used")
        if len(data) != part.size_bytes or checksum(data) != part.sha256:
            raise DamagedBackupError(f"{objects.url}: {name} does not match its checksum: the backup cannot be used")
        nodes = list(decode_part(name, data))
        if len(nodes) != part.nodes:
            raise DamagedBackupError(f"{objects.url}: {name} holds {len(nodes)} nodes instead of {part.nodes}")
        for node in nodes:
            _check_node(manifest, node, before)
            before = node.key
        yield nodes


async def verify(objects: ObjectStore, manifest: Manifest) -> None:
    """Read and check the whole backup. DamagedBackupError."""
    count = 0
    async for nodes in read_nodes(objects, manifest):
        count += len(nodes)
    if count != manifest.nodes:
        raise DamagedBackupError(f"backup {manifest.name} holds {count} nodes instead of {manifest.nodes}")


async def _content(objects: ObjectStore, name: str, bytes_max: int) -> bytes | None:
    """Return an object, or one byte more than `bytes_max` of a larger one; None when it does not exist."""
    try:
        return bytes(await objects.get_range(name, 0, bytes_max + 1))
    except ObjectMissingError:
        return None


def _check_node(manifest: Manifest, node: Node, before: str) -> None:
    """Raise DamagedBackupError for a node that no store has, or that is not in order after the key `before`."""
    where = f"backup {manifest.name}: {node.key!r}"
    if node.key <= before:
        raise DamagedBackupError(f"{where} comes after {before!r}")
    if not is_key(node.key):
        raise DamagedBackupError(f"{where} is not a path")
    if node.version < 0 or (is_counter(node) and node.version > VERSION_MAX):
        raise DamagedBackupError(f"{where} has version {node.version}; of a counter at most {VERSION_MAX} is restored")
    try:
        check_value(node.key, node.value)
    except MetadataError as error:
        raise DamagedBackupError(f"{where}: {error}") from error
