"""Several ledger folders: the choice of folders, full folders, and that no entry is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.env.disk import DiskUsage
from quire_bookie.errors import DiskFullError, NoSuchEntryError, StartupError
from quire_bookie.model import Buffer, LedgerId
from quire_bookie.storage.index.index_commits import PROOF_NAME
from quire_bookie.storage.logs import log_window
from quire_bookie.storage.logs.log_directories import LogDirectories
from tests.sim.disk import SimDisk, SimFile, Survival
from tests.support.sampling import one_in
from tests.unit.bookie.storage.crashes import Expected, check, crash_at, dispose_crashed, note, replay, scenario
from tests.unit.bookie.storage.store import SMALL, Store, body_of, open_store

A, B = "/data/a", "/data/b"
FOLDERS = (A, B)
KIB = 1024


def two_disks(a_bytes: int, b_bytes: int, disk: SimDisk | None = None) -> SimDisk:
    """Mount two file systems of these sizes."""
    disk = disk or SimDisk()
    disk.mount(A, a_bytes)
    disk.mount(B, b_bytes)
    return disk


async def logs_in(store: Store) -> tuple[list[str], list[str]]:
    """Return the entry logs of both folders."""
    first, second = [
        [name for name in await store.disk.list_dir(folder) if name.endswith(".qlog")] for folder in FOLDERS
    ]
    return first, second


class BlindDisk(SimDisk):
    """Reports free space, but refuses writes to folder B from change `full_at` on."""

    full_at = 0
    changes = 0

    async def usage(self, path: str) -> DiskUsage:
        """Report plenty of space, more in B."""
        await self.pause()
        return DiskUsage(1 << 40, (1 << 39) + path.startswith(B), 2 + path.startswith(B))

    def step(self, operation: str, path: str) -> bool:
        """Refuse to create, extend or sync a file on the full disk, but not to truncate or remove one."""
        if path.startswith(B) and operation in ("create", "write", "sync"):
            self.changes += 1
            if self.changes >= self.full_at:
                raise DiskFullError(f"no space left for {operation} {self.changes} of {path}")
        return super().step(operation, path)


async def test_a_new_log_goes_to_the_folder_with_the_most_space() -> None:
    store = await open_store(two_disks(8 << 20, 30 << 20), directories=FOLDERS)
    for version in range(30):
        await store.put_ids(1, [version], 900 * KIB)
        await store.storage.flush()
    in_a, in_b = await logs_in(store)
    assert in_a and len(in_b) > 2 * len(in_a)
    for version in range(30):
        assert await store.read(1, version) == body_of(1, version, 900 * KIB)
    await store.storage.close()


async def test_flushes_rotate_over_folders_of_one_file_system_and_a_large_one_uses_all_at_once() -> None:
    store = await open_store(directories=FOLDERS)
    for entry in range(6):
        await store.put_ids(1, [entry], 100)
        await store.storage.flush()
    in_a, in_b = await logs_in(store)
    assert len(in_a) == len(in_b) == 1
    sizes = [len(store.disk.content(f"{folder}/{names[0]}")) for folder, names in ((A, in_a), (B, in_b))]
    assert sizes[0] == sizes[1] > 3 * 4096, "three flushes each"
    settings = replace(SMALL, write_cache_bytes=32 << 20, entry_log_bytes_max=64 << 20)
    big = await open_store(settings=settings, directories=FOLDERS)
    await big.put_ids(2, range(100), 90 * KIB)
    await big.storage.flush()
    assert big.storage.stats.flushes == 1
    in_a, in_b = await logs_in(big)
    sizes = [len(big.disk.content(f"{folder}/{names[0]}")) for folder, names in ((A, in_a), (B, in_b))]
    assert abs(sizes[0] - sizes[1]) <= 5 << 20 and sum(sizes) > 8 << 20
    big = await big.restart()
    for entry in range(100):
        assert await big.read(2, entry) == body_of(2, entry, 90 * KIB)
    await big.storage.close()
    await store.storage.close()


async def test_pieces_for_two_folders_are_written_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_window, "PIECE_BYTES", 1 << 20)
    settings = replace(SMALL, write_cache_bytes=32 << 20, entry_log_bytes_max=64 << 20)
    store = await open_store(settings=settings, directories=FOLDERS)
    write = SimFile.write
    running: list[str] = []
    most = 0

    async def watched(file: SimFile, offset: int, buffers: Sequence[Buffer]) -> None:
        nonlocal most
        running.append(file.path)
        most = max(most, len(set(running)))
        for _ in range(5):
            await asyncio.sleep(0)
        await write(file, offset, buffers)
        running.remove(file.path)

    with patch.object(SimFile, "write", watched):
        await store.put_ids(2, range(100), 90 * KIB)
        await store.storage.flush()
    assert most == 2
    await store.storage.close()


async def test_an_error_in_one_folder_while_another_is_written_is_final_and_recovered_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_window, "PIECE_BYTES", 1 << 20)
    settings = replace(SMALL, write_cache_bytes=32 << 20, entry_log_bytes_max=64 << 20)
    store = await open_store(settings=settings, directories=FOLDERS)
    await store.put_ids(1, range(50), 90 * KIB)
    await store.storage.flush()
    await store.put_ids(1, range(50, 100), 90 * KIB)
    store.disk.fail_next("write", f"{2:016x}.qlog", OSError(5, "input/output error"))
    with pytest.raises(OSError, match="input/output"):
        await store.storage.flush()
    assert store.storage.failure is not None
    survivor = store.disk.crash("random", seed=3)
    await dispose_crashed(store)
    again = await replay(store, survivor)
    for entry in range(100):
        assert await again.read(1, entry) == body_of(1, entry, 90 * KIB)
    assert again.storage.quarantined == []
    await dispose_crashed(again)


async def test_one_flush_continues_in_another_folder_when_the_first_has_no_space_left() -> None:
    store = await open_store(two_disks(400 * KIB, 300 * KIB), directories=FOLDERS)
    await store.put_ids(1, range(10), 50 * KIB)
    await store.storage.flush()
    assert [len(names) for names in await logs_in(store)] == [1, 1]
    store = await store.restart()
    for entry in range(10):
        assert await store.read(1, entry) == body_of(1, entry, 50 * KIB)
    assert store.storage.quarantined == []
    await store.storage.close()


async def test_when_all_folders_are_full_the_flush_is_refused_and_entries_stay_readable() -> None:
    store = await open_store(two_disks(60 * KIB, 50 * KIB), directories=FOLDERS)
    await store.put_ids(1, range(4), 30 * KIB)
    with pytest.raises(DiskFullError, match=f"{A}.*{B}"):
        await store.storage.flush()
    assert store.storage.disk_full and store.storage.failure is None
    assert await logs_in(store) == ([], [])
    assert await store.read(1, 3) == body_of(1, 3, 30 * KIB)
    two_disks(60 * KIB, 400 * KIB, store.disk)
    await store.storage.flush()
    assert not store.storage.disk_full
    assert await store.read(1, 3) == body_of(1, 3, 30 * KIB)
    await store.storage.close()


async def test_a_folder_that_the_monitor_reports_as_full_is_not_used_while_another_one_has_space() -> None:
    store = await open_store(two_disks(30 << 20, 20 << 20), directories=FOLDERS)
    await store.put_ids(1, range(5))
    await store.storage.flush()
    assert [len(names) for names in await logs_in(store)] == [1, 0]
    store.storage.directories[A].over_threshold = True
    for entry in (5, 6, 7):
        await store.put_ids(1, [entry])
        await store.storage.flush()
    assert [len(names) for names in await logs_in(store)] == [1, 1]
    assert [state.log for state in store.storage._logs.sealed()] == [1], "the log that was left can be collected"
    store.storage.directories[B].over_threshold = True
    await store.put_ids(1, [8])
    await store.storage.flush()
    assert [len(names) for names in await logs_in(store)] == [1, 1], "all are full: the log is continued"
    for entry in range(9):
        assert await store.read(1, entry) == body_of(1, entry)
    await store.storage.close()


async def test_a_restart_continues_the_log_of_each_folder() -> None:
    disk = BlindDisk()
    disk.full_at = 5
    store = await open_store(disk, directories=FOLDERS)
    for entry in range(4):
        await store.put_ids(1, [entry])
        await store.storage.flush()
    assert [len(names) for names in await logs_in(store)] == [1, 1]
    assert store.storage._logs.sealed() == [], "the one in the full folder could not be sealed"
    disk.full_at = 1 << 30
    store = await store.restart()
    await store.put_ids(1, [4])
    await store.storage.flush()
    store.storage._logs.flushed.leave_log()
    await store.put_ids(1, [5])
    await store.storage.flush()
    assert [state.log for state in store.storage._logs.sealed()] == [1, 2], "both were continued before they were left"
    for entry in range(6):
        assert await store.read(1, entry) == body_of(1, entry)
    await store.storage.close()


async def test_a_full_folder_at_any_write_moves_the_flush_to_the_other() -> None:
    moved = 0
    for full_at in range(1, 200):
        disk = BlindDisk()
        disk.full_at = full_at
        store = await open_store(disk, directories=FOLDERS)
        expected: Expected = {}
        await scenario(store, expected)
        assert store.storage.failure is None and store.storage.stats.flushes_failed == 0, full_at
        await check(store, expected)
        finished = disk.changes < full_at
        moved += not finished
        survivor = disk.crash("none")
        await dispose_crashed(store)
        again = await replay(store, survivor)
        await check(again, expected)
        assert again.storage.quarantined == []
        await dispose_crashed(again)
        if finished:
            break
    else:
        raise AssertionError("the scenario did not finish")
    assert moved > 8


async def test_a_log_of_maximum_size_in_a_full_folder_is_left_unsealed() -> None:
    disk = BlindDisk()
    disk.full_at = 1 << 30
    store = await open_store(disk, directories=FOLDERS)
    await store.put_ids(1, range(4), 900 * KIB)
    await store.storage.flush()
    assert [len(names) for names in await logs_in(store)] == [1, 1], "two entries in each"
    (full,) = [log for log in (1, 2) if store.storage._logs.directory_of(log) == B]
    disk.full_at = 0
    await store.put_ids(1, range(4, 7), 900 * KIB)
    await store.storage.flush()
    assert len((await logs_in(store))[1]) == 1
    assert full not in sealed(store) and store.storage.stats.flushes_failed == 0
    disk.full_at = 1 << 30
    store.storage.directories[B].out_of_space = False
    await store.put_ids(1, [7])
    await store.storage.flush()
    assert full in sealed(store)
    store = await store.restart()
    for entry in range(7):
        assert await store.read(1, entry) == body_of(1, entry, 900 * KIB)
    await store.storage.close()


def sealed(store: Store) -> list[int]:
    return [state.log for state in store.storage._logs.sealed()]


@one_in(5)
@pytest.mark.parametrize("survival", ["none", "random", "all"])
async def test_after_a_crash_at_any_write_to_two_folders_everything_is_readable(survival: Survival, every: int) -> None:
    step = 0
    while await crash_at(step, survival, two_disks(1300 * KIB, 1200 * KIB), FOLDERS):
        step += every
    assert step > 30


async def test_the_order_of_the_folders_may_change_and_folders_may_be_added() -> None:
    store = await open_store(directories=[A])
    await store.put_ids(1, range(5))
    await store.storage.close()
    store = await open_store(store.disk, directories=[B, A])
    assert store.storage.home == A and not store.storage.is_new
    assert await store.read(1, 4) == body_of(1, 4)
    await store.put_ids(1, [5])
    store = await store.restart()
    assert await store.read(1, 5) == body_of(1, 5)
    assert PROOF_NAME not in await store.disk.list_dir(B)
    await store.storage.close()


async def test_a_log_that_was_moved_manually_to_another_folder_is_found_there() -> None:
    store = await open_store(directories=FOLDERS)
    await store.put_ids(1, range(5))
    await store.storage.close()
    (name,) = (await logs_in(store))[0]
    await store.disk.rename(f"{A}/{name}", f"{B}/{name}")
    store = await open_store(store.disk, directories=FOLDERS)
    assert await store.read(1, 4) == body_of(1, 4)
    with pytest.raises(NoSuchEntryError):
        await store.read(1, 5)
    await store.storage.close()


async def test_the_same_log_in_two_folders_refuses_the_start() -> None:
    store = await open_store(directories=FOLDERS)
    await store.put_ids(1, range(5))
    await store.storage.close()
    (name,) = (await logs_in(store))[0]
    await store.disk.replace_file(f"{B}/{name}", store.disk.content(f"{A}/{name}"))
    with pytest.raises(StartupError, match="same entry log"):
        await open_store(store.disk, directories=FOLDERS)


async def test_logs_without_a_live_ledger_are_removed_from_every_folder() -> None:
    store = await open_store(two_disks(5 << 20, 5 << 20), directories=FOLDERS)
    for ledger in range(6):
        await note(store, {}, ledger, range(1), 0, 900 * KIB)
        await store.storage.flush()
    assert all(await logs_in(store))
    for ledger in range(6):
        await store.storage.delete_ledger(LedgerId(ledger))
    freed = await store.storage.drop_dead_logs()
    assert freed > 3 << 20
    assert [len(names) for names in await logs_in(store)] == [1, 1], "logs being written stay"
    await store.storage.close()


async def test_compaction_may_use_the_reserve_to_free_a_disk_on_which_flushes_are_refused() -> None:
    settings = replace(SMALL, reserved_bytes=700 * KIB, compaction_reserved_bytes=64 * KIB)
    store = await open_store(settings=settings)
    for ledger in range(1, 9):
        await store.put_ids(ledger, range(5), 100 * KIB)
        await store.storage.flush()
    for ledger in range(2, 9):
        await store.storage.delete_ledger(LedgerId(ledger))
    await store.put_ids(1, range(5, 7), 40 * KIB)
    store.disk.capacity_bytes = store.disk._used_bytes() + 600 * KIB
    with pytest.raises(DiskFullError):
        await store.storage.flush()
    sealed = [state.log for state in store.storage._logs.sealed()]
    assert await store.storage.compaction.compact(sealed, _Unhurried()) > 0
    await store.storage.drop_dead_logs()
    await store.storage.flush()
    assert not store.storage.disk_full
    for entry in range(7):
        assert await store.read(1, entry) == body_of(1, entry, 100 * KIB if entry < 5 else 40 * KIB)
    await store.storage.close()


class _Unhurried:
    """A pace without limits."""

    stopping = False

    async def spend(self, size_bytes: int, entries: int) -> None:
        """Do not wait."""


async def _directories(sizes: list[int], numbers: list[int], reserved_bytes: int = 0) -> LogDirectories:
    disk = SimDisk()
    folders = [f"/d{at}" for at in range(len(sizes))]

    async def usage(path: str) -> DiskUsage:
        at = folders.index(path)
        return DiskUsage(1000, sizes[at], numbers[at])

    disk.usage = usage  # type: ignore[method-assign]
    directories = LogDirectories(disk, folders, reserved_bytes)
    await directories.refresh()
    return directories


async def test_folders_on_one_file_system_share_its_space_and_its_reserve() -> None:
    directories = await _directories([500, 500, 100], [1, 1, 2], reserved_bytes=50)
    assert directories.available_bytes() == 450 + 50
    assert directories.available_bytes(excluded={"/d0"}) == 500, "the other folder of that file system can still use it"
    assert directories.available_bytes(excluded={"/d0", "/d1"}) == 50
    assert directories.take("/d0", 440) and not directories.take("/d1", 20)
    assert directories.choose(40) == "/d2"
    assert directories.choose(60) is None
    assert directories.choose(60, floor_bytes=0) == "/d2"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4), st.lists(st.integers(1, 300), max_size=30))
async def test_allocated_space_never_exceeds_the_free_space(sizes: list[int], requests: list[int]) -> None:
    directories = await _directories(sizes, list(range(1, len(sizes) + 1)), reserved_bytes=10)
    available = directories.available_bytes()
    allocated = 0
    for request in requests:
        path = directories.choose(request)
        if path is not None:
            assert directories.take(path, request)
            allocated += request
        else:
            assert all(left < request + 10 for left in directories._free_bytes.values())
    assert allocated + directories.available_bytes() == available
