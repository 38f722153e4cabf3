"""Tests of quarantine: ledgers missing in the metadata are kept for a time, which must never pass too early."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from quire_bookie.errors import ConfigError, MetadataError, MetadataUnavailableError
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.restoration import RESTORATION, Restoration, RestorationState, encode_restoration
from quire_bookie.metadata.store import SessionState
from quire_bookie.model import LedgerId
from quire_bookie.server.upkeep import garbage_collection
from quire_bookie.server.upkeep.collection_doubts import CollectionHeldError, InDoubtError
from quire_bookie.server.upkeep.garbage_collection import GarbageCollection
from quire_bookie.server.upkeep.quarantine_rules import due, released
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.storage.ledger_quarantine import QuarantinedLedger, QuarantineState
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.bookie.server.upkeep.test_garbage_collection import INSTANCE, FakeStorage, add, new_fuse

KEEP = GarbageCollectionSettings(quarantine=QuarantineSettings(100.0, 10.0))
FULL = 101.0


class Rounds:
    """Runs rounds of garbage collection at chosen intervals."""

    def __init__(self, *held: int, named: tuple[int, ...] = ()) -> None:
        self.server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
        self.server.write("/ledgers/INSTANCEID", INSTANCE.encode(), None)
        add(self.server, *named)
        self.store = SimMetadataStore(self.server)
        self.storage = FakeStorage(*held)
        self.collection = GarbageCollection(self.storage, self.store, INSTANCE, new_fuse(), KEEP)
        self.collection.doubts.watch_session()

    async def after(self, *pauses_s: float) -> list[LedgerId]:
        """Run a round after each pause; return the deleted ledgers."""
        deleted: list[LedgerId] = []
        for pause_s in pauses_s:
            await asyncio.sleep(pause_s)
            deleted += await self.collection.run_round()
        return deleted

    async def fails(self, error: type[Exception], match: str) -> None:
        """Assert that a round fails with this error, and counts as a doubt."""
        with pytest.raises(error, match=match):
            await self.collection.run_round()
        assert self.collection.stats.in_doubt == 1

    @property
    def quarantined(self) -> set[int]:
        """The ledgers in quarantine."""
        return {one.ledger for one in self.storage.ledger_quarantine.known.values() if not one.is_undeleted}


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a loop with virtual time."""

    async def scenario(_: SimLoop) -> None:
        await test()

    def run() -> None:
        simulate(scenario, seed=1, time_limit_s=1e9)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_virtual_time
async def test_a_missing_ledger_is_kept_for_its_time_and_then_deleted() -> None:
    rounds = Rounds(1, 2, 3, named=(2,))
    assert await rounds.after(0.0, 1.0) == []
    assert rounds.quarantined == {1, 3}
    assert rounds.storage.held == {1, 2, 3}
    assert await rounds.after(50.0, 49.0) == []
    assert await rounds.after(2.0) == [1, 3]
    assert (rounds.storage.held, rounds.quarantined) == ({2}, set())
    stats = rounds.collection.stats
    assert (stats.ledgers_quarantined, stats.ledgers_deleted, stats.ledgers_returned) == (2, 2, 0)


@on_virtual_time
async def test_a_ledger_that_the_metadata_names_again_leaves_quarantine_and_its_time_restarts() -> None:
    rounds = Rounds(1)
    await rounds.after(0.0, 1.0, 90.0)
    add(rounds.server, 1)
    await rounds.after(1.0)
    assert (rounds.quarantined, rounds.collection.stats.ledgers_returned) == (set(), 1)
    rounds.server.remove(ledger_path(LedgerId(1)))
    assert await rounds.after(1.0, 1.0, 90.0) == []
    assert rounds.quarantined == {1}
    assert await rounds.after(20.0) == [1]


@on_virtual_time
async def test_a_node_that_appears_after_the_last_listing_saves_its_ledger() -> None:
    rounds = Rounds(1)
    await rounds.after(0.0, 1.0)
    listing = rounds.store.scan

    async def scan(prefix: str, **options: Any) -> AsyncIterator[Any]:
        async for page in listing(prefix, **options):
            yield page
        add(rounds.server, 1)

    rounds.store.scan = scan  # type: ignore[method-assign]
    assert await rounds.after(FULL) == []
    assert rounds.storage.held == {1}


@on_virtual_time
async def test_time_on_either_side_of_a_failed_listing_does_not_count() -> None:
    rounds = Rounds(1, 2, named=(2,))
    await rounds.after(0.0, 1.0)
    listing = rounds.store.scan

    async def scan(prefix: str, **options: Any) -> AsyncIterator[Any]:
        raise MetadataUnavailableError("compacted")
        yield listing(prefix, **options)

    rounds.store.scan = scan  # type: ignore[method-assign]
    await asyncio.sleep(1000.0)
    await rounds.fails(MetadataUnavailableError, "compacted")
    rounds.store.scan = listing  # type: ignore[method-assign]
    assert await rounds.after(1000.0) == [], "the time since the failed round does not count"
    assert await rounds.after(99.0) == []
    assert rounds.collection.stats.in_doubt == 0
    assert await rounds.after(2.0) == [1]


@on_virtual_time
async def test_a_hold_stops_the_time() -> None:
    rounds = Rounds(1)
    await rounds.after(0.0, 1.0)
    await rounds.store.put(HOLD_PATH, b"metadata is checked")
    await asyncio.sleep(1000.0)
    await rounds.fails(CollectionHeldError, "metadata is checked")
    await rounds.store.delete(HOLD_PATH)
    assert await rounds.after(1000.0, 99.0) == []
    assert await rounds.after(2.0) == [1]


@on_virtual_time
async def test_an_open_restoration_is_a_doubt_even_without_a_hold() -> None:
    rounds = Rounds(1)
    await rounds.after(0.0, 1.0)
    found = Restoration("b7", INSTANCE, RestorationState.REVIEW, 0, 0, 0, recovery_was_off=False)
    rounds.server.write(RESTORATION, encode_restoration(found), None)
    await asyncio.sleep(FULL)
    await rounds.fails(InDoubtError, "restored from backup b7")
    assert rounds.storage.held == {1}


@on_virtual_time
async def test_a_blown_fuse_stops_the_time() -> None:
    rounds = Rounds(*range(30), named=tuple(range(1, 30)))
    await rounds.after(0.0, 1.0)
    assert rounds.quarantined == {0}
    for ledger in range(1, 30):
        rounds.server.remove(ledger_path(LedgerId(ledger)))
    assert await rounds.after(1000.0, 1000.0) == []
    assert rounds.collection.fuse.blown is not None
    add(rounds.server, *range(1, 30))
    assert await rounds.after(1000.0, 99.0) == []
    assert await rounds.after(2.0) == [0]


@on_virtual_time
async def test_a_lost_session_stops_the_time_and_restarts_the_count_of_rounds() -> None:
    rounds = Rounds(1, 2, named=(2,))
    await rounds.after(0.0)
    rounds.store._tell(SessionState.LOST)
    await rounds.fails(InDoubtError, "session with the metadata store is lost")
    rounds.store._tell(SessionState.RENEWED)
    await rounds.after(1.0)
    assert rounds.quarantined == set(), "the round of the former session does not count"
    await rounds.after(1.0)
    assert rounds.quarantined == {1}
    rounds.store.expire()  # lost and renewed between two rounds
    assert await rounds.after(1000.0, 99.0) == []
    assert await rounds.after(2.0) == [1]


@on_virtual_time
async def test_a_replaced_session_ends_the_round() -> None:
    rounds = Rounds(1, 2, named=(2,))
    await rounds.after(0.0, 1.0)
    listing = rounds.store.scan

    async def scan(prefix: str, **options: Any) -> AsyncIterator[Any]:
        async for page in listing(prefix, **options):
            yield page
        rounds.store.expire()

    rounds.store.scan = scan  # type: ignore[method-assign]
    await asyncio.sleep(FULL)
    await rounds.fails(InDoubtError, "lost during this round")
    assert rounds.storage.held == {1, 2}


@on_virtual_time
async def test_an_added_source_is_checked_before_quarantine_and_before_the_deletion() -> None:
    rounds = Rounds(1, 2, named=(2,))
    epoch: list[str | None] = ["the metadata is of epoch 3, and 4 was seen"]

    async def source() -> str | None:
        return epoch[0]

    rounds.collection.doubts.add(source)
    await rounds.fails(InDoubtError, "epoch 3")
    epoch[0] = None
    await rounds.after(0.0, 1.0)
    assert rounds.quarantined == {1}
    epoch[0] = "the metadata is of epoch 3, and 4 was seen"
    await asyncio.sleep(FULL)
    await rounds.fails(MetadataError, "epoch 3")
    assert rounds.storage.held == {1, 2}


@on_virtual_time
async def test_the_fuse_counts_only_newly_missing_ledgers() -> None:
    rounds = Rounds(*range(40), named=tuple(range(40)))
    for first in (0, 9, 18, 27):
        for ledger in range(first, first + 9):
            rounds.server.remove(ledger_path(LedgerId(ledger)))
        await rounds.after(1.0, 1.0)
    assert rounds.collection.fuse.blown is None, "never more than nine at once"
    assert rounds.quarantined == set(range(36))


@on_virtual_time
async def test_an_undeleted_ledger_stays_until_the_metadata_names_it_or_its_time_has_passed() -> None:
    rounds = Rounds(1, 2, 3, named=(3,))
    await rounds.after(0.0, 1.0)
    rounds.storage.ledger_quarantine.undelete(1)
    rounds.storage.ledger_quarantine.undelete(2, lasts_ms=500_000)
    assert await rounds.after(400.0, 50.0) == []
    assert rounds.quarantined == set()
    await rounds.after(100.0, 1.0)
    assert rounds.quarantined == {2}, "the time of its undeletion has passed, so it is quarantined again"
    assert await rounds.after(99.0) == []
    assert await rounds.after(10_000.0) == [2]
    add(rounds.server, 1)
    await rounds.after(1.0)
    assert rounds.storage.ledger_quarantine.known == {}
    assert rounds.storage.held == {1, 3}


@on_virtual_time
async def test_an_undeletion_during_a_round_is_not_too_late() -> None:
    rounds = Rounds(1)
    await rounds.after(0.0, 1.0)
    exists = rounds.collection._nodes.exists

    async def slowly(ledger: LedgerId) -> bool:
        found = await exists(ledger)
        rounds.storage.ledger_quarantine.undelete(1)
        return found

    rounds.collection._nodes.exists = slowly  # type: ignore[method-assign]
    assert await rounds.after(FULL) == []
    assert rounds.storage.held == {1}


@on_virtual_time
async def test_on_an_almost_full_disk_the_oldest_are_deleted_first_but_none_before_the_minimum_time() -> None:
    rounds = Rounds(1, 2, 3, named=(3,))
    rounds.collection.excess_bytes = lambda: 50
    await rounds.after(0.0, 1.0)
    assert await rounds.after(9.0) == []
    assert await rounds.after(2.0) == [1], "its 100 bytes are enough"
    rounds.collection.excess_bytes = lambda: 0
    assert await rounds.after(50.0) == []
    assert rounds.quarantined == {2}


async def test_above_the_bound_new_ledgers_stay_outside_quarantine_until_older_ones_may_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage_collection, "GC_QUARANTINE_LEDGERS_MAX", 2)

    @on_virtual_time
    async def test() -> None:
        rounds = Rounds(1, 2, 3)
        assert await rounds.after(0.0, 1.0, 1.0) == []
        assert rounds.quarantined == {1, 2}
        assert await rounds.after(10.0) == [1], "its minimum time has passed"
        assert rounds.quarantined == {2, 3}
        assert rounds.storage.held == {2, 3}

    await asyncio.to_thread(test)


@on_virtual_time
async def test_turning_quarantine_off_deletes_quarantined_ledgers_but_not_undeleted_ones() -> None:
    rounds = Rounds(1, 2, 3)
    await rounds.after(0.0, 1.0)
    rounds.storage.ledger_quarantine.undelete(2)
    rounds.storage.held.add(LedgerId(4))
    rounds.collection._settings = GarbageCollectionSettings(quarantine=QuarantineSettings(0.0))
    assert await rounds.after(1.0, 1.0) == [1, 3, 4]
    assert rounds.storage.held == {2}


# ---- the decisions
def record(ledger: int, at_ms: int, *, size: int = 10, undeleted: bool = False, lasts_ms: int = 0) -> QuarantinedLedger:
    state = QuarantineState.UNDELETED if undeleted else QuarantineState.QUARANTINED
    return QuarantinedLedger(LedgerId(ledger), state, 0, at_ms, lasts_ms, 1, size, "")


def test_the_order_is_by_age_and_undeleted_ones_are_never_due() -> None:
    known = [record(1, 500), record(2, 100), record(3, 300, undeleted=True), record(4, 200)]
    settings = QuarantineSettings(1.0, 0.5)
    assert due(known, 1000, settings) == []
    assert due(known, 1100, settings) == [2]
    assert due(known, 10_000, settings) == [2, 4, 1]
    assert due(known, 1000, settings, excess_bytes=11) == [2, 4]
    assert due(known, 1000, settings, excess_bytes=10_000) == [2, 4, 1]
    assert due(known, 600, settings, excess_bytes=10_000) == [2]
    assert due(known, 1000, settings, excess_ledgers=1) == [2]


def test_the_minimum_time_is_never_more_than_the_full_one() -> None:
    assert QuarantineSettings(5.0, 100.0).keep_min_ms == 5000
    assert due([record(1, 0)], 0, QuarantineSettings(0.0)) == [1]


@pytest.mark.parametrize("values", [(-1.0, 0.0), (1.0, -0.1)])
def test_a_time_below_zero_is_refused(values: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match=r"gcQuarantine(Min)?Seconds"):
        QuarantineSettings(*values)


def test_ledgers_that_are_named_again_and_expired_undeletions_are_released() -> None:
    known = [record(1, 0), record(2, 0), record(3, 0, undeleted=True, lasts_ms=50), record(4, 0, undeleted=True)]
    missing = {LedgerId(2), LedgerId(3), LedgerId(4)}
    assert released(known, 49, missing) == [1]
    assert released(known, 50, missing) == [1, 3]
