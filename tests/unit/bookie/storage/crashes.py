"""Crashes a storage in the middle of its work, recovers it, and checks that nothing acknowledged is lost."""

import asyncio
import gc
from collections.abc import Sequence
from traceback import clear_frames
from types import MethodType

from quire_bookie.errors import QuireError
from quire_bookie.model import LedgerId
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.compaction import Compaction
from quire_bookie.storage.flush_worker import FlushWorker
from quire_bookie.storage.logs.entry_log import LogFiles, LogWriter
from quire_bookie.storage.logs.log_appender import LogAppender, _Lane
from quire_bookie.storage.logs.log_set import EntryLogs
from quire_bookie.storage.logs.log_writes import LogWrites
from tests.sim.disk import SimDisk, Survival
from tests.unit.bookie.storage.store import DIRECTORY, SimMarks, Store, body_of, open_store

Expected = dict[tuple[int, int], bytes]
_PARTS = (LedgerStorage, FlushWorker, EntryLogs, LogAppender, LogFiles, LogWriter, LogWrites, Compaction)
"""Classes of a storage's objects, which reference each other."""


async def scenario(store: Store, expected: Expected) -> None:
    """Run several flushes: dense, striped, late, stored again, large entries that fill a log, a deletion."""
    for version in range(3):
        await note(store, expected, 1, range(version * 100, version * 100 + 110), version)
        await note(store, expected, 2, [e for e in range(version * 60, version * 60 + 60) if e % 3 != 1], version)
        await note(store, expected, 3, [version * 300, 5, 1000 - version], version)
        await note(store, expected, 4, range(version * 6, version * 6 + 6), version, 90_000)
        await store.storage.flush()
        if version == 1:
            await store.storage.delete_ledger(LedgerId(3))
            for key in [key for key in expected if key[0] == 3]:
                del expected[key]
            await store.storage.drop_dead_logs()


async def note(
    store: Store, expected: Expected, ledger: int, ids: "range | list[int]", version: int, size: int = 40
) -> None:
    """Put entries and record them as expected."""
    info = await store.ledger(ledger)
    if info.deleted:
        return
    for entry in ids:
        body = body_of(ledger, entry, size, version=version)
        await store.put(ledger, entry, [body])
        expected[ledger, entry] = body


async def replay(crashed: Store, survivor: SimDisk) -> Store:
    """Open the storage as a bookie does at its next start, and replay everything after the mark."""
    store = await open_store(survivor, directories=crashed.directories)
    mark = await crashed.marks.durable(survivor)
    store.marks = crashed.marks
    marks = SimMarks(survivor, crashed.marks.records)
    store.storage._flushes.marks = marks
    for run in crashed.marks.records[mark:]:
        info = await store.ledger(run.ledger)
        if not info.deleted:
            await store.storage.wait_for_space()
            store.storage.put(info, run)
    return store


async def check(store: Store, expected: Expected) -> None:
    """Check that every acknowledged entry is readable."""
    for (ledger, entry), body in expected.items():
        info = await store.storage.load_ledger(LedgerId(ledger))
        assert info is not None
        if not info.deleted:
            assert await store.read(ledger, entry) == body, (ledger, entry)


async def crash_at(
    step: int, survival: Survival, disk: SimDisk | None = None, directories: Sequence[str] = (DIRECTORY,)
) -> bool:
    """Run, crash after `step` changes, recover, check. False once the scenario ends before the crash."""
    disk = disk or SimDisk()
    expected: Expected = {}
    try:
        store = await open_store(disk, directories=directories)
        disk.crash_after(step)
        await scenario(store, expected)
    except (OSError, QuireError):
        assert disk.crashed
    finished = not disk.crashed
    survivor = disk.crash(survival, seed=step)
    await dispose_crashed(store)
    again = await replay(store, survivor)
    await check(again, expected)
    await again.storage.flush()
    await check(again, expected)
    once_more = await replay(again, survivor.crash(survival, seed=step + 1))
    await check(once_more, expected)
    assert once_more.storage.stats.logs_damaged == 0
    for one in (again, once_more):
        await dispose_crashed(one)
    return not finished


async def dispose_crashed(store: Store) -> None:
    """End the task of a crashed storage and break its reference cycles.

    A cycle references 2 MiB of a log's end and the whole disk with few objects, so the garbage collector would run only
    after gigabytes of them have accumulated.
    """
    worker = store.storage._flushes.task
    assert worker is not None
    worker.cancel()
    await asyncio.wait((worker,))
    failure = store.storage.failure
    while failure is not None:  # logged errors are kept until the end of the test, with their frames
        clear_frames(failure.__traceback__)
        failure.__traceback__ = None  # a frame of the caller still runs, and is not cleared
        failure = failure.__context__
    due: list[object] = [store.storage]
    while due:
        part = due.pop()
        if isinstance(part, (list, dict, MethodType, _Lane)):
            due += gc.get_referents(part)
        elif isinstance(part, _PARTS) and vars(part):
            due += vars(part).values()
            vars(part).clear()
