"""Restores a backup into an empty store. The order of the steps is safe against crashes and bookies that start early.

1. One transaction: the note of the restore, the hold on garbage collection, auto-recovery off, long ledger ids with a
   new high half, an epoch above that of the backup; and the instance id is deleted if a start had created one. Without
   an instance id no bookie starts, and a running one deletes nothing.
2. The nodes of the backup. A second run of the same restore continues where the first one ended.
3. The store is compared with the backup.
4. One transaction: the instance id of the backup. From here on the cluster is visible, under the hold.

Bookies may hold ledgers whose ids were issued after the backup. So new ledgers take long ids until the review ends,
with a high half that was never in use; `settling` decides which ids follow. Never changes a store with other content.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from quire_bookie.backup.counters import (
    COUNTER_MARGIN,
    high_of,
    is_counter,
    raise_counter,
    reserve_puts,
)
from quire_bookie.backup.format import BackupError, DamagedBackupError, Manifest
from quire_bookie.backup.reading import read_nodes
from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import BadVersionError, MetadataUnknownError
from quire_bookie.limits import KIB, METADATA_TRANSACTION_OPERATIONS_MAX
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.epoch import EPOCH_NONE, EPOCH_PATH, decode_epoch, epoch_put, next_epoch
from quire_bookie.metadata.recovery_controls import DISABLE
from quire_bookie.metadata.restoration import (
    RESTORATION,
    RETURNING,
    Restoration,
    RestorationState,
    decode_restoration,
    encode_restoration,
    read_restoration,
)
from quire_bookie.metadata.store import ABSENT, Check, Delete, MetadataStore, Node, Operation, Put, Versioned
from quire_bookie.object_store.store import ObjectStore

TRANSACTION_BYTES: Final = 512 * KIB
TRANSACTIONS_AT_ONCE: Final = 8
HIGH_MARGIN: Final = 2
"""The high half of long ids may have risen by one since the backup, after two thousand million ledgers."""
HIGH_END: Final = 1 << 31
"""Ledger ids have 63 bits, so this high half is above all."""
_OWN = frozenset((RESTORATION, HOLD_PATH, DISABLE, EPOCH_PATH, layout.INSTANCE_ID))
_FRESH = frozenset((layout.ROOT, layout.AVAILABLE, layout.READ_ONLY, layout.INSTANCE_ID))
_MEANWHILE = "another client wrote to the metadata store meanwhile; run this again"


@dataclass(frozen=True, slots=True)
class StoreState:
    """The store before a restore. `registered`: bookies that run and are already registered."""

    registered: tuple[str, ...]
    begun: Versioned[Restoration] | None
    instance_version: int
    """Version of the instance id that a start created; ABSENT without one."""


@dataclass(frozen=True, slots=True)
class Found:
    """Counters and switches in the backup."""

    short_ids: int = 0
    high: int = 0
    recovery_off: bool = False
    epoch: int = EPOCH_NONE


async def inspect_store(store: MetadataStore, manifest: Manifest) -> StoreState:
    """Return the state of the store. BackupError: it holds something else, so no restore may be written there."""
    begun = await read_restoration(store)
    if begun is not None and begun.value.state is RestorationState.REVIEW:
        raise BackupError(
            f"the store was already restored from backup {begun.value.backup}; continue with `quire metadata orphans "
            "list`"
        )
    if begun is not None and begun.value.backup != manifest.name:
        raise BackupError(
            f"a restore of backup {begun.value.backup} was started there: finish it with "
            f"--backup {begun.value.backup}, or use a new, empty etcd"
        )
    registered: list[str] = []
    instance_version = ABSENT
    async for page in store.scan("/", keys_only=True):
        for node in page:
            if node.key == layout.INSTANCE_ID:
                instance_version = node.version
            if node.ephemeral and node.key.startswith(f"{layout.AVAILABLE}/"):
                registered.append(node.key.rpartition("/")[2])
            elif begun is None and node.key not in _FRESH:
                raise BackupError(
                    f"the metadata store is not empty (it holds {node.key}): a restore needs a new, empty etcd, and no "
                    "broker or auto-recovery running on it"
                )
    return StoreState(tuple(registered), begun, instance_version)


async def inspect_backup(objects: ObjectStore, manifest: Manifest) -> Found:
    """Read and check the whole backup. DamagedBackupError, MetadataFormatError."""
    found = Found()
    reviewed: Restoration | None = None
    async for nodes in read_nodes(objects, manifest):
        for node in nodes:
            if node.key == layout.ID_COUNTER:
                found = replace(found, short_ids=node.version)
            elif node.key == DISABLE:
                found = replace(found, recovery_off=True)
            elif node.key == EPOCH_PATH:
                found = replace(found, epoch=decode_epoch(node.value))
            elif node.key == RESTORATION:
                reviewed = decode_restoration(node.value)
            elif node.key == layout.LONG_ID_COUNTERS:
                found = replace(found, high=max(found.high, 1))
            elif (high := high_of(node.key)) is not None:
                found = replace(found, high=max(found.high, high))
    if found.high >= HIGH_END - HIGH_MARGIN:
        raise DamagedBackupError(f"backup {manifest.name}: no ledger id is above its high half {found.high}")
    if reviewed is None:
        return found
    # The backup was taken during the review of an earlier restore, which had switched auto-recovery off and not raised
    # the counter.
    return replace(
        found, short_ids=max(found.short_ids, reviewed.short_ids_given), recovery_off=reviewed.recovery_was_off
    )


async def restore(
    store: MetadataStore, objects: ObjectStore, manifest: Manifest, seen: StoreState, found: Found, *, clock: WallClock
) -> Restoration:
    """Restore the backup; return the state that opens its review.

    After BackupError or MetadataError, run it again: it continues.
    """
    begun = seen.begun or await _begin(store, manifest, seen, found, clock.now_ms())
    writing = Check(RESTORATION, begun.version)
    await _write_nodes(store, objects, manifest, writing)
    await _compare(store, objects, manifest)
    done = replace(begun.value, state=RestorationState.REVIEW)
    # A process that started before the first transaction may have created an instance id after it.
    instance = Check(layout.INSTANCE_ID, ABSENT if seen.begun is None else seen.instance_version)
    try:
        await store.transact(
            [instance, writing],
            [Put(layout.INSTANCE_ID, manifest.instance_id.encode()), Put(RESTORATION, encode_restoration(done))],
        )
    except BadVersionError as error:
        raise BackupError(_MEANWHILE) from error
    except MetadataUnknownError:
        now = await read_restoration(store)
        if now is None or now.value != done:
            raise
    return done


async def _begin(
    store: MetadataStore, manifest: Manifest, seen: StoreState, found: Found, now_ms: int
) -> Versioned[Restoration]:
    restoration = Restoration(
        backup=manifest.name,
        cluster=manifest.instance_id,
        state=RestorationState.WRITING,
        since_ms=now_ms,
        reserved_high=found.high + HIGH_MARGIN,
        short_ids_given=found.short_ids,
        recovery_was_off=found.recovery_off,
    )
    reason = f"the metadata was restored from backup {manifest.name}; `quire metadata release-hold` ends this"
    operations: list[Operation] = [
        Put(RESTORATION, encode_restoration(restoration)),
        Put(HOLD_PATH, reason.encode()),
        Put(DISABLE, b""),
        *reserve_puts(restoration.reserved_high),
        epoch_put(next_epoch(found.epoch, now_ms=now_ms)),
    ]
    checks = [Check(operation.key, ABSENT) for operation in operations]
    checks.append(Check(layout.INSTANCE_ID, seen.instance_version))
    if seen.instance_version != ABSENT:
        operations.append(Delete(layout.INSTANCE_ID))
    try:
        await store.transact(checks, operations)
    except BadVersionError as error:
        raise BackupError(_MEANWHILE) from error
    except MetadataUnknownError:
        now = await read_restoration(store)
        if now is None or now.value != restoration:
            raise
    return Versioned(restoration, 0)


def _is_restored(node: Node) -> bool:
    """Return whether a node of the backup is restored unchanged. Counters of long ids are replaced by reserved ones."""
    if node.key in _OWN or node.key.startswith((f"{RESTORATION}/", f"{RETURNING}/")):
        return False
    return node.key != layout.LONG_ID_COUNTERS and high_of(node.key) is None


async def _write_nodes(store: MetadataStore, objects: ObjectStore, manifest: Manifest, writing: Check) -> None:
    counters: list[Node] = []
    async for nodes in read_nodes(objects, manifest):
        wanted = [node for node in nodes if _is_restored(node)]
        counters += [node for node in wanted if is_counter(node)]
        batches = list(_batches(wanted))
        for start in range(0, len(batches), TRANSACTIONS_AT_ONCE):
            await asyncio.gather(
                *(_write(store, each, writing) for each in batches[start : start + TRANSACTIONS_AT_ONCE])
            )
    for node in counters:
        await raise_counter(store, node.key, node.version + COUNTER_MARGIN)


def _batches(nodes: Sequence[Node]) -> "list[list[Node]]":
    batches: list[list[Node]] = [[]]
    size_bytes = 0
    for node in nodes:
        node_bytes = len(node.key) + len(node.value)
        full = 2 * (len(batches[-1]) + 1) + 1 > METADATA_TRANSACTION_OPERATIONS_MAX
        if batches[-1] and (full or size_bytes + node_bytes > TRANSACTION_BYTES):
            batches.append([])
            size_bytes = 0
        batches[-1].append(node)
        size_bytes += node_bytes
    return [batch for batch in batches if batch]


async def _write(store: MetadataStore, nodes: list[Node], writing: Check) -> None:
    """Create the nodes while the restore is in state `writing`; equal nodes of an earlier attempt are accepted.

    The check of the state matters for a delayed write: once the cluster runs, it must not restore a deleted node.
    """
    absent = [Check(node.key, ABSENT) for node in nodes]
    try:
        await store.transact([writing, *absent], [Put(node.key, node.value) for node in nodes])
        return
    except (BadVersionError, MetadataUnknownError):
        pass  # the reads below find out which of them exist
    for node in nodes:
        there = await store.get(node.key)
        if there is None:
            try:
                await store.transact([writing, Check(node.key, ABSENT)], [Put(node.key, node.value)])
            except BadVersionError as error:
                raise BackupError(_MEANWHILE) from error
        elif there.value != node.value:
            raise BackupError(f"{node.key} differs from the backup: another client is writing to this metadata store")


async def _compare(store: MetadataStore, objects: ObjectStore, manifest: Manifest) -> None:
    """Compare the store with the backup. BackupError at the first difference."""
    kept = _stored(store)
    async for nodes in read_nodes(objects, manifest):
        for node in nodes:
            if not _is_restored(node):
                continue
            there = await anext(kept, None)
            if there is None or there.key != node.key or there.value != node.value:
                what = "nothing" if there is None else there.key
                raise BackupError(f"the restored metadata has {what} where the backup has {node.key}; run it again")
    more = await anext(kept, None)
    if more is not None:
        raise BackupError(f"{more.key} is not in the backup: another client is writing to this metadata store")


async def _stored(store: MetadataStore) -> AsyncIterator[Node]:
    async for page in store.scan("/"):
        for node in page:
            if not node.ephemeral and _is_restored(node):
                yield node
