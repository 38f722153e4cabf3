"""Entry logs that are damaged as files: reported, kept, read where intact, and without effect on other logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError, NoSuchEntryError
from quire_bookie.model import LedgerId
from quire_bookie.storage.logs.log_set import QUARANTINE_NAME
from quire_bookie.storage.logs.quarantine import Quarantine
from tests.sim.disk import SimDisk
from tests.unit.bookie.storage.store import DIRECTORY, Store, body_of, open_store

LOG_1 = f"{DIRECTORY}/{1:016x}.qlog"
LIST = f"{DIRECTORY}/{QUARANTINE_NAME}"


class _Clock:
    def __init__(self, now_ms: int = 1000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


async def _two_logs() -> Store:
    """Return a store with ledgers 0 and 1 in a sealed first log, and ledgers 2 and 3 in a second."""
    store = await open_store()
    for ledger in range(4):
        await store.put_ids(ledger, range(3), 300_000)
        await store.storage.flush()
    assert [state.log for state in store.storage._logs.sealed()] == [1]
    return store


def _reasons(store: Store) -> dict[str, str]:
    return {each.path: each.reason for each in store.storage.quarantined}


async def test_a_missing_log_is_reported_at_the_start_and_its_entries_are_damaged() -> None:
    store = await _two_logs()
    await store.storage.close()
    await store.disk.remove(LOG_1)
    store = await open_store(store.disk)
    assert "missing" in _reasons(store)[LOG_1]
    with pytest.raises(DamagedError):
        await store.read(0, 1)
    with pytest.raises(NoSuchEntryError):
        await store.read(0, 3)
    assert await store.read(2, 1) == body_of(2, 1, 300_000)
    await store.storage.close()


async def test_a_sealed_log_with_a_damaged_map_is_kept_and_the_others_are_collected() -> None:
    store = await _two_logs()
    for ledger in range(4, 7):
        await store.put_ids(ledger, range(3), 300_000)
        await store.storage.flush()
    sealed = [state.log for state in store.storage._logs.sealed()]
    assert len(sealed) >= 2
    size = len(store.disk.content(LOG_1))
    store.disk.corrupt(LOG_1, size - 40)
    for ledger in range(5):
        await store.storage.delete_ledger(LedgerId(ledger))
    assert await store.storage.drop_dead_logs() > 0
    assert list(_reasons(store)) == [LOG_1]
    assert await store.disk.exists(LOG_1) and store.storage.stats.logs_dropped >= 1
    await store.storage.drop_dead_logs()
    assert store.storage.stats.logs_damaged == 1, "counted once"
    assert await store.read(6, 2) == body_of(6, 2, 300_000)
    await store.storage.close()


async def test_a_sealed_log_with_a_damaged_header_is_found_by_the_first_collection_and_still_read() -> None:
    store = await _two_logs()
    store.disk.corrupt(LOG_1, 20)
    store = await store.restart()
    assert store.storage.quarantined == []
    assert await store.storage.drop_dead_logs() == 0
    assert list(_reasons(store)) == [LOG_1]
    assert [state.log for state in store.storage._logs.sealed()] == [], "it is neither compacted nor collected"
    for ledger in (0, 1):
        assert await store.read(ledger, 2) == body_of(ledger, 2, 300_000)
    await store.storage.close()


async def test_a_quarantined_log_is_listed_after_a_restart_with_the_time_of_its_first_finding() -> None:
    store = await _two_logs()
    store.disk.corrupt(LOG_1, 20)
    store = await store.restart()
    await store.storage.drop_dead_logs()
    (first,) = store.storage.quarantined
    store = await store.restart()
    assert store.storage.quarantined == [first]
    survivor = store.disk.crash()
    again = await open_store(survivor)
    assert again.storage.quarantined == [first]
    await again.storage.close()


async def test_a_restored_log_leaves_the_list_at_the_next_start() -> None:
    store = await _two_logs()
    await store.storage.close()
    content = store.disk.content(LOG_1)
    await store.disk.remove(LOG_1)
    store = await open_store(store.disk)
    assert len(store.storage.quarantined) == 1
    await store.storage.close()
    await store.disk.replace_file(LOG_1, content)
    store = await open_store(store.disk)
    assert store.storage.quarantined == []
    assert await store.read(0, 1) == body_of(0, 1, 300_000)
    await store.storage.close()


async def test_the_log_being_written_is_quarantined_if_its_header_is_damaged_and_a_new_one_started() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.storage.close()
    store.disk.corrupt(LOG_1, 20)
    store = await open_store(store.disk)
    assert list(_reasons(store)) == [LOG_1]
    await store.put_ids(1, range(5, 10))
    store = await store.restart()
    assert list(_reasons(store)) == [LOG_1]
    for entry in range(10):
        assert await store.read(1, entry) == body_of(1, entry)
    await store.storage.close()


async def test_a_list_that_cannot_be_written_does_not_prevent_a_start_on_a_full_disk() -> None:
    store = await _two_logs()
    await store.storage.close()
    await store.disk.remove(LOG_1)
    store.disk.capacity_bytes = 0
    store = await open_store(store.disk)
    assert len(store.storage.quarantined) == 1 and not await store.disk.exists(LIST)
    store.disk.capacity_bytes = 1 << 40
    await store.storage.drop_dead_logs()
    assert await store.disk.exists(LIST)
    await store.storage.close()


@given(st.binary(max_size=200))
async def test_a_list_with_any_content_can_be_loaded(content: bytes) -> None:
    disk = SimDisk()
    await disk.make_dirs("/d")
    await disk.replace_file("/d/list", b"quire quarantine 1\n" + content)
    quarantine = Quarantine(disk, "/d/list", _Clock())
    await quarantine.load()
    assert quarantine.logs() == []


async def test_the_time_survives_and_that_of_a_restored_log_starts_again() -> None:
    disk, clock = SimDisk(), _Clock()
    await disk.make_dirs("/d")
    first = Quarantine(disk, "/d/list", clock)
    assert await first.load() == []
    assert first.add(7, "/d/7.qlog", "the map\nis damaged") and not first.add(7, "/d/7.qlog", "again")
    assert first.add(9, "/d/9.qlog", "missing")
    await first.save()
    clock.ms = 5000
    second = Quarantine(disk, "/d/list", clock)
    assert await second.load() == [7, 9]
    second.add(7, "/d/7.qlog", "the map is damaged")
    second.discard(9)
    await second.save()
    assert [(each.log, each.since_ms, each.reason) for each in second.logs()] == [(7, 1000, "the map is damaged")]
    third = Quarantine(disk, "/d/list", clock)
    assert await third.load() == [7]
    third.add(9, "/d/9.qlog", "missing")
    assert third.logs()[0].since_ms == 5000
