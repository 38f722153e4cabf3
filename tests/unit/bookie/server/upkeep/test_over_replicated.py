"""Tests of copies that no ensemble names: when they may be deleted, and everything that prevents it."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from quire_bookie.errors import DamagedError, MetadataUnavailableError
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.metadata.under_replication import ReplicationLocks, lock_path, mark_path
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.server.upkeep.over_replicated import OverReplicatedCopies, is_superfluous
from quire_bookie.settings.collection import OverReplicatedSettings
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.storage.entry_ranges import EntryRange
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadata, SimMetadataStore

ME = BookieId("me-1")
DAY_S = 86_400.0


class FakeStorage:
    """Holds ledgers with their entry ranges."""

    def __init__(self, *held: int) -> None:
        self.held = {LedgerId(number): [(EntryId(0), EntryId(9))] for number in held}
        self.infos = {ledger: LedgerInfo(ledger, b"") for ledger in self.held}
        self.in_limbo = False
        self.damaged: set[int] = set()

    async def ledgers(self) -> list[LedgerId]:
        return sorted(self.held)

    async def load_ledger(self, ledger: LedgerId, /) -> LedgerInfo | None:
        return self.infos.get(ledger)

    async def entry_ranges(self, ledger: LedgerId, /) -> list[EntryRange]:
        if ledger in self.damaged:
            raise DamagedError("index", 0, "test")
        return list(self.held[ledger])

    async def delete_copy(self, ledger: LedgerId, unchanged: Unchanged, /) -> bool:
        await self.before_delete(ledger)
        if not unchanged.still:
            return False
        del self.held[ledger]
        return True

    async def before_delete(self, ledger: LedgerId) -> None:
        """Called while the deletion waits for a flush."""


class World:
    """Holds one bookie's copies and a metadata store, on virtual time."""

    def __init__(self, *held: int) -> None:
        self.server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
        self.store = SimMetadataStore(self.server)
        self.storage = FakeStorage(*held)
        self.checks = 0
        self.copies = OverReplicatedCopies(
            self.storage,
            self.store,
            ME,
            ReplicationLocks(self.store, "my host"),
            self.check,
            OverReplicatedSettings(interval_s=DAY_S),
        )
        self.now_s = 0.0

    async def check(self) -> None:
        self.checks += 1

    def put(self, ledger: int, *ensembles: str, state: LedgerState = LedgerState.CLOSED) -> None:
        segments = tuple(Segment(EntryId(at * 10), (BookieId(name),)) for at, name in enumerate(ensembles))
        metadata = LedgerMetadata(1, 1, 1, segments, state=state)
        if state is LedgerState.CLOSED:
            metadata = replace(metadata, last_entry=EntryId(99), length=1)
        self.server.write(ledger_path(LedgerId(ledger)), encode_ledger_metadata(metadata), None)

    async def first_check(self) -> None:
        """Let a day pass, then search."""
        assert await self.copies.run_round() == []
        self.copies._last_search_s = -1e9
        assert await self.copies.run_round() == []


def simulated(work: Callable[[World], Awaitable[None]], *held: int) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        await work(World(*held))

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_closed_ledger_on_other_bookies_is_superfluous() -> None:
    others = LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (BookieId("other"),)),), state=LedgerState.CLOSED)
    assert is_superfluous(others, ME)
    assert not is_superfluous(replace(others, state=LedgerState.OPEN), ME)
    assert not is_superfluous(replace(others, state=LedgerState.IN_RECOVERY), ME)
    both = (*others.segments, Segment(EntryId(5), (ME,)))
    assert not is_superfluous(replace(others, segments=both), ME)


def test_a_superfluous_copy_is_deleted_at_the_second_check() -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        world.put(2, "other", "me-1")
        world.put(3, "other", state=LedgerState.OPEN)
        world.put(4, "other", state=LedgerState.IN_RECOVERY)
        await world.first_check()
        assert await world.copies.run_round() == [1]
        assert sorted(world.storage.held) == [2, 3, 4, 5]
        assert world.checks == 1
        assert lock_path(LedgerId(1)) not in world.server.nodes, "the lock was released"
        assert ("created", lock_path(LedgerId(1))) in world.server.history

    simulated(work, 1, 2, 3, 4, 5)


def test_it_searches_once_per_interval_and_never_when_turned_off() -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        for _ in range(5):
            assert await world.copies.run_round() == []
        assert world.storage.held
        off = OverReplicatedCopies(
            world.storage, world.store, ME, world.copies._locks, world.check, OverReplicatedSettings(interval_s=0.0)
        )
        off._last_search_s = -1e9
        for _ in range(3):
            assert await off.run_round() == []

    simulated(work, 1)


Change = Callable[[World], None]


def _named_again(world: World) -> None:
    world.put(1, "other", "me-1")


def _marked(world: World) -> None:
    world.server.write(mark_path(LedgerId(1)), b"", None)


def _locked(world: World) -> None:
    world.server.write(lock_path(LedgerId(1)), b'bookieId: "java"\n', 77)


def _deleted_in_the_metadata(world: World) -> None:
    world.server.remove(ledger_path(LedgerId(1)))


def _being_copied(world: World) -> None:
    world.storage.held[LedgerId(1)].append((EntryId(20), EntryId(21)))


def _bookie_in_limbo(world: World) -> None:
    world.storage.in_limbo = True


def _ledger_in_limbo(world: World) -> None:
    world.storage.infos[LedgerId(1)].limbo = True


def _damaged(world: World) -> None:
    world.storage.damaged.add(1)


def _unreadable_metadata(world: World) -> None:
    world.server.write(ledger_path(LedgerId(1)), b"rubbish", None)


@pytest.mark.parametrize(
    "change",
    [
        _named_again,
        _marked,
        _locked,
        _deleted_in_the_metadata,
        _being_copied,
        _bookie_in_limbo,
        _ledger_in_limbo,
        _damaged,
        _unreadable_metadata,
    ],
)
def test_a_change_between_the_checks_keeps_the_copy(change: Change) -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        await world.first_check()
        change(world)
        assert await world.copies.run_round() == []
        assert LedgerId(1) in world.storage.held
        if change is _locked:
            assert world.server.nodes[lock_path(LedgerId(1))].session == 77, "the lock of another owner stays"

    simulated(work, 1)


@pytest.mark.parametrize("change", [_named_again, _marked, _bookie_in_limbo, _ledger_in_limbo, _damaged])
def test_a_copy_that_must_stay_at_the_first_check_is_not_a_candidate(change: Change) -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        change(world)
        await world.first_check()
        assert await world.copies.run_round() == []
        assert LedgerId(1) in world.storage.held

    simulated(work, 1)


def test_the_metadata_is_read_after_the_lock_was_taken() -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        await world.first_check()
        original = world.store.put

        async def put(key: str, value: bytes, **options: object) -> int:
            version = await original(key, value, **options)  # type: ignore[arg-type]
            world.put(1, "other", "me-1")  # its replication had just ended when the lock became free
            return version

        world.store.put = put  # type: ignore[method-assign]
        assert await world.copies.run_round() == []
        assert LedgerId(1) in world.storage.held

    simulated(work, 1)


def test_a_lock_that_is_lost_during_the_check_keeps_the_copy() -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        await world.first_check()
        original = world.storage.entry_ranges

        async def entry_ranges(ledger: LedgerId, /) -> list[EntryRange]:
            world.store.expire()
            return await original(ledger)

        world.storage.entry_ranges = entry_ranges  # type: ignore[method-assign]
        assert await world.copies.run_round() == []
        assert LedgerId(1) in world.storage.held

    simulated(work, 1)


def test_a_refusal_of_deletions_ends_the_round_with_nothing_deleted() -> None:
    async def work(world: World) -> None:
        world.put(1, "other")
        await world.first_check()

        async def refuse() -> None:
            raise MetadataUnavailableError("on hold")

        world.copies._check = refuse
        with pytest.raises(MetadataUnavailableError):
            await world.copies.run_round()
        assert LedgerId(1) in world.storage.held
        assert await world.copies.run_round() == [], "the next search is not due yet"

    simulated(work, 1)


def test_a_copy_that_is_replicated_again_while_the_deletion_waits_for_a_flush_stays() -> None:
    async def work(world: World) -> None:
        async def replicate(ledger: LedgerId) -> None:
            """Copy the ledger here again: the session and its lock were lost during the wait for a flush."""
            world.storage.infos[ledger].rewrites += 1
            world.put(ledger, "other", "me-1")

        world.storage.before_delete = replicate  # type: ignore[method-assign]
        world.put(1, "other")
        await world.first_check()
        assert await world.copies.run_round() == []
        assert sorted(world.storage.held) == [1]

    simulated(work, 1)
