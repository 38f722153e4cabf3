"""Marks and locks of under-replicated ledgers: BookKeeper's nodes, merged and removed without losing anything."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata.store import Node
from quire_bookie.metadata.under_replication import (
    Mark,
    ReplicationLocks,
    UnderReplication,
    decode_mark,
    encode_lock,
    encode_mark,
    ledger_of_mark,
    lock_path,
    mark_path,
)
from quire_bookie.model import BookieId, LedgerId
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.golden_etcd import history

LEDGER = LedgerId(0x1234_5678_9ABC)


@pytest.fixture
def server() -> SimMetadata:
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


class _Counting(SimMetadataStore):
    """Marks another ledger right before or after it counts."""

    marks_first = True

    async def count(self, prefix: str) -> int:
        other = UnderReplication(SimMetadataStore(self._server), _Clock())
        if self.marks_first:
            await other.mark(LedgerId(2), [BookieId("b")])
        found = await super().count(prefix)
        if not self.marks_first:
            await other.mark(LedgerId(2), [BookieId("b")])
        return found


class _MarkedBeforePut(SimMetadataStore):
    """Another process marks a further bookie right before the first put."""

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        await UnderReplication(SimMetadataStore(self._server), _Clock()).mark(LEDGER, [B])
        return await super().put(key, value, expected=expected, ephemeral=ephemeral)


@pytest.mark.parametrize("marks_first", [True, False])
async def test_an_accepted_loss_marked_meanwhile_hides_no_other_ledger(server: SimMetadata, marks_first: bool) -> None:
    store = _Counting(server)
    store.marks_first = marks_first
    marks = UnderReplication(store, _Clock())
    await marks.mark(LedgerId(1), [BookieId("a")])
    assert (await marks.summary([LedgerId(2)])).count >= 1, "1 lacks replicas all the time"
    assert (await UnderReplication(SimMetadataStore(server), _Clock()).summary([LedgerId(2)])).count == 1


def test_the_paths_are_those_of_bookkeeper() -> None:
    assert mark_path(LEDGER) == "/ledgers/underreplication/ledgers/0000/1234/5678/9abc/urL20015998343868"
    assert mark_path(LedgerId(7)) == "/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
    assert lock_path(LedgerId(7)) == "/ledgers/underreplication/locks/urL0000000007"


def test_a_lock_names_its_owner_in_protobuf_text() -> None:
    assert encode_lock("host-1") == b'bookieId: "host-1"\n'
    assert encode_lock('a"b\\c') == b'bookieId: "a\\"b\\\\c"\n'


async def test_the_lock_has_one_owner_at_a_time(server: SimMetadata) -> None:
    ours = ReplicationLocks(SimMetadataStore(server), "a")
    theirs = ReplicationLocks(SimMetadataStore(server), "b")
    assert await ours.acquire(LEDGER)
    assert not await theirs.acquire(LEDGER)
    assert await ours.is_held(LEDGER)
    assert not await theirs.is_held(LEDGER)
    await theirs.release(LEDGER)
    assert await ours.is_held(LEDGER), "only the owner releases it"
    await ours.release(LEDGER)
    assert await theirs.acquire(LEDGER)


async def test_a_lost_session_loses_the_lock(server: SimMetadata) -> None:
    store = SimMetadataStore(server)
    locks = ReplicationLocks(store, "a")
    assert await locks.acquire(LEDGER)
    store.expire()
    assert not await locks.is_held(LEDGER)
    await locks.release(LEDGER)


async def test_a_lock_of_unknown_outcome_is_read_back(server: SimMetadata) -> None:
    taken = 0
    for seed in range(30):
        server.chance = random.Random(seed)
        server.unknown_chance = 0.9
        locks = ReplicationLocks(SimMetadataStore(server), "a")
        held = await locks.acquire(LEDGER)
        server.unknown_chance = 0.0
        assert held == await locks.is_held(LEDGER)
        taken += held
        server.remove(lock_path(LEDGER))
    assert 0 < taken < 30


async def test_a_lock_created_after_its_request_timed_out_still_has_an_owner(
    server: SimMetadata,
) -> None:
    """Found by seed 7 of the autorecovery scenario: the ledger stayed locked as long as the session lived."""
    made = asyncio.Event()
    server.on_write.append(lambda key: made.set())
    server.late_chance, server.late_s = 1.0, (0.01, 0.01)
    ours = ReplicationLocks(SimMetadataStore(server), "a")
    theirs = ReplicationLocks(SimMetadataStore(server), "b")
    assert not await ours.acquire(LEDGER)
    await ours.release_left()
    await made.wait()
    server.late_chance = 0.0
    assert not await theirs.acquire(LEDGER)
    assert await ours.acquire(LEDGER)
    assert not await ours.acquire(LEDGER), "it is locked now"
    await ours.release(LEDGER)
    assert await theirs.acquire(LEDGER)


async def test_owners_that_share_a_session_share_no_locks(server: SimMetadata) -> None:
    """Auto-recovery in a bookie's process uses the session of the bookie's garbage collection."""
    session = SimMetadataStore(server)
    recovery, collection = ReplicationLocks(session, "host-1"), ReplicationLocks(session, "host")
    assert await collection.acquire(LEDGER)
    server.late_chance, server.late_s = 1.0, (1e6, 1e6)
    assert not await recovery.acquire(LEDGER), "the outcome is unknown, and the existing lock is another's"
    server.late_chance = 0.0
    await recovery.release_left()
    assert await collection.is_held(LEDGER), "the existing lock is not the abandoned one"


async def test_an_unavailable_store_fails_the_lock_but_not_its_release(server: SimMetadata) -> None:
    locks = ReplicationLocks(SimMetadataStore(server), "a")
    assert await locks.acquire(LEDGER)
    server.away = True
    with pytest.raises(MetadataUnavailableError):
        await locks.acquire(LEDGER)
    await locks.release(LEDGER)


async def test_a_mark_is_detected(server: SimMetadata) -> None:
    locks = ReplicationLocks(SimMetadataStore(server), "a")
    assert not await locks.is_marked(LEDGER)
    server.write(mark_path(LEDGER), b'replica: "x"\n', None)
    assert await locks.is_marked(LEDGER)


async def test_a_lock_that_could_not_be_released_is_released_later(server: SimMetadata) -> None:
    ours = ReplicationLocks(SimMetadataStore(server), "a")
    theirs = ReplicationLocks(SimMetadataStore(server), "b")
    assert await ours.acquire(LEDGER)
    server.away = True
    await ours.release(LEDGER)
    server.away = False
    assert not await theirs.acquire(LEDGER), "the session lives on, and with it the lock"
    await ours.release_left()
    assert await theirs.acquire(LEDGER)
    await ours.release_left()
    assert await theirs.is_held(LEDGER), "a released lock may belong to another owner"


async def test_an_unreleased_lock_is_acquired_again_by_its_own_process(server: SimMetadata) -> None:
    ours = ReplicationLocks(SimMetadataStore(server), "a")
    assert await ours.acquire(LEDGER)
    server.away = True
    await ours.release(LEDGER)
    server.away = False
    assert await ours.acquire(LEDGER)
    await ours.release_left()
    assert await ours.is_held(LEDGER)


# ---- marks
class _Clock:
    def __init__(self) -> None:
        self.ms = 1795249087479

    def now_ms(self) -> int:
        return self.ms


A, B = BookieId("127.0.0.1:3187"), BookieId("b-2")


def test_a_mark_is_byte_for_byte_what_bookkeeper_writes() -> None:
    golden = next(change for change in history() if change.key == mark_path(LedgerId(1)) and change.kind == "PUT")
    assert encode_mark([A], 1795249087479) == golden.value
    mark = decode_mark(LedgerId(1), Node(golden.key, golden.value, 3))
    assert mark == Mark(LedgerId(1), (A,), 1795249087479, 3)


@given(st.integers(0, 2**63 - 1).map(LedgerId))
def test_a_ledger_is_decoded_from_the_path_of_its_mark(ledger: LedgerId) -> None:
    assert ledger_of_mark(mark_path(ledger)) == ledger


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/underreplication/ledgers/0000/0000/0000/0002/urL0000000001",
        "/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL1",
        "/ledgers/underreplication/locks/urL0000000001",
        "/ledgers/underreplication/ledgers/0000/0000/0000/0001",
    ],
)
def test_other_paths_are_not_marks(path: str) -> None:
    assert ledger_of_mark(path) is None


async def test_marks_are_merged_and_keep_the_time_of_the_first(server: SimMetadata) -> None:
    clock = _Clock()
    marks = UnderReplication(SimMetadataStore(server), clock)
    assert await marks.mark(LEDGER, [A])
    clock.ms += 5
    assert await marks.mark(LEDGER, [B, A])
    assert not await marks.mark(LEDGER, [A], again=False), "nothing new: no write"
    found = await marks.read(LEDGER)
    assert found is not None
    assert (set(found.bookies), found.marked_ms, found.version) == ({A, B}, 1795249087479, 1)


async def test_a_mark_written_again_survives_the_repair_for_the_first(server: SimMetadata) -> None:
    marks = UnderReplication(SimMetadataStore(server), _Clock())
    await marks.mark(LEDGER, [A])
    seen = await marks.read(LEDGER)
    assert seen is not None
    assert await marks.mark(LEDGER, [A]), "a running repair may not have checked the missing entry"
    assert not await marks.remove(seen)


async def test_a_renewed_mark_says_the_same_under_a_new_version(server: SimMetadata) -> None:
    marks = UnderReplication(SimMetadataStore(server), _Clock())
    await marks.renew(LEDGER)
    assert await marks.read(LEDGER) is None, "a ledger without a mark gets none"
    await marks.mark(LEDGER, [A, B])
    before = await marks.read(LEDGER)
    assert before is not None
    await marks.renew(LEDGER)
    assert await marks.read(LEDGER) == replace(before, version=before.version + 1)
    assert not await marks.remove(before), "a worker that is busy with the ledger looks again"


async def test_a_renewal_never_overwrites_another_change_of_the_mark(server: SimMetadata) -> None:
    store, marks = _MarkedBeforePut(server), UnderReplication(SimMetadataStore(server), _Clock())
    await marks.mark(LEDGER, [A])
    await UnderReplication(store, _Clock()).renew(LEDGER)
    found = await marks.read(LEDGER)
    assert found is not None and set(found.bookies) == {A, B}


async def test_marked_ledgers_are_listed_without_other_nodes(server: SimMetadata) -> None:
    store = SimMetadataStore(server)
    marks = UnderReplication(store, _Clock())
    ledgers = [LedgerId(number) for number in (0, 7, LEDGER)]
    for ledger in ledgers:
        await marks.mark(ledger, [A])
    await store.put(f"{mark_path(LEDGER)}-of-others", b"")
    assert [ledger async for page in marks.marked() for ledger in page] == ledgers


async def test_two_markers_at_once_lose_nothing(server: SimMetadata) -> None:
    server.delay_s = (0.0, 0.002)
    markers = [UnderReplication(SimMetadataStore(server), _Clock()) for _ in range(6)]
    await asyncio.gather(*(marker.mark(LEDGER, [BookieId(f"b{n}")]) for n, marker in enumerate(markers)))
    found = await markers[0].read(LEDGER)
    assert found is not None and set(found.bookies) == {f"b{n}" for n in range(6)}


async def test_a_mark_of_unknown_outcome_exists_when_mark_returns(server: SimMetadata) -> None:
    for seed in range(40):
        server.chance = random.Random(seed)
        server.unknown_chance = 0.5
        marks = UnderReplication(SimMetadataStore(server), _Clock())
        try:
            await marks.mark(LEDGER, [A])
            answered = True
        except MetadataUnknownError:
            answered = False
        server.unknown_chance = 0.0
        found = await marks.read(LEDGER)
        assert not answered or (found is not None and found.bookies == (A,))
        server.remove(mark_path(LEDGER))


class _LosingStore(SimMetadataStore):
    """Loses the responses of the next writes. `done`: the writes were executed nevertheless."""

    lose = 0
    done = False

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        version = expected or 0
        if self.done or not self.lose:
            version = await super().put(key, value, expected=expected, ephemeral=ephemeral)
        self._lost()
        return version

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        if self.done or not self.lose:
            await super().delete(key, expected=expected)
        self._lost()

    def _lost(self) -> None:
        if self.lose:
            self.lose -= 1
            raise MetadataUnknownError("lost")


@pytest.mark.parametrize("done", [False, True])
async def test_a_mark_written_again_has_a_new_version_regardless_of_a_lost_write(
    server: SimMetadata, done: bool
) -> None:
    store = _LosingStore(server)
    marks = UnderReplication(store, _Clock())
    await marks.mark(LEDGER, [A])
    seen = await marks.read(LEDGER)
    store.lose, store.done = 1, done
    assert await marks.mark(LEDGER, [A])
    assert store.lose == 0 and seen is not None
    assert not await marks.remove(seen), "an entry may be missing that no repair has checked"


async def test_a_removal_with_a_lost_response_does_not_remove_the_next_mark(server: SimMetadata) -> None:
    class Again(_LosingStore):
        async def delete(self, key: str, *, expected: int | None = None) -> None:
            try:
                await super().delete(key, expected=expected)
            except MetadataUnknownError:
                await theirs.mark(LEDGER, [A])
                raise

    clock = _Clock()
    theirs = UnderReplication(SimMetadataStore(server), clock)
    await theirs.mark(LEDGER, [A])
    store = Again(server)
    ours = UnderReplication(store, clock)
    seen = await ours.read(LEDGER)
    store.lose, store.done = 1, True
    clock.ms += 5
    assert seen is not None and not await ours.remove(seen)
    found = await theirs.read(LEDGER)
    assert found is not None and found.version == seen.version == 0


async def test_a_mark_is_removed_only_if_unchanged(server: SimMetadata) -> None:
    marks = UnderReplication(SimMetadataStore(server), _Clock())
    await marks.mark(LEDGER, [A])
    before = await marks.read(LEDGER)
    assert before is not None
    await marks.mark(LEDGER, [B])
    assert not await marks.remove(before), "the bookie added meanwhile has not been checked"
    now = await marks.read(LEDGER)
    assert now is not None and await marks.remove(now)
    assert await marks.read(LEDGER) is None
    assert await marks.remove(now), "already removed"


async def test_a_removal_of_unknown_outcome_never_removes_a_newer_mark(server: SimMetadata) -> None:
    for seed in range(40):
        server.chance = random.Random(seed)
        marks = UnderReplication(SimMetadataStore(server), _Clock())
        await marks.mark(LEDGER, [A])
        old = await marks.read(LEDGER)
        await marks.mark(LEDGER, [B])
        server.unknown_chance = 0.5
        assert old is not None
        try:
            assert not await marks.remove(old)
        except MetadataUnknownError:
            pass
        server.unknown_chance = 0.0
        assert await marks.read(LEDGER) is not None
        server.remove(mark_path(LEDGER))


async def test_marks_are_listed_in_pages_and_foreign_nodes_are_skipped(server: SimMetadata) -> None:
    marks = UnderReplication(SimMetadataStore(server), _Clock())
    for ledger in range(7):
        await marks.mark(LedgerId(ledger), [A])
    server.write("/ledgers/underreplication/ledgers/0000/strange", b"x", None)
    server.write(mark_path(LedgerId(8)), b"no text format", None)
    pages = [[mark.ledger for mark in page] async for page in marks.marks(page_keys=3)]
    assert [ledger for page in pages for ledger in page] == [0, 1, 2, 3, 4, 5, 6, 8]
    assert max(map(len, pages)) == 3
    assert await marks.mark(LedgerId(8), [B]), "an unreadable mark is replaced"
    assert (await marks.read(LedgerId(8))).bookies == (B,)  # type: ignore[union-attr]
