"""A scrub reports each damage once, by ledger and ids, reports nothing in an intact storage, and can be continued."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.formats.index_keys import block_key
from quire_bookie.storage.logs.log_walk import open_log
from quire_bookie.storage.scrub import Damage, Scrub, ScrubbedLog, ScrubPosition
from tests.unit.bookie.storage.rebuilt_stores import Expected, filled, log_paths
from tests.unit.bookie.storage.store import Store, body_of, open_store


async def no_pace(_size_bytes: int) -> None:
    return


async def sealed(**how: Any) -> tuple[Store, Expected]:
    """Return a storage in which every log except the last, empty one is sealed."""
    store, expected = await filled(**how)
    again = await open_store(store.disk)
    await again.put_ids(9, range(40), 60_000)
    await again.storage.flush()
    return again, expected


async def scrub(store: Store, change: Callable[[Scrub], None] | None = None) -> tuple[list[Damage], Scrub]:
    found: list[Damage] = []
    work = store.storage.new_scrub(found.append, no_pace)
    if change is not None:
        change(work)
    await work.logs(store.storage.scrubbed_logs)
    await work.index_alone(store.storage.has_log)
    return found, work


async def test_an_intact_storage_has_no_findings() -> None:
    store, expected = await sealed()
    await store.put_ids(1, range(5), version=7)  # superseded records are not findings
    await store.storage.delete_ledger(LedgerId(2))
    await store.storage.flush()
    found, work = await scrub(store)
    assert found == []
    assert work.stats.logs == len(store.storage.scrubbed_logs()) >= 2
    assert work.stats.entries >= len([key for key in expected if key[0] in (1, 4)])
    await store.storage.close()


@pytest.mark.parametrize("seed", range(8))
async def test_every_damaged_entry_of_a_sealed_log_is_reported(seed: int) -> None:
    chance = random.Random(seed)
    store, expected = await sealed()
    victims = set()
    for _ in range(chance.randrange(1, 6)):
        (ledger, entry), body = chance.choice(sorted(expected.items()))
        for path in (log.path for log in store.storage.scrubbed_logs().values()):
            at = store.disk.content(path).find(body)
            if at >= 0 and (ledger, entry) not in victims:
                store.disk.corrupt(path, at - chance.choice([0, 20, 24]) + chance.randrange(20))
                victims.add((ledger, entry))
    found, _ = await scrub(store)
    named = {
        (damage.ledger, entry)
        for damage in found
        if damage.first >= 0
        for entry in range(damage.first, damage.last + 1)
    }
    assert named == victims, seed
    assert all(damage.path.endswith(".qlog") and damage.offset for damage in found)
    assert len(found) <= len(victims)
    await store.storage.close()


async def test_damage_to_a_deleted_ledger_is_not_a_finding() -> None:
    store, _ = await sealed()
    path = log_paths(store.disk)[0]
    store.disk.corrupt(path, store.disk.content(path).index(body_of(2, 6)) + 50)
    await store.storage.delete_ledger(LedgerId(2))
    assert (await scrub(store))[0] == []
    await store.storage.close()


async def test_an_entry_that_the_index_lost_is_found_in_its_log() -> None:
    store, _ = await sealed()
    key = block_key(LedgerId(4), 0)
    await store.index.commit([], [key])
    found, _ = await scrub(store)
    assert {(damage.ledger, damage.first) for damage in found} == {(4, entry) for entry in range(24)}
    assert all("index" in damage.what for damage in found)
    await store.storage.close()


async def test_a_damaged_value_of_the_index_is_reported_with_all_its_ids() -> None:
    store, _ = await sealed()
    key = block_key(LedgerId(1), 1)
    value = bytearray(store.index._image.current[key])
    value[-1] ^= 1
    store.index._image.current[key] = bytes(value)
    found, _ = await scrub(store)
    assert {(damage.ledger, damage.first, damage.last) for damage in found} == {(1, 256, 511)}
    await store.storage.close()


async def test_a_missing_log_that_the_index_names_is_reported_by_ledger() -> None:
    store, _ = await sealed()
    await store.storage.close()
    await store.disk.remove(log_paths(store.disk)[0])
    again = await open_store(store.disk)
    found: list[Damage] = []
    work = again.storage.new_scrub(found.append, no_pace)
    await work.index_alone(lambda log: log != 1)
    assert {damage.ledger for damage in found} >= {1, 2, 4}
    await again.storage.close()


async def test_a_wrong_digest_is_a_finding() -> None:
    store, _ = await sealed()

    async def verify(ledger: LedgerId, entry: EntryId, body: memoryview) -> str | None:
        assert bytes(body[:8]) == ledger.to_bytes(8, "big")
        return "wrong digest" if (ledger, entry) == (4, 7) else None

    def change(work: Scrub) -> None:
        work.verify = verify

    found, _ = await scrub(store, change)
    assert [(damage.ledger, damage.first, damage.what) for damage in found] == [(4, 7, "wrong digest")]
    await store.storage.close()


async def test_a_pass_is_paced_by_the_bytes_it_reads_and_continues_where_it_stopped() -> None:
    store, _ = await sealed()
    path = store.storage.scrubbed_logs()[1].path
    log = await open_log(store.disk, path)
    spent: list[int] = []
    at: list[ScrubPosition] = []

    class StoppedError(Exception):
        pass

    async def pace(size_bytes: int) -> None:
        spent.append(size_bytes)
        if len(spent) == 4:
            raise StoppedError

    work = store.storage.new_scrub(lambda damage: None, pace)
    with pytest.raises(StoppedError):
        await work.logs(store.storage.scrubbed_logs)
    assert 0 < sum(spent) < log.size_bytes and max(spent) < 512 * 1024
    assert work.position.log == 1 and work.position.offset > 0
    rest = store.storage.new_scrub(at.append, no_pace)  # type: ignore[arg-type]
    rest.position = work.position
    await rest.logs(store.storage.scrubbed_logs)
    first, whole = work.stats.entries, (await scrub(store))[1].stats
    assert first + rest.stats.entries == whole.entries and at == []
    await store.storage.close()


async def test_a_log_that_disappears_during_a_scrub_is_not_a_finding() -> None:
    store, _ = await sealed()
    paths = {**store.storage.scrubbed_logs(), 77: ScrubbedLog("/data/ledgers/gone.qlog")}
    found: list[Damage] = []
    await store.storage.new_scrub(found.append, no_pace).logs(lambda: paths)
    assert found == []
    await store.storage.close()


@pytest.mark.parametrize("seed", range(6))
async def test_every_damaged_entry_of_the_log_being_written_is_reported(seed: int) -> None:
    chance = random.Random(seed)
    store = await open_store()
    await store.put_ids(1, range(300))
    await store.put_ids(2, range(0, 90, 3), 3000)
    await store.storage.flush()
    await store.put_ids(1, range(300, 400))
    await store.storage.flush()
    (path,) = log_paths(store.disk)
    assert store.storage.scrubbed_logs()[1].durable_bytes == len(store.disk.content(path))
    victims = set()
    for entry in chance.sample(range(400), 3):
        at = store.disk.content(path).index(body_of(1, entry))
        store.disk.corrupt(path, at - chance.choice([0, 20, 24]) + chance.randrange(20))
        victims.add(entry)
    await store.put_ids(1, range(400, 420))  # not flushed: only in the journal
    found, work = await scrub(store)
    named = {entry for damage in found for entry in range(damage.first, damage.last + 1) if damage.ledger == 1}
    assert named == victims, seed
    assert work.stats.entries >= 400 + 30 - 3
    await store.storage.close()


async def test_bytes_that_a_crash_left_after_the_last_flush_are_not_a_finding() -> None:
    store, _ = await filled()
    again = await open_store(store.disk)
    newest = max(again.storage.scrubbed_logs())
    path = again.storage.scrubbed_logs()[newest].path
    file = await again.disk.open(path)
    await file.write(len(again.disk.content(path)), [b"cut off by a crash" * 300])
    await file.close()
    assert (await scrub(again))[0] == []
    await again.storage.close()
