"""The lock of a ledger's replication: BookKeeper's nodes, and a lease that can be lost."""

import random

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.under_replication import ReplicationLocks, encode_lock, lock_path, mark_path
from quire_bookie.model import LedgerId
from tests.sim.metadata import SimMetadata, SimMetadataStore

LEDGER = LedgerId(0x1234_5678_9ABC)


@pytest.fixture
def server() -> SimMetadata:
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


def test_the_paths_are_those_of_bookkeeper() -> None:
    assert mark_path(LEDGER) == "/ledgers/underreplication/ledgers/0000/1234/5678/9abc/urL20015998343868"
    assert mark_path(LedgerId(7)) == "/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
    assert lock_path(LedgerId(7)) == "/ledgers/underreplication/locks/urL0000000007"


def test_a_lock_names_its_owner_in_protobuf_text() -> None:
    assert encode_lock("host-1") == b'bookieId: "host-1"\n'
    assert encode_lock('a"b\\c') == b'bookieId: "a\\"b\\\\c"\n'


async def test_one_at_a_time_holds_the_lock(server: SimMetadata) -> None:
    ours = ReplicationLocks(SimMetadataStore(server), "a")
    theirs = ReplicationLocks(SimMetadataStore(server), "b")
    assert await ours.acquire(LEDGER)
    assert not await theirs.acquire(LEDGER)
    assert await ours.is_held(LEDGER)
    assert not await theirs.is_held(LEDGER)
    await theirs.release(LEDGER)
    assert await ours.is_held(LEDGER), "only the owner gives it back"
    await ours.release(LEDGER)
    assert await theirs.acquire(LEDGER)


async def test_a_lost_session_loses_the_lock(server: SimMetadata) -> None:
    store = SimMetadataStore(server)
    locks = ReplicationLocks(store, "a")
    assert await locks.acquire(LEDGER)
    store.expire()
    assert not await locks.is_held(LEDGER)
    await locks.release(LEDGER)


async def test_a_lock_whose_making_stayed_unknown_is_read_back(server: SimMetadata) -> None:
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


async def test_a_store_that_is_away_fails_the_lock_and_not_its_release(server: SimMetadata) -> None:
    locks = ReplicationLocks(SimMetadataStore(server), "a")
    assert await locks.acquire(LEDGER)
    server.away = True
    with pytest.raises(MetadataUnavailableError):
        await locks.acquire(LEDGER)
    await locks.release(LEDGER)


async def test_a_mark_is_seen(server: SimMetadata) -> None:
    locks = ReplicationLocks(SimMetadataStore(server), "a")
    assert not await locks.is_marked(LEDGER)
    server.write(mark_path(LEDGER), b'replica: "x"\n', None)
    assert await locks.is_marked(LEDGER)
