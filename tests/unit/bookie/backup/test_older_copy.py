"""Tests of accepting an older copy of the metadata: hold, review, and an epoch above all that bookies remember."""

from pathlib import Path

import pytest

from quire_bookie.backup.counters import high_path, raise_counter
from quire_bookie.backup.format import BackupError
from quire_bookie.backup.older_copy import Memories, begin_review
from quire_bookie.backup.settling import release, under_review
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH, read_collection_hold
from quire_bookie.metadata.epoch import read_epoch
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.ledger_ids import LedgerIds
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.restoration import RESTORATION, read_restoration
from quire_bookie.model import BookieId, IdCounters, IdReport, LedgerId
from tests.unit.bookie.backup.test_restore import FailingStore

LATER = IdReport(LedgerId(80), LedgerId(-1), IdCounters(7_000, 75, -1))


def memories(*reports: IdReport | None, now: IdCounters = IdCounters(0, 4, -1)) -> Memories:  # noqa: B008  a value
    return Memories(now, {BookieId(f"b{number}"): report for number, report in enumerate(reports)})


async def older(folder: Path) -> LocalMetadataStore:
    """Create a store with a cluster whose counter is at 4."""
    store = await LocalMetadataStore.open(folder)
    await initialise(store, SystemChance())
    await raise_counter(store, layout.ID_COUNTER, 4)
    return store


def test_later_epoch_or_higher_counter_of_the_same_epoch_shows_older_metadata() -> None:
    high_ledger = IdReport(LedgerId(900), LedgerId(-1), IdCounters(0, 4, -1))
    found = memories(LATER, None, high_ledger, IdReport(LedgerId(3), LedgerId(-1), IdCounters(0, 5, -1)))
    assert found.doubts() == {
        "b0": "its epoch is 0 and was 7000",
        "b3": "its counter of ledger ids is at 4 and was at 5",
    }
    assert (found.short, found.high, max(found.epochs)) == (900, 0, 7_000)


async def test_epoch_hold_review_and_reserved_ids_come_in_one_transaction(tmp_path: Path) -> None:
    store = await older(tmp_path)
    await store.put(HOLD_PATH, b"of the operator")
    writes = FailingStore(store, 1, done=False)
    with pytest.raises(MetadataUnavailableError):
        await begin_review(writes, memories(LATER), name="one", now_ms=5_000_000)  # type: ignore[arg-type]
    assert await read_restoration(store) is None and await read_epoch(store) == 0
    unknown = FailingStore(store, 1, done=True)
    epoch = await begin_review(unknown, memories(LATER), name="one", now_ms=5_000_000)  # type: ignore[arg-type]
    assert unknown.writes == 1 and epoch == await read_epoch(store) == 7_001
    assert "release-hold" in (await read_collection_hold(store) or "")
    assert not await RecoveryControls(store).is_enabled()
    assert await LedgerIds(store).next_id() >> 32 == 2
    found = await under_review(store)
    assert found.value.short_ids_given == 80
    with pytest.raises(BackupError, match="one is under review"):
        await begin_review(store, memories(LATER), name="two", now_ms=5_000_000)
    await release(store, found)
    assert await RecoveryControls(store).is_enabled() and await read_collection_hold(store) is None
    await store.close()


async def test_long_ids_known_to_the_copy_or_a_bookie_are_not_issued_again(tmp_path: Path) -> None:
    store = await older(tmp_path)
    for high in (1, 3):
        await raise_counter(store, layout.LONG_ID_COUNTERS, 0)
        await raise_counter(store, high_path(high), 2)
    held = IdReport(LedgerId(80), LedgerId(5 << 32 | 9), IdCounters(7_000, 75, 3 << 32 | 8))
    await begin_review(store, memories(held), name="one", now_ms=0)
    assert await LedgerIds(store).next_id() >> 32 == 7
    await store.close()


async def test_concurrent_write_is_noticed(tmp_path: Path) -> None:
    store = await older(tmp_path)
    racing = FailingStore(store, 1, done=False, before=lambda: store.put(HOLD_PATH, b"another operator"))
    with pytest.raises(BackupError, match="another process wrote"):
        await begin_review(racing, memories(LATER), name="one", now_ms=0)  # type: ignore[arg-type]
    assert await store.get(RESTORATION) is None and await read_epoch(store) == 0
    await store.close()


async def test_store_without_a_cluster_is_refused(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(tmp_path)
    with pytest.raises(BackupError, match="names no cluster"):
        await begin_review(store, memories(LATER), name="one", now_ms=0)
    await store.close()
