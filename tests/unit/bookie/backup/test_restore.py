"""Tests of a restore: refusals, content, continuation after a crash at any write, ids, and the end of the review."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.backup.counters import high_path, raise_counter
from quire_bookie.backup.format import BackupError, Manifest
from quire_bookie.backup.holdings import Held, Holdings
from quire_bookie.backup.restore import inspect_backup, inspect_store, restore
from quire_bookie.backup.review import Difference, Kind, Review
from quire_bookie.backup.settling import release, settle_ids, undecided, under_review
from quire_bookie.backup.taking import take_backup
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import MetadataError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH, read_collection_hold
from quire_bookie.metadata.epoch import EPOCH_PATH, read_epoch
from quire_bookie.metadata.initialise import initialise, read_instance_id
from quire_bookie.metadata.ledger_ids import LedgerIds
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.recovery_controls import DISABLE, RecoveryControls
from quire_bookie.metadata.restoration import (
    RESTORATION,
    RestorationState,
    give_up,
    given_up,
    let_return,
    may_return,
    read_restoration,
    wait_until_settled,
)
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from tests.support.epochs import raise_epoch
from tests.unit.bookie.backup.test_taking import SetClock

MARGIN = 2


@pytest.fixture(autouse=True)
def _small_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the margin, since each skipped number costs a write."""
    monkeypatch.setattr("quire_bookie.backup.restore.COUNTER_MARGIN", MARGIN)
    monkeypatch.setattr("quire_bookie.backup.settling.COUNTER_MARGIN", MARGIN)


class FailingStore:
    """Wraps a store so that write number `fail_at` fails: with an unknown outcome but done, or certainly not done.

    With `before`, the write does not fail; `before` runs first.
    """

    def __init__(
        self, store: MetadataStore, fail_at: int, *, done: bool, before: Callable[[], Any] | None = None
    ) -> None:
        self._before = before
        self._store = store
        self._fail_at = fail_at
        self._done = done
        self.writes = 0
        self.get, self.scan, self.children, self.delete = store.get, store.scan, store.children, store.delete

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        return int(await self._write(lambda: self._store.put(key, value, **options)))

    async def transact(self, checks: Any, operations: Any, reads: Any = ()) -> Any:
        return await self._write(lambda: self._store.transact(checks, operations, reads))

    async def _write(self, act: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes != self._fail_at:
            return await act()
        if self._before is not None:
            await self._before()
            return await act()
        if self._done:
            await act()
            raise MetadataUnknownError("no answer")
        raise MetadataUnavailableError("away")


async def backed_up(folder: Path, *, recovery_off: bool = False) -> tuple[ObjectStore, Manifest, dict[str, bytes]]:
    """A backup of a cluster with ids, counters and many nodes, and what it had."""
    (folder / "backups").mkdir()
    store = await LocalMetadataStore.open(str(folder / "old"))
    await initialise(store, SystemChance())
    for _ in range(4):
        await LedgerIds(store).next_id()
    await store.put(layout.ledger_path(LedgerId(4)), b"four")
    await store.put("/ledgers/cookies/b1", b"cookie")
    await store.put("/ledgers/available/b1", b"here", ephemeral=True)
    for _ in range(3):
        await store.put("/counters/producer-name", b"")
    for number in range(120):
        await store.put(f"/managed-ledgers/t/n/persistent/{number:03d}", b"%d" % number * 10)
    await store.put(HOLD_PATH, b"an older hold")
    if recovery_off:
        await RecoveryControls(store).disable()
    there = {node.key: node.value async for page in store.scan("/") for node in page if not node.ephemeral}
    objects = open_object_store(f"file://{folder}/backups", {})
    manifest = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    await store.close()
    return objects, manifest, there


async def do_restore(store: Any, objects: ObjectStore, manifest: Manifest) -> None:
    seen = await inspect_store(store, manifest)
    await restore(store, objects, manifest, seen, await inspect_backup(objects, manifest), clock=SetClock())


async def assert_restored(store: MetadataStore, manifest: Manifest, there: dict[str, bytes]) -> None:
    now = {node.key: node.value async for page in store.scan("/") for node in page}
    own = {RESTORATION, HOLD_PATH, DISABLE, EPOCH_PATH, layout.LONG_ID_COUNTERS, high_path(2)}
    assert {key: value for key, value in now.items() if key not in own} == {
        key: value for key, value in there.items() if key not in own
    }
    assert own <= now.keys()
    assert manifest.name in (await read_collection_hold(store) or "")
    assert await read_instance_id(store) == manifest.instance_id
    names = await store.get("/counters/producer-name")
    assert names is not None and names.version >= 2 + MARGIN


async def test_restore_writes_all_but_sessions_under_a_hold_with_reserved_ids(tmp_path: Path) -> None:
    objects, manifest, there = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    await do_restore(store, objects, manifest)
    await assert_restored(store, manifest, there)
    assert await store.get("/ledgers/available/b1") is None
    assert not await RecoveryControls(store).is_enabled()
    assert await LedgerIds(store).next_id() == 2 << 32 | 1
    with pytest.raises(BackupError, match="was already restored from backup"):
        await inspect_store(store, manifest)
    await store.close()


@pytest.mark.parametrize("done", [False, True])
async def test_restore_continues_after_a_crash_at_any_write(tmp_path: Path, done: bool) -> None:
    objects, manifest, there = await backed_up(tmp_path)
    fail_at, failed = 0, True
    while failed:
        fail_at += 1
        store = await LocalMetadataStore.open(str(tmp_path / f"new{fail_at}"))
        failing = FailingStore(store, fail_at, done=done)
        try:
            await do_restore(failing, objects, manifest)
        except MetadataError:
            pass
        failed = failing.writes >= fail_at
        found = await read_restoration(store)
        if found is None or found.value.state is RestorationState.WRITING:
            # Bookies see no cluster yet, and the hold exists once anything does.
            assert await read_instance_id(store) is None
            names = [node.key async for page in store.scan("/") for node in page]
            assert not names or await read_collection_hold(store) is not None
            await do_restore(store, objects, manifest)
        await assert_restored(store, manifest, there)
        await store.close()
    assert fail_at > 8


@pytest.mark.parametrize("key", ["/admin/x", "/ledgers/00/0000/L0001", "/ledgers/cookies/b", "/ledgers/idgen"])
async def test_store_with_content_is_refused(tmp_path: Path, key: str) -> None:
    _, manifest, _ = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    await store.put(key, b"")
    with pytest.raises(BackupError, match=f"not empty .it holds {key}"):
        await inspect_store(store, manifest)
    await store.close()


async def test_nodes_from_the_start_of_a_bookie_are_replaced(tmp_path: Path) -> None:
    objects, manifest, there = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    assert await initialise(store, SystemChance()) != manifest.instance_id
    await store.put("/ledgers/available/b1", b"here", ephemeral=True)
    assert (await inspect_store(store, manifest)).registered == ("b1",)
    await do_restore(store, objects, manifest)
    await store.delete("/ledgers/available/b1")
    await assert_restored(store, manifest, there)
    await store.close()


async def test_restore_of_another_backup_is_refused(tmp_path: Path) -> None:
    objects, manifest, _ = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    with pytest.raises(MetadataUnavailableError):
        await do_restore(FailingStore(store, 2, done=False), objects, manifest)
    (tmp_path / "b").mkdir()
    _, other, _ = await backed_up(tmp_path / "b")
    with pytest.raises(BackupError, match="a restore of backup"):
        await inspect_store(store, other)
    with pytest.raises(BackupError, match="is incomplete"):
        await under_review(store)
    await store.close()


async def test_cluster_id_created_after_the_first_step_does_not_stop_the_next_run(tmp_path: Path) -> None:
    objects, manifest, there = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    with pytest.raises(MetadataUnavailableError):
        await do_restore(FailingStore(store, 2, done=False), objects, manifest)
    await store.put(layout.INSTANCE_ID, b"of a start that had looked before")
    await do_restore(store, objects, manifest)
    await assert_restored(store, manifest, there)
    await store.close()


@pytest.mark.parametrize("stalls_at", [2, 3, 4])
async def test_stalled_restore_does_not_bring_back_nodes_deleted_since(tmp_path: Path, stalls_at: int) -> None:
    objects, manifest, there = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    topics = [key for key in there if key.startswith("/managed-ledgers/")]

    async def run_other_restore_and_delete() -> None:
        await do_restore(store, objects, manifest)
        await release(store, await under_review(store))
        for key in topics:
            await store.delete(key)

    late = FailingStore(store, stalls_at, done=False, before=run_other_restore_and_delete)
    with pytest.raises(BackupError, match="meanwhile"):
        await do_restore(late, objects, manifest)
    assert await store.children("/managed-ledgers/t/n/persistent") == []
    await store.close()


async def test_concurrent_write_during_the_restore_is_noticed(tmp_path: Path) -> None:
    objects, manifest, _ = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    with pytest.raises(MetadataUnavailableError):
        await do_restore(FailingStore(store, 2, done=False), objects, manifest)
    await store.put("/managed-ledgers/t/n/persistent/007", b"a broker was here")
    with pytest.raises(BackupError, match="another client is writing"):
        await do_restore(store, objects, manifest)
    await store.delete("/managed-ledgers/t/n/persistent/007")
    await store.put("/zzz", b"")
    with pytest.raises(BackupError, match="/zzz is not in the backup"):
        await do_restore(store, objects, manifest)
    assert await read_instance_id(store) is None
    await store.close()


def held(*ledgers: int) -> Holdings:
    return Holdings({BookieId("b1"): {LedgerId(one): Held(EntryId(1), False, False) for one in ledgers}})


async def restored(folder: Path, **options: bool) -> LocalMetadataStore:
    objects, manifest, _ = await backed_up(folder, **options)
    store = await LocalMetadataStore.open(str(folder / "new"))
    await do_restore(store, objects, manifest)
    return store


@pytest.mark.parametrize(
    ("ledgers", "complete", "puts_max", "long"),
    [
        ((4, 300), True, 10_000, False),
        ((), True, 10_000, False),
        ((4, 300), False, 10_000, True),
        ((4, 300), True, 100, True),
        ((4, 1 << 32 | 7), True, 10_000, True),
        ((4, 2 << 32 | 7), True, 10_000, True),
        ((4, 9 << 32 | 7), True, 10_000, True),
    ],
)
async def test_new_ids_are_above_all_on_bookies(
    tmp_path: Path, ledgers: tuple[int, ...], complete: bool, puts_max: int, long: bool
) -> None:
    store = await restored(tmp_path)
    restoration = (await under_review(store)).value
    ids = await settle_ids(store, restoration, held(*ledgers), complete=complete, puts_max=puts_max)
    fresh = await LedgerIds(store).next_id()
    assert ids.long is long
    assert fresh > max((4, *ledgers)) and fresh > ids.above
    assert (fresh >= 1 << 32) is long
    # Repeats it, as after an interrupted release.
    assert (await settle_ids(store, restoration, held(*ledgers), complete=complete, puts_max=puts_max)).long is long
    await store.close()


async def test_restore_raises_the_epoch_above_that_of_the_backup(tmp_path: Path) -> None:
    objects, manifest, _ = await backed_up(tmp_path)
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    await do_restore(store, objects, manifest)
    first = await read_epoch(store)
    assert first == SetClock().now_ms() // 1000
    # The epoch of a later restore rises even when the clock stands still or was set back.
    again = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    other = await LocalMetadataStore.open(str(tmp_path / "newer"))
    await do_restore(other, objects, again)
    assert await read_epoch(other) == first + 1
    await store.close()
    await other.close()


async def test_return_to_short_ids_raises_the_epoch(tmp_path: Path) -> None:
    """A bookie that noted the counter of long ids finds it missing afterwards."""
    store = await restored(tmp_path)
    before = await read_epoch(store)
    restoration = (await under_review(store)).value
    assert not (await settle_ids(store, restoration, held(4), complete=True)).long
    assert await read_epoch(store) == before + 1
    await raise_epoch(store, 0)
    assert await read_epoch(store) == before + 2
    await store.close()


async def test_long_ids_stay_once_one_was_issued(tmp_path: Path) -> None:
    store = await restored(tmp_path)
    given = await LedgerIds(store).next_id()
    restoration = (await under_review(store)).value
    assert (await settle_ids(store, restoration, held(4), complete=True)).long
    assert await LedgerIds(store).next_id() == given + 1
    await store.close()


async def test_new_ledger_would_reuse_an_id_without_the_reserved_ids(tmp_path: Path) -> None:
    store = await restored(tmp_path)
    await store.delete(high_path(2))
    await store.delete(layout.LONG_ID_COUNTERS)
    assert await LedgerIds(store).next_id() <= 4
    await store.close()


@pytest.mark.parametrize("recovery_off", [False, True])
async def test_backup_taken_during_a_review_keeps_the_settings_before_it(tmp_path: Path, recovery_off: bool) -> None:
    """The switch and id counters that the review set must not become those of the cluster."""
    store = await restored(tmp_path, recovery_off=recovery_off)
    before = (await under_review(store)).value
    objects = open_object_store(f"file://{tmp_path}/backups", {})
    manifest = await take_backup(store, objects, clock=SetClock(), chance=SystemChance())
    await store.close()
    second = await LocalMetadataStore.open(str(tmp_path / "second"))
    await do_restore(second, objects, manifest)
    after = (await under_review(second)).value
    assert (after.recovery_was_off, after.short_ids_given) == (recovery_off, before.short_ids_given)
    assert after.short_ids_given == 4 and after.reserved_high > before.reserved_high
    await second.close()


@pytest.mark.parametrize("recovery_off", [False, True])
async def test_release_ends_hold_and_review_and_restores_the_switch(tmp_path: Path, recovery_off: bool) -> None:
    store = await restored(tmp_path, recovery_off=recovery_off)
    await give_up(store, LedgerId(9))
    assert await given_up(store) == {9}
    await let_return(store, BookieId("b7"))
    waiting = asyncio.ensure_future(wait_until_settled(store, lambda *_: None))
    await asyncio.sleep(0)
    await release(store, await under_review(store))
    assert await read_collection_hold(store) is None and await read_restoration(store) is None
    assert await RecoveryControls(store).is_enabled() is not recovery_off
    assert await given_up(store) == frozenset() and not await may_return(store, BookieId("b7"))
    with pytest.raises(BackupError, match="no restore is under review"):
        await under_review(store)
    waiting.cancel()
    await asyncio.wait_for(wait_until_settled(store, lambda *_: None), 1)
    await store.close()


def test_hold_stays_until_everything_is_decided() -> None:
    def found(ledger: int, kind: Kind) -> Difference:
        return Difference(LedgerId(ledger), kind, (BookieId("b1"),), EntryId(1), "why")

    review = Review([found(1, Kind.ORPHAN), found(2, Kind.OUTDATED), found(3, Kind.GONE)], {LedgerId(4): "timeout"}, 9)
    holdings = Holdings({}, {BookieId("b2"): "bookie b2 is not registered"})
    lines = undecided(review, holdings, (), ()).lines
    assert [line.split(":")[0] for line in lines] == [
        "bookie b2 is not registered; start it, or give --without b2 when it is permanently lost",
        "ledger 4 could not be compared",
        "ledger 1 is orphan",
        "ledger 2 is outdated",
    ]
    decided = {
        LedgerId(1),
        LedgerId(2),
        LedgerId(4),
    }  # includes a damaged ledger, which must not keep the hold for ever
    assert undecided(review, holdings, decided, [BookieId("b2")]).lines == []


async def test_counter_is_raised_and_never_lowered(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(str(tmp_path / "new"))
    assert await raise_counter(store, "/c", 300) == 301
    node = await store.get("/c")
    assert node is not None and node.version == 300
    assert await raise_counter(store, "/c", 200) == 0
    await store.close()
