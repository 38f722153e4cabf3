"""Tests that a bookie detects metadata that went back in time, and trusts it again once it was restored."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import MetadataFormatError
from quire_bookie.limits import METADATA_CHECK_PAUSE_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.epoch import EPOCH_PATH
from quire_bookie.metadata.initialise import initialise, read_instance_id
from quire_bookie.metadata.ledger_ids import LedgerIds, read_counters
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import IdCounters
from quire_bookie.server.upkeep import metadata_doubt
from quire_bookie.server.upkeep.collection_doubts import InDoubtError
from quire_bookie.server.upkeep.garbage_collection import GarbageCollection
from quire_bookie.server.upkeep.gc_fuse import GcFuse
from quire_bookie.server.upkeep.metadata_doubt import MetadataDoubt
from tests.sim.disk import SimDisk
from tests.support.epochs import raise_epoch
from tests.unit.bookie.storage.ledgers.test_tombstones import _Clock
from tests.unit.bookie.storage.store import Store, open_store


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_doubt, "METADATA_CHECK_PAUSE_S", 0.0)
    assert METADATA_CHECK_PAUSE_S > 0


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[LocalMetadataStore]:
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    await initialise(store, SystemChance())
    yield store
    await store.close()


async def older_copy(of: MetadataStore, tmp_path: Path, ids: int) -> LocalMetadataStore:
    """Return metadata of the same cluster from when fewer ids were allocated."""
    store = await LocalMetadataStore.open(str(tmp_path / "old"))
    instance = await read_instance_id(of)
    assert instance is not None
    await store.put(layout.INSTANCE_ID, instance.encode())
    for _ in range(ids):
        await LedgerIds(store).next_id()
    return store


async def doubt_of(store: Store, metadata: MetadataStore) -> MetadataDoubt:
    return MetadataDoubt(store.storage, metadata, await read_instance_id(metadata) or "")


async def test_the_counters_are_those_of_the_metadata(metadata: LocalMetadataStore) -> None:
    assert await read_counters(metadata) == IdCounters(0, -1, -1)
    assert await LedgerIds(metadata).next_id() == 1
    await raise_epoch(metadata, 7000)
    assert await read_counters(metadata) == IdCounters(7, 1, -1)
    await metadata.put(layout.LONG_ID_COUNTERS, b"")
    long = await LedgerIds(metadata).next_id()
    assert await read_counters(metadata) == IdCounters(7, 1, long)


async def test_an_older_copy_is_detected_even_after_a_restart_until_it_is_restored(
    metadata: LocalMetadataStore, tmp_path: Path
) -> None:
    old = await older_copy(metadata, tmp_path, 3)
    for _ in range(9):
        await LedgerIds(metadata).next_id()
    store = await open_store()
    assert await (await doubt_of(store, metadata)).check() is None
    store = await store.restart()
    doubt = await doubt_of(store, old)
    reason = await doubt.check()
    assert reason is not None and "is at 3 and was at 9" in reason and "backup.md" in reason
    assert doubt.reason == reason
    collection = GarbageCollection(
        store.storage, old, await read_instance_id(old) or "", GcFuse(SimDisk(), "/data", _Clock())
    )
    await collection.check()
    collection.doubts.add(doubt.check)
    with pytest.raises(InDoubtError, match="went back in time"):
        await collection.check()
    # The marks stay until the epoch rises; the current store is still trusted.
    assert store.storage.id_marks.seen == IdCounters(0, 9, -1)
    assert await (await doubt_of(store, metadata)).check() is None
    assert await doubt.check() is not None
    epoch = await raise_epoch(old, 0)
    assert await doubt.check() is None and store.storage.id_marks.seen == IdCounters(epoch, 3, -1)
    await collection.check()
    assert "epoch is 0 and was 1" in str(await (await doubt_of(store, metadata)).check())
    await store.storage.close()
    await old.close()


async def test_a_foreign_store_is_ignored(metadata: LocalMetadataStore, tmp_path: Path) -> None:
    store = await open_store()
    await LedgerIds(metadata).next_id()
    await (await doubt_of(store, metadata)).check()
    doubt = MetadataDoubt(store.storage, metadata, "another cluster")
    await LedgerIds(metadata).next_id()
    assert await doubt.check() is None and store.storage.id_marks.seen.short == 1
    await store.storage.close()


async def test_an_epoch_that_cannot_be_read_proves_nothing(metadata: LocalMetadataStore) -> None:
    store = await open_store()
    doubt = await doubt_of(store, metadata)
    await metadata.put(EPOCH_PATH, b"?")
    with pytest.raises(MetadataFormatError):
        await doubt.check()
    assert doubt.reason is None
    await store.storage.close()


async def test_a_ledger_above_the_counters_triggers_a_comparison(metadata: LocalMetadataStore) -> None:
    store = await open_store()
    doubt = await doubt_of(store, metadata)
    for _ in range(5):
        await LedgerIds(metadata).next_id()
    await doubt.check()
    assert not doubt._wanted.is_set()
    await store.put_ids(5, range(1))
    assert not doubt._wanted.is_set()
    await store.put_ids(6, range(1))
    assert doubt._wanted.is_set()
    await store.storage.close()
