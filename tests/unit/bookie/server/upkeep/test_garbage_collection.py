"""Tests of garbage collection: which ledgers may be deleted, and each way in which a live one could be lost."""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from quire_bookie.errors import ConfigError, DamagedError, MetadataError, MetadataUnavailableError, StorageError
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import LedgerId
from quire_bookie.server.upkeep.garbage_collection import GarbageCollection
from quire_bookie.server.upkeep.gc_fuse import GcFuse
from quire_bookie.settings.collection import FuseSettings, GarbageCollectionSettings, QuarantineSettings
from quire_bookie.storage.ledger_quarantine import QuarantinedLedger, QuarantineState
from tests.sim.disk import SimDisk
from tests.sim.metadata import SimMetadata, SimMetadataStore

INSTANCE = "the-instance"
AT_ONCE = GarbageCollectionSettings(quarantine=QuarantineSettings(0.0))
"""Settings without quarantine; see test_gc_quarantine for its rules."""


class FakeQuarantine:
    """Holds records, each of 100 bytes."""

    def __init__(self, held: set[LedgerId]) -> None:
        self.held = held
        self.known: dict[LedgerId, QuarantinedLedger] = {}
        self.clock_ms = 0

    async def all(self) -> list[QuarantinedLedger]:
        return [self.known[ledger] for ledger in sorted(self.known)]

    async def put(self, ledger: LedgerId, reason: str, /) -> bool:
        if ledger not in self.held:
            return False
        self.known[ledger] = QuarantinedLedger(ledger, QuarantineState.QUARANTINED, 0, self.clock_ms, 0, 1, 100, reason)
        return True

    def undelete(self, ledger: int, lasts_ms: int = 0) -> None:
        self.known[LedgerId(ledger)] = replace(
            self.known[LedgerId(ledger)],
            state=QuarantineState.UNDELETED,
            since_clock_ms=self.clock_ms,
            lasts_ms=lasts_ms,
        )

    async def release(self, ledgers: Iterable[LedgerId], /) -> None:
        for ledger in ledgers:
            del self.known[ledger]

    async def advance(self, elapsed_ms: int, /) -> None:
        self.clock_ms += elapsed_ms


class FakeStorage:
    """Holds ledger ids."""

    def __init__(self, *held: int) -> None:
        self.held = {LedgerId(number) for number in held}
        self.drops = 0
        self.ledger_quarantine = FakeQuarantine(self.held)

    async def ledgers(self) -> list[LedgerId]:
        return sorted(self.held)

    async def delete_ledger(self, ledger_id: LedgerId, /) -> bool:
        known = self.ledger_quarantine.known.get(ledger_id)
        if known is not None and known.is_undeleted:
            return False
        self.ledger_quarantine.known.pop(ledger_id, None)
        self.held.remove(ledger_id)
        return True

    async def expire_tombstones(self) -> int:
        return 0

    async def drop_dead_logs(self) -> int:
        self.drops += 1
        return 100


@pytest.fixture
def server() -> SimMetadata:
    cluster = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    cluster.write("/ledgers/INSTANCEID", INSTANCE.encode(), None)
    return cluster


@pytest.fixture
def store(server: SimMetadata) -> SimMetadataStore:
    return SimMetadataStore(server)


def collect(
    storage: FakeStorage, store: SimMetadataStore, settings: GarbageCollectionSettings | None = None
) -> GarbageCollection:
    """Return a collection with its own fuse."""
    return GarbageCollection(storage, store, INSTANCE, new_fuse(), settings or AT_ONCE)


def new_fuse(disk: SimDisk | None = None, share: float = 0.5, ledgers_min: int = 10) -> GcFuse:
    """Return a fuse whose file is on `disk`."""
    disk = disk or SimDisk()
    disk._folders.add("/gc")
    return GcFuse(disk, "/gc", FixedClock(), FuseSettings(share, ledgers_min))


class FixedClock:
    """Always returns the same time."""

    def now_ms(self) -> int:
        return 1_700_000_000_000


def add(server: SimMetadata, *ledgers: int) -> None:
    for ledger in ledgers:
        server.write(ledger_path(LedgerId(ledger)), b"", None)


async def test_a_ledger_is_deleted_when_it_was_missing_in_two_consecutive_rounds(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1, 2, 3)
    add(server, 2)
    collection = collect(storage, store)
    assert await collection.run_round() == []
    assert storage.held == {1, 2, 3}
    assert await collection.run_round() == [1, 3]
    assert storage.held == {2}
    assert await collection.run_round() == []
    assert storage.drops == 3
    assert (collection.stats.ledgers_deleted, collection.stats.freed_bytes, collection.stats.rounds) == (2, 300, 3)


async def test_a_ledger_that_appears_between_the_rounds_stays(server: SimMetadata, store: SimMetadataStore) -> None:
    storage = FakeStorage(1)
    collection = collect(storage, store)
    await collection.run_round()
    add(server, 1)
    await collection.run_round()
    server.remove(ledger_path(LedgerId(1)))
    assert await collection.run_round() == []
    assert storage.held == {1}, "missing only once since it was last named"


async def test_a_ledger_created_during_the_listing_is_not_a_candidate(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1)
    collection = collect(storage, store)
    original = store.scan

    def scan(prefix: str, **options: int) -> object:
        storage.held.add(LedgerId(9))  # arrives during the listing, which reads an older revision
        return original(prefix, **options)  # type: ignore[arg-type]

    store.scan = scan  # type: ignore[method-assign, assignment]
    await collection.run_round()
    storage.held.discard(LedgerId(9))
    assert await collection.run_round() == [1]
    assert 9 in storage.held


async def test_a_ledger_that_the_listing_missed_is_saved_by_the_read_before_the_deletion(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1, 2)
    collection = collect(storage, store)
    await collection.run_round()
    original = store.get

    async def get(key: str) -> object:
        add(server, 2)  # after the listing of the second round
        return await original(key)

    listing = store.scan

    def scan(prefix: str, **options: int) -> object:
        store.get = get  # type: ignore[method-assign, assignment]
        return listing(prefix, **options)  # type: ignore[arg-type]

    store.scan = scan  # type: ignore[method-assign, assignment]
    assert await collection.run_round() == [1]
    assert storage.held == {2}


@pytest.mark.parametrize("other", [None, b"another-instance"])
async def test_an_emptied_or_foreign_store_deletes_nothing(
    server: SimMetadata, store: SimMetadataStore, other: bytes | None
) -> None:
    storage = FakeStorage(1)
    collection = collect(storage, store)
    await collection.run_round()
    server.remove("/ledgers/INSTANCEID")
    if other is not None:
        server.write("/ledgers/INSTANCEID", other, None)
    with pytest.raises(MetadataError, match="nothing is deleted"):
        await collection.run_round()
    assert storage.held == {1}


async def test_a_store_that_is_replaced_during_the_round_stops_the_deletions(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1, 2)
    collection = collect(storage, store)
    await collection.run_round()
    original = storage.delete_ledger

    async def delete_ledger(ledger_id: LedgerId, /) -> bool:
        assert await original(ledger_id)
        server.write("/ledgers/INSTANCEID", b"another-instance", None)
        return True

    storage.delete_ledger = delete_ledger  # type: ignore[method-assign]
    with pytest.raises(MetadataError):
        await collection.run_round()
    assert storage.held == {2}


async def test_a_listing_that_fails_halfway_ends_the_round_and_restarts_the_count(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1)
    add(server, 5, 6)
    collection = collect(storage, store)
    await collection.run_round()
    original = store.scan

    async def scan(prefix: str, **options: int) -> object:
        async for page in original(prefix, page_keys=1):
            yield page
            raise MetadataUnavailableError("gone")

    store.scan = scan  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataUnavailableError):
        await collection.run_round()
    store.scan = original  # type: ignore[method-assign]
    assert storage.drops == 1
    assert (collection.stats.rounds, collection.stats.completed_rounds) == (2, 1)
    assert await collection.run_round() == [], "the failed round does not count"
    assert await collection.run_round() == [1]


async def test_an_empty_bookie_does_not_read_the_store(server: SimMetadata, store: SimMetadataStore) -> None:
    storage = FakeStorage()
    server.away = True
    assert await collect(storage, store).run_round() == []
    assert storage.drops == 1


async def test_the_loop_continues_after_a_failed_round(server: SimMetadata, store: SimMetadataStore) -> None:
    done = asyncio.Event()

    class Failing(FakeStorage):
        async def drop_dead_logs(self) -> int:
            self.drops += 1
            if self.drops == 1:
                raise StorageError("disk")
            done.set()
            return 0

    collection = collect(Failing(), store, replace(AT_ONCE, interval_s=0.0))
    task = asyncio.ensure_future(collection.run())
    async with asyncio.timeout(60):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert collection.stats.rounds > collection.stats.completed_rounds


# ---- the fuse
async def test_too_many_missing_ledgers_blow_the_fuse_and_nothing_is_deleted(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(*range(20))
    add(server, *range(9))
    collection = collect(storage, store)
    for _ in range(4):
        assert await collection.run_round() == []
    assert len(storage.held) == 20
    blown = collection.fuse.blown
    assert blown is not None
    assert (blown.missing, blown.held, blown.since_ms) == (11, 20, 1_700_000_000_000)
    assert "11 of 20" in blown.reason
    assert collection.stats.fuse_blown == 1
    assert storage.drops == 4, "logs without a live ledger are still deleted"


async def test_half_of_the_ledgers_or_a_small_number_does_not_blow_the_fuse(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(*range(20))
    add(server, *range(10))
    collection = collect(storage, store)
    await collection.run_round()
    assert await collection.run_round() == list(range(10, 20))
    small = FakeStorage(*range(100, 109))
    collection = collect(small, store)
    await collection.run_round()
    assert len(await collection.run_round()) == 9, "all of nine: below the fuse's minimum"


async def test_a_blown_fuse_survives_a_restart_and_new_ledgers_do_not_reset_it(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    disk = SimDisk()
    storage = FakeStorage(*range(20))
    await GarbageCollection(storage, store, INSTANCE, new_fuse(disk), AT_ONCE).run_round()
    for ledger in range(100, 200):
        add(server, ledger)
        storage.held.add(LedgerId(ledger))
    again = GarbageCollection(storage, store, INSTANCE, new_fuse(disk.crash()), AT_ONCE)
    for _ in range(3):
        assert await again.run_round() == []
    assert again.fuse.blown is not None
    assert again.fuse.blown.held == 20


async def test_the_fuse_resets_itself_when_the_metadata_names_the_ledgers_again(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(*range(20))
    collection = collect(storage, store)
    await collection.run_round()
    assert collection.fuse.blown is not None
    add(server, *range(18))
    await collection.run_round()
    assert collection.fuse.blown is None
    assert collection.stats.fuse_blown == 0
    assert 18 not in storage.held
    assert len(storage.held) == 18


async def test_a_reset_of_the_fuse_is_only_for_the_ledgers_that_it_has_seen(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(*range(40))
    add(server, *range(20, 40))
    collection = collect(storage, store)
    collection.fuse._settings = FuseSettings(0.4, 10)
    await collection.run_round()
    assert collection.fuse.blown is not None
    await collection.reset_fuse()
    for ledger in range(20, 40):
        server.remove(ledger_path(LedgerId(ledger)))
    assert await collection.run_round() == []
    assert collection.fuse.blown is not None, "other ledgers vanished after the reset"
    assert collection.fuse.blown.missing == 20
    await collection.reset_fuse()
    assert len(await collection.run_round()) == 40


async def test_a_reset_right_after_a_restart_is_for_the_ledgers_that_the_next_listing_misses(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    disk = SimDisk()
    storage = FakeStorage(*range(20))
    await GarbageCollection(storage, store, INSTANCE, new_fuse(disk), AT_ONCE).run_round()
    again = GarbageCollection(storage, store, INSTANCE, new_fuse(disk.crash()), AT_ONCE)
    await again.reset_fuse()
    await again.run_round()
    assert len(await again.run_round()) == 20


async def test_a_damaged_state_of_the_fuse_deletes_nothing(server: SimMetadata, store: SimMetadataStore) -> None:
    disk = SimDisk()
    fuse = new_fuse(disk)
    await disk.replace_file("/gc/gc.state", b"rubbish")
    storage = FakeStorage(1)
    collection = GarbageCollection(storage, store, INSTANCE, fuse, AT_ONCE)
    for _ in range(3):
        with pytest.raises(StorageError, match=r"gc\.state"):
            await collection.run_round()
    assert storage.held == {1}


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="gcFuseShare"):
        FuseSettings(share)


# ---- holds
async def test_a_hold_on_this_bookie_survives_a_restart(server: SimMetadata, store: SimMetadataStore) -> None:
    disk = SimDisk()
    storage = FakeStorage(1)
    fuse = new_fuse(disk)
    await fuse.set_hold("restoring\nfrom backup")
    collection = GarbageCollection(storage, store, INSTANCE, new_fuse(disk.crash()), AT_ONCE)
    for _ in range(3):
        with pytest.raises(MetadataError, match="restoring from backup"):
            await collection.run_round()
    assert storage.held == {1}
    assert collection.stats.held_back == 1
    await collection.fuse.set_hold(None)
    await collection.run_round()
    assert await collection.run_round() == [1]
    assert collection.stats.held_back == 0


async def test_a_hold_on_the_cluster_stops_a_running_round(server: SimMetadata, store: SimMetadataStore) -> None:
    storage = FakeStorage(1, 2)
    collection = collect(storage, store)
    await collection.run_round()
    original = storage.delete_ledger

    async def delete_ledger(ledger_id: LedgerId, /) -> bool:
        assert await original(ledger_id)
        await store.put(HOLD_PATH, b"a restore")
        return True

    storage.delete_ledger = delete_ledger  # type: ignore[method-assign]
    with pytest.raises(MetadataError, match="a restore"):
        await collection.run_round()
    assert storage.held == {2}
    await store.delete(HOLD_PATH)
    await collection.run_round()
    assert await collection.run_round() == [2]


async def test_a_forced_collection_runs_two_rounds_and_calls_back_when_done(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1)
    collection = collect(storage, store, replace(AT_ONCE, interval_s=1e9))
    task = asyncio.ensure_future(collection.run())
    done = asyncio.Event()
    collection.force(done.set)
    assert collection.is_running
    async with asyncio.timeout(60):
        await done.wait()
    assert storage.held == set()
    assert not collection.is_running
    assert collection.stats.round_seconds.total == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_ledger_whose_state_is_damaged_does_not_prevent_other_deletions(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    class Damaged(FakeStorage):
        async def delete_ledger(self, ledger_id: LedgerId, /) -> bool:
            if ledger_id == 1:
                raise DamagedError("index", 0, "test")
            return await super().delete_ledger(ledger_id)

    storage = Damaged(1, 2, 3)
    collection = collect(storage, store)
    await collection.run_round()
    assert await collection.run_round() == [2, 3]
    assert storage.held == {1}
