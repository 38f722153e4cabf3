"""Several pieces of a log in flight at once: crashes, errors and no space in the middle of them."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from quire_bookie.errors import DiskFullError, QuireError, StorageError
from quire_bookie.model import Buffer
from quire_bookie.storage.logs import log_appender, log_window
from quire_bookie.storage.logs.log_window import LogWindow
from quire_bookie.storage.logs.log_writes import LogWrites
from tests.sim.disk import SimDisk, SimFile, Survival
from tests.unit.bookie.storage.crashes import Expected, check, dispose_crashed, note, replay
from tests.unit.bookie.storage.store import DIRECTORY, Store, open_store
from tests.unit.bookie.storage.test_compaction import Pace, filled, logs_of, sealed

PIECE_BYTES = 16 * 1024
LOG = f"{1:016x}.qlog"


class UnevenDisk(SimDisk):
    """Operations take a random number of loop iterations, so that writes end in a different order than they started."""

    most_in_flight = 0
    synced_too_early = 0

    async def pause(self) -> None:
        """Wait a random number of loop iterations."""
        under_way = [len(inode.writing) for inode in self._names.values()]
        self.most_in_flight = max([self.most_in_flight, *under_way])
        for _ in range(self._chance.randrange(12)):
            await asyncio.sleep(0)
        await super().pause()

    def step(self, operation: str, path: str) -> bool:
        """Count syncs that start during a write."""
        if operation == "sync" and path.endswith(".qlog") and self._names[path].writing:
            self.synced_too_early += 1
        return super().step(operation, path)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use pieces of 16 KiB, four of them at once."""
    monkeypatch.setattr(log_window, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(log_window, "SPARE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(log_appender, "ENTRY_LOG_WRITES_MAX", 4)


async def two_flushes(store: Store, expected: Expected) -> None:
    """Write about twenty pieces of small, medium and large entries."""
    for version in range(2):
        await note(store, expected, 1, range(version * 30, version * 30 + 40), version)
        await note(store, expected, 2, range(version * 10, version * 10 + 12), version, 9_000)
        await note(store, expected, 3, [version, 7], version, 50_000)
        await store.storage.flush()


async def crash_at(step: int, survival: Survival, *, killed: bool = False) -> tuple[bool, int]:
    """As `crashes.crash_at`; `killed`: only the process dies. Also return the maximum of pieces in flight at once."""
    disk = UnevenDisk(chance=random.Random(step))
    expected: Expected = {}
    try:
        store = await open_store(disk)
        disk.crash_after(step)
        await two_flushes(store, expected)
    except (OSError, QuireError):
        assert disk.crashed
    finished = not disk.crashed
    survivor = disk.kill() if killed else disk.crash(survival, seed=step)
    await dispose_crashed(store)
    assert disk.synced_too_early == 0
    again = await replay(store, survivor)
    await check(again, expected)
    await again.storage.flush()
    once_more = await replay(again, survivor.crash("none"))
    await check(once_more, expected)
    assert once_more.storage.stats.logs_damaged == 0
    for one in (again, once_more):
        await dispose_crashed(one)
    return not finished, disk.most_in_flight


@pytest.mark.parametrize("survival", ["none", "random", "all"])
async def test_after_a_crash_with_pieces_in_flight_everything_is_readable(survival: Survival) -> None:
    step, most, crashed = 0, 0, True
    while crashed:
        crashed, under_way = await crash_at(step, survival)
        most, step = max(most, under_way), step + 1
    assert step > 30
    assert most >= 3, "otherwise no two pieces were torn at once"


async def test_after_a_kill_with_pieces_in_flight_everything_is_readable() -> None:
    step, crashed = 0, True
    while crashed:
        crashed, _under_way = await crash_at(step, "none", killed=True)
        step += 1
    assert step > 30


class Refusing(UnevenDisk):
    """Fails the writes to entry logs with these numbers, and records later operations on the file."""

    def __init__(self, refused: dict[int, BaseException], seed: int = 0) -> None:
        super().__init__(chance=random.Random(seed))
        self.refused = refused
        self.writes = 0
        self.after: list[str] = []

    def step(self, operation: str, path: str) -> bool:
        """Fail or record one operation."""
        if path.endswith(".qlog"):
            if operation == "write":
                self.writes += 1
                if (error := self.refused.get(self.writes)) is not None:
                    self.after = []
                    raise error
            self.after.append(operation)
        return super().step(operation, path)


NO_SPACE = DiskFullError("no space")
BROKEN = OSError(5, "input/output error")


@pytest.mark.parametrize("turn", range(1, 14))
async def test_no_space_for_one_of_several_pieces_rolls_the_flush_back_and_a_retry_writes_all(
    turn: int,
) -> None:
    disk = Refusing({turn: NO_SPACE, turn + 1: NO_SPACE}, seed=turn)
    store = await open_store(disk)
    expected: Expected = {}
    try:
        await two_flushes(store, expected)
    except DiskFullError:
        assert "sync" not in disk.after, "the other pieces are not made durable"
        assert not any(inode.writing for inode in disk._names.values()), "truncated during a write"
        assert "truncate" in disk.after or not await disk.exists(f"{DIRECTORY}/{LOG}")
        assert store.storage.failure is None
    await check(store, expected)
    try:
        await store.storage.flush()
    except DiskFullError:  # the second error hit the second attempt
        await store.storage.flush()
    await check(store, expected)
    again = await replay(store, disk.crash("none"))
    await dispose_crashed(store)
    await check(again, expected)
    assert again.storage.stats.logs_damaged == 0
    await dispose_crashed(again)


@pytest.mark.parametrize("turn", [1, 2, 5, 9, 13])
@pytest.mark.parametrize("without_space", [False, True], ids=["alone", "after one without space"])
async def test_an_error_of_one_of_several_pieces_is_final_and_nothing_is_synced_or_truncated_after_it(
    turn: int, without_space: bool
) -> None:
    disk = Refusing({turn: BROKEN, turn - 1: NO_SPACE} if without_space else {turn: BROKEN}, seed=turn)
    store = await open_store(disk)
    expected: Expected = {}
    with pytest.raises((OSError, StorageError)):
        await two_flushes(store, expected)
        await store.storage.flush()
        await store.storage.flush()
    if disk.writes >= turn:
        assert store.storage.failure is not None
        assert "sync" not in disk.after and "truncate" not in disk.after
    again = await replay(store, disk.crash("random", seed=turn))
    await dispose_crashed(store)
    await check(again, expected)
    await dispose_crashed(again)


async def test_an_abandoned_write_fails_the_sync() -> None:
    disk = UnevenDisk()
    await disk.make_dirs("/data")
    file = await disk.open("/data/log", create=True)
    window, writes = LogWindow(), LogWrites(file)
    window.add(bytes(3 * PIECE_BYTES))
    await writes.begin(window, window.end_of_pieces, 4)
    next(iter(writes._tasks)).cancel()
    with pytest.raises(StorageError, match="abandoned"):
        await writes.finish(window, window.end, 4)
    assert disk._names["/data/log"].durable == b""


async def test_pieces_that_a_cancelled_caller_did_not_start_fail_the_sync() -> None:
    disk = UnevenDisk()
    await disk.make_dirs("/data")
    file = await disk.open("/data/log", create=True)
    window, writes = LogWindow(), LogWrites(file)
    window.add(bytes(4 * PIECE_BYTES))
    caller = asyncio.ensure_future(writes.begin(window, window.end_of_pieces, 1))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    window.add(b"what follows")
    with pytest.raises(StorageError, match="abandoned"):
        await writes.finish(window, window.end, 1)
    assert disk._names["/data/log"].durable == b""


async def test_a_compaction_cancelled_while_a_piece_fails_ends_as_cancelled_and_fails_the_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_appender, "ENTRY_LOG_WRITES_MAX", 1000)
    store = await open_store()
    await filled(store)
    known, fails, write = set(logs_of(store)), asyncio.Event(), SimFile.write
    broken = OSError(5, "input/output error")

    async def failing(file: SimFile, offset: int, buffers: Sequence[Buffer]) -> None:
        if file.path not in known and file.path.endswith(".qlog"):
            await fails.wait()
            raise broken
        await write(file, offset, buffers)

    class Cancelling(Pace):
        async def on_spend(self) -> None:
            fails.set()
            task.cancel()
            await asyncio.sleep(0)

    monkeypatch.setattr(SimFile, "write", failing)
    task = asyncio.ensure_future(store.storage.compaction.compact(sealed(store), Cancelling()))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fails.is_set() and store.storage.failure is broken
    await dispose_crashed(store)


async def test_no_more_pieces_than_allowed_are_in_flight_and_their_memory_does_not_change() -> None:
    disk = UnevenDisk(chance=random.Random(3))
    await disk.make_dirs("/data")
    file = await disk.open("/data/log", create=True)
    window, writes, content = LogWindow(), LogWrites(file), b""
    for number in range(60):
        part = bytes([number]) * (PIECE_BYTES // 3 + number)
        window.add(part)
        content += part
        if window.has_piece:
            await writes.begin(window, window.end_of_pieces, 3)
    await writes.finish(window, window.end, 3)
    assert disk.content("/data/log") == content
    assert disk.most_in_flight == 3


async def test_a_small_flush_is_one_write_without_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[object] = []
    real = SimFile.write

    async def write(file: SimFile, offset: int, buffers: Sequence[Buffer]) -> None:
        tasks.append(asyncio.current_task())
        await real(file, offset, buffers)

    monkeypatch.setattr(SimFile, "write", write)
    disk = SimDisk()
    await disk.make_dirs("/data")
    window, writes = LogWindow(), LogWrites(await disk.open("/data/log", create=True))
    window.add(b"small")
    await writes.finish(window, window.end, 4)
    assert tasks == [asyncio.current_task()]
