"""Garbage collection: what may be deleted, and each way in which a live ledger could have been."""

import asyncio
import random

import pytest

from quire_bookie.errors import MetadataError, MetadataUnavailableError, StorageError
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import LedgerId
from quire_bookie.server.garbage_collection import GarbageCollection, GarbageCollectionSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore

INSTANCE = "the-instance"


class FakeStorage:
    """Holds ledger ids."""

    def __init__(self, *held: int) -> None:
        self.held = {LedgerId(number) for number in held}
        self.drops = 0

    async def ledgers(self) -> list[LedgerId]:
        return sorted(self.held)

    async def delete_ledger(self, ledger_id: LedgerId, /) -> None:
        self.held.remove(ledger_id)

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


def add(server: SimMetadata, *ledgers: int) -> None:
    for ledger in ledgers:
        server.write(ledger_path(LedgerId(ledger)), b"", None)


async def test_a_ledger_goes_when_it_was_missing_twice_in_a_row(server: SimMetadata, store: SimMetadataStore) -> None:
    storage = FakeStorage(1, 2, 3)
    add(server, 2)
    collection = GarbageCollection(storage, store, INSTANCE)
    assert await collection.run_round() == []
    assert storage.held == {1, 2, 3}
    assert await collection.run_round() == [1, 3]
    assert storage.held == {2}
    assert await collection.run_round() == []
    assert storage.drops == 3
    assert (collection.stats.ledgers_deleted, collection.stats.freed_bytes, collection.stats.rounds) == (2, 300, 3)


async def test_a_ledger_that_appears_between_the_rounds_stays(server: SimMetadata, store: SimMetadataStore) -> None:
    storage = FakeStorage(1)
    collection = GarbageCollection(storage, store, INSTANCE)
    await collection.run_round()
    add(server, 1)
    await collection.run_round()
    server.remove(ledger_path(LedgerId(1)))
    assert await collection.run_round() == []
    assert storage.held == {1}, "missing only once since it was last there"


async def test_a_ledger_created_during_the_listing_is_no_candidate(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1)
    collection = GarbageCollection(storage, store, INSTANCE)
    original = store.scan

    def scan(prefix: str, **options: int) -> object:
        storage.held.add(LedgerId(9))  # arrives while the listing, which is older, runs
        return original(prefix, **options)  # type: ignore[arg-type]

    store.scan = scan  # type: ignore[method-assign, assignment]
    await collection.run_round()
    storage.held.discard(LedgerId(9))
    assert await collection.run_round() == [1]
    assert 9 in storage.held


async def test_a_ledger_that_the_listing_missed_is_saved_by_the_read_before_the_delete(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1, 2)
    collection = GarbageCollection(storage, store, INSTANCE)
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
async def test_a_wiped_or_foreign_store_deletes_nothing(
    server: SimMetadata, store: SimMetadataStore, other: bytes | None
) -> None:
    storage = FakeStorage(1)
    collection = GarbageCollection(storage, store, INSTANCE)
    await collection.run_round()
    server.remove("/ledgers/INSTANCEID")
    if other is not None:
        server.write("/ledgers/INSTANCEID", other, None)
    with pytest.raises(MetadataError, match="nothing is deleted"):
        await collection.run_round()
    assert storage.held == {1}


async def test_a_store_that_changes_hands_during_the_round_stops_the_deletes(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1, 2)
    collection = GarbageCollection(storage, store, INSTANCE)
    await collection.run_round()
    original = storage.delete_ledger

    async def delete_ledger(ledger_id: LedgerId, /) -> None:
        await original(ledger_id)
        server.write("/ledgers/INSTANCEID", b"another-instance", None)

    storage.delete_ledger = delete_ledger  # type: ignore[method-assign]
    with pytest.raises(MetadataError):
        await collection.run_round()
    assert storage.held == {2}


async def test_a_listing_that_fails_halfway_ends_the_round_and_breaks_the_row(
    server: SimMetadata, store: SimMetadataStore
) -> None:
    storage = FakeStorage(1)
    add(server, 5, 6)
    collection = GarbageCollection(storage, store, INSTANCE)
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
    assert await collection.run_round() == [], "the failed round was no second proof"
    assert await collection.run_round() == [1]


async def test_an_empty_bookie_asks_the_store_for_nothing(server: SimMetadata, store: SimMetadataStore) -> None:
    storage = FakeStorage()
    server.away = True
    assert await GarbageCollection(storage, store, INSTANCE).run_round() == []
    assert storage.drops == 1


async def test_the_loop_goes_on_after_a_failed_round(server: SimMetadata, store: SimMetadataStore) -> None:
    done = asyncio.Event()

    class Failing(FakeStorage):
        async def drop_dead_logs(self) -> int:
            self.drops += 1
            if self.drops == 1:
                raise StorageError("disk")
            done.set()
            return 0

    collection = GarbageCollection(Failing(), store, INSTANCE, GarbageCollectionSettings(interval_s=0.0))
    task = asyncio.ensure_future(collection.run())
    async with asyncio.timeout(10):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert collection.stats.rounds > collection.stats.completed_rounds
