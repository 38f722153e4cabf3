"""Constructs garbage collection and compaction of one bookie. Owns no behaviour."""

from collections.abc import Callable
from typing import Any

from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import ReplicationLocks
from quire_bookie.server.settings import BookieSettings, BookieStats
from quire_bookie.server.start.storage_identity import StorageIdentity
from quire_bookie.server.upkeep.compaction_pace import LatencyWatch
from quire_bookie.server.upkeep.compaction_schedule import CompactionSchedule, DiskPressure
from quire_bookie.server.upkeep.disk_monitor import DiskMonitor
from quire_bookie.server.upkeep.garbage_collection import GarbageCollection
from quire_bookie.server.upkeep.gc_fuse import GcFuse
from quire_bookie.server.upkeep.over_replicated import OverReplicatedCopies
from quire_bookie.storage.ledger_storage import LedgerStorage


def garbage_collection_of(
    storage: LedgerStorage[Any],
    metadata: MetadataStore,
    identity: StorageIdentity,
    disk: Disk,
    clock: WallClock,
    monitor: Callable[[], DiskMonitor | None],
    settings: BookieSettings,
) -> GarbageCollection:
    """Construct the deletion of deleted ledgers and superfluous copies, with its fuse in the first ledger folder."""
    rules = settings.garbage_collection
    fuse = GcFuse(disk, settings.ledger_paths[0], clock, rules.fuse)
    collection = GarbageCollection(storage, metadata, identity.instance_id, fuse, rules)

    def excess_bytes() -> int:
        disks = monitor()
        return 0 if disks is None else disks.excess_bytes

    collection.excess_bytes = excess_bytes
    locks = ReplicationLocks(metadata, settings.advertise)
    collection.copies = OverReplicatedCopies(
        storage, metadata, identity.bookie, locks, collection.check, rules.over_replicated
    )
    return collection


def compaction_of(
    storage: LedgerStorage[Any],
    stats: BookieStats,
    monitor: Callable[[], DiskMonitor | None],
    clock: WallClock,
    settings: BookieSettings,
) -> CompactionSchedule:
    """Construct compaction that yields to a full disk and to clients."""

    def pressure() -> DiskPressure:
        disks = monitor()
        if disks is not None and (disks.any_full or disks.read_only):
            return DiskPressure.FULL
        return DiskPressure.ALMOST_FULL if disks is not None and disks.any_almost_full else DiskPressure.NONE

    latencies = LatencyWatch(lambda: (stats.add_seconds, stats.read_seconds), settings.compaction.latency_max_s)
    return CompactionSchedule(storage.compaction, settings.compaction, clock, pressure=pressure, latencies=latencies)
