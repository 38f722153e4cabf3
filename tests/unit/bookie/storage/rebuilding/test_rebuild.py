"""An index rebuilt from the logs: the same results as before; damage becomes an error, never absence."""

import copy
import random

import pytest

from quire_bookie.errors import (
    DamagedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    StartupError,
    UnknownLedgerStateError,
)
from quire_bookie.model import NO_ENTRY, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.index_keys import state_key
from quire_bookie.storage.index.index_commits import PROOF_NAME
from quire_bookie.storage.ledgers.limbo import LIMBO_NAME
from tests.sim.disk import SimCrashError
from tests.unit.bookie.storage.crashes import dispose_crashed
from tests.unit.bookie.storage.rebuilt_stores import (
    Expected,
    check_nothing_is_absent,
    filled,
    log_paths,
    rebuild,
)
from tests.unit.bookie.storage.store import DIRECTORY, Store, body_of, open_store

LONG = 1 << 40


async def test_a_rebuilt_index_gives_the_same_results_as_the_lost_one() -> None:
    store, expected = await filled()
    report = await rebuild(store.disk)
    assert not report.damage and not report.fenced and not report.without_key and not report.limbo
    assert (report.ledgers, report.deleted_ledgers) == (3, 1)
    again = await open_store(store.disk)
    assert await check_nothing_is_absent(again, expected) == (len(expected), 0)
    for (ledger, entry), body in expected.items():
        assert await again.read(ledger, entry) == body
    with pytest.raises(NoSuchLedgerError):
        await again.read(3, 5)
    info = await again.ledger(2)
    assert info.fenced and info.explicit_lac == b"packet" and info.explicit_lac_entry == 33
    assert info.master_key == b"k" * 20 and not (await again.ledger(1)).fenced
    with pytest.raises(NoSuchEntryError):
        await again.read(2, 1)
    assert again.storage.quarantined == []
    await again.storage.close()


async def test_the_rebuilt_storage_accepts_adds_and_continues_its_last_log() -> None:
    store, expected = await filled()
    await rebuild(store.disk)
    before = log_paths(store.disk)
    again = await open_store(store.disk)
    await again.put_ids(1, range(1000, 1100))
    again = await again.restart()
    assert await again.read(1, 1050) == body_of(1, 1050)
    assert log_paths(store.disk) == before
    await again.storage.close()
    await rebuild(store.disk)
    again = await open_store(store.disk)
    assert await again.read(1, 1050) == body_of(1, 1050)
    await check_nothing_is_absent(again, expected)
    await again.storage.close()


async def test_an_interrupted_flush_is_not_damage() -> None:
    found = 0
    for step in range(8):
        store = await open_store()
        await store.put_ids(1, range(50))
        await store.storage.flush()
        await store.put_ids(1, range(50, 90), 30_000)
        store.disk.crash_after(step)
        try:
            await store.storage.flush()
        except (OSError, QuireError):
            found += 1
        survivor = store.disk.crash("random", seed=step)
        await dispose_crashed(store)
        report = await rebuild(survivor)
        assert not report.losses and not report.limbo and not report.damage, (step, report)
        again = await open_store(survivor)
        for entry in range(50):
            assert await again.read(1, entry) == body_of(1, entry)
        await again.storage.close()
    assert found > 3, "the flush must write often enough to mean something"


async def test_a_flipped_byte_costs_one_entry_and_fences_its_ledger() -> None:
    store, expected = await filled()
    path = log_paths(store.disk)[0]
    at = store.disk.content(path).index(body_of(1, 50)) + 40
    store.disk.corrupt(path, at)
    report = await rebuild(store.disk)
    assert [loss[0] for loss in report.losses] == [1] and report.losses[0][3] == 1
    assert report.fenced == [1] and len(report.damage) == 1
    assert "ledger 1 entry 50" in report.damage[0].what
    again = await open_store(store.disk)
    right, unknown = await check_nothing_is_absent(again, expected)
    assert (right, unknown) == (len(expected) - 1, 1)
    with pytest.raises(DamagedError):
        await again.read(1, 50)
    assert (await again.ledger(1)).fenced
    await again.storage.close()


async def test_a_ledger_whose_state_is_lost_is_fenced_with_an_unknown_key() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.put_ids(2, range(5))
    await store.storage.close()
    path = log_paths(store.disk)[0]
    store.disk.corrupt(path, store.disk.content(path).index(b"k" * 20) + 3)  # the state of ledger 1 is first
    report = await rebuild(store.disk)
    assert report.without_key == [1] and report.fenced == [1]
    again = await open_store(store.disk)
    info = await again.ledger(1)
    assert info.fenced and info.key_unknown and info.master_key not in (b"", b"k" * 20)
    assert await again.read(1, 3) == body_of(1, 3)
    assert await again.storage.ledgers_without_key() == [1]
    await again.storage.adopt_key(LedgerId(1), b"k" * 20)
    await again.storage.adopt_key(LedgerId(1), b"x" * 20)
    await again.storage.adopt_key(LedgerId(2), b"x" * 20)
    again = await again.restart()
    assert (await again.ledger(1)).master_key == b"k" * 20 and (await again.ledger(1)).fenced
    assert (await again.ledger(2)).master_key == b"k" * 20
    assert await again.storage.ledgers_without_key() == []
    await again.storage.close()


async def test_a_missing_log_refuses_the_rebuild_or_puts_its_possible_ledgers_in_limbo() -> None:
    store, expected = await filled()
    await store.disk.remove(log_paths(store.disk)[0])
    with pytest.raises(StartupError, match="accept-limbo"):
        await rebuild(store.disk)
    report = await rebuild(store.disk, accept_limbo=True)
    assert report.limbo and len(report.unknown_logs) == 1
    again = await open_store(store.disk)
    right, unknown = await check_nothing_is_absent(again, expected)
    assert right and unknown
    with pytest.raises(UnknownLedgerStateError):
        await again.read(0, NO_ENTRY)
    fresh = await again.ledger(5)
    assert not fresh.fenced and not fresh.limbo, "above every ledger that was ever here"
    await again.storage.close()


async def test_without_the_proof_a_rebuild_needs_limbo_and_its_bounds() -> None:
    store, expected = await filled()
    await store.disk.remove(f"{DIRECTORY}/{PROOF_NAME}")
    for accept in (False, True):
        with pytest.raises(StartupError, match="--up-to-ledger"):
            await rebuild(store.disk, accept_limbo=accept)
    report = await rebuild(store.disk, accept_limbo=True, bounds=[LedgerId(77), LedgerId(LONG)])
    assert report.limbo
    again = await open_store(store.disk)
    await check_nothing_is_absent(again, expected)
    for ledger in (77, LONG):
        with pytest.raises(UnknownLedgerStateError):
            await again.read(ledger, 0)
    with pytest.raises(NoSuchLedgerError):
        await again.read(78, 0)
    await again.storage.close()


async def test_limbo_survives_the_loss_of_the_index() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.enter_limbo([LedgerId(9)])
    await store.storage.end_limbo(LedgerId(1))
    await store.storage.close()
    report = await rebuild(store.disk)
    assert report.limbo
    again = await open_store(store.disk)
    assert again.storage.is_limbo(LedgerId(9))
    assert not (await again.ledger(1)).limbo and (await again.ledger(1)).fenced
    await again.storage.close()
    store.disk.corrupt(f"{DIRECTORY}/{LIMBO_NAME}", 10)
    with pytest.raises(StartupError, match="limbo"):
        await rebuild(store.disk)


async def test_logs_of_another_bookie_are_refused() -> None:
    store, _ = await filled(flushes=1)
    other, _ = await filled(flushes=1)
    path = f"{DIRECTORY}/{77:016x}.qlog"
    await store.disk.replace_file(path, other.disk.content(log_paths(other.disk)[0]))
    with pytest.raises(StartupError, match="another bookie"):
        await rebuild(store.disk)
    await store.disk.remove(path)
    await store.disk.replace_file(path, store.disk.content(log_paths(store.disk)[0]))
    with pytest.raises(StartupError, match="rename it to"):
        await rebuild(store.disk)


async def test_a_log_without_a_header_that_no_commit_names_is_left_from_a_crash() -> None:
    store, expected = await filled(flushes=1)
    await store.disk.replace_file(f"{DIRECTORY}/{77:016x}.qlog", b"")
    assert not (await rebuild(store.disk)).damage
    again = await open_store(store.disk)
    assert (await check_nothing_is_absent(again, expected))[1] == 0
    await again.storage.close()


async def test_an_interrupted_rebuild_can_be_repeated() -> None:
    store, expected = await filled()
    for step in range(100):
        disk = copy.deepcopy(store.disk)
        disk.crash_after(step)
        try:
            await rebuild(disk)
            break
        except (OSError, SimCrashError):
            assert disk.crashed
        survivor = disk.crash("random", seed=step)
        await rebuild(survivor)
        again = await open_store(survivor)
        assert (await check_nothing_is_absent(again, expected))[1] == 0
        await again.storage.close()
    assert step >= 3


@pytest.mark.parametrize("seed", range(12))
async def test_random_damage_makes_no_entry_absent(seed: int) -> None:
    await damage_and_check(seed, *await filled())


async def damage_and_check(seed: int, store: Store, expected: Expected) -> None:
    """Flip, truncate, overwrite and remove at random in the logs and the proof; rebuild and check."""
    chance = random.Random(seed)
    disk = copy.deepcopy(store.disk)
    for _ in range(chance.randrange(1, 5)):
        path = chance.choice([*log_paths(disk), f"{DIRECTORY}/{PROOF_NAME}"])
        size = len(disk.content(path))
        match chance.randrange(6):
            case 0 | 1:
                for _ in range(chance.randrange(1, 4)):
                    disk.corrupt(path, chance.randrange(size), 1 << chance.randrange(8))
            case 2:
                start = chance.randrange(size)
                for at in range(start, min(size, start + chance.choice([1, 30, 500, 5000]))):
                    disk.corrupt(path, at, chance.randrange(256))
            case 3:
                sought = chance.choice([b"QUIRSEAL", b"\xff" * 16, b"k" * 20])
                found = disk.content(path).find(sought)
                if found >= 0:
                    disk.corrupt(path, found + chance.randrange(len(sought)))
            case 4:
                disk.cut(path, chance.choice([chance.randrange(size), size - size % log_format.LOG_ALIGNMENT_BYTES]))
                if len(disk.content(path)) == 0:
                    break
            case 5 if chance.random() < 0.3:
                await disk.remove(path)
                break
    bounds = [LedgerId(1000)]
    report = await rebuild(disk, accept_limbo=True, bounds=bounds, seed=seed)
    again = await open_store(disk)
    _right, unknown = await check_nothing_is_absent(again, expected)
    if unknown:
        assert report.losses or report.limbo, f"seed {seed}"
    for ledger in (1, 2, 4):
        try:
            info = await again.storage.load_ledger(LedgerId(ledger))
            if info is None:
                assert again.storage.is_limbo(LedgerId(ledger)), f"seed {seed}"
                continue
            last = max(entry for held, entry in expected if held == ledger)
            body = await again.storage.read(LedgerId(ledger), NO_ENTRY)
            assert body[:16] == body_of(ledger, last)[:16], f"seed {seed}: the last entry of {ledger} went back"
        except (DamagedError, UnknownLedgerStateError):
            continue
        if ledger == 2 and not info.fenced:
            raise AssertionError(f"seed {seed}: a fence was lost")
    await again.storage.close()


async def test_a_ledger_recreated_after_its_deletion_has_only_later_entries() -> None:
    store, _ = await filled()
    again = await open_store(store.disk)
    await again.storage.delete_ledger(LedgerId(1))
    await again.storage.flush()
    await again.index.commit([], [state_key(LedgerId(1))])  # as after the expiry of its tombstone
    again = await again.restart()
    await again.put_ids(1, [3, 700], version=8)
    await again.storage.close()
    await rebuild(store.disk)
    again = await open_store(store.disk)
    assert await again.read(1, 700) == body_of(1, 700, version=8)
    assert await again.storage.entry_ranges(LedgerId(1)) == [(3, 3), (700, 700)]
    await again.storage.close()


async def test_entries_spread_over_several_folders_are_found() -> None:
    store, expected = await filled()
    first = log_paths(store.disk)[0]
    await store.disk.make_dirs("/data/second")
    await store.disk.rename(first, f"/data/second/{first.rsplit('/', 1)[1]}")
    report = await rebuild(store.disk, directories=["/data/second", DIRECTORY])
    assert not report.damage and report.logs == len(log_paths(store.disk)) and report.entries >= len(expected)
