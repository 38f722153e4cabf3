"""SIGKILL on a real disk: every entry that a process reported as acknowledged survives."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.local_disk import JournalSubmit, LocalDisk
from quire_bookie.journal import EntryRecord, Journal, JournalRecord
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.settings.journal import JournalSettings

ROOT = Path(__file__).resolve().parents[4]
SETTINGS = JournalSettings(file_bytes=1 << 20, group_bytes_max=1 << 18)
KILLS = 4


def content_of(entry: int) -> bytes:
    """Return content that depends on the entry."""
    return b"%08d" % entry * (1 + entry * 37 % 200)


async def write_until_killed(folder: str, way: JournalSubmit) -> None:
    """Child: replay, continue after the last entry, print each acknowledged id and every mark."""
    journal = await Journal.open(LocalDisk(journal_submit=way), folder, SETTINGS, chance=SystemChance())
    seen: list[int] = []

    def remember(records: Sequence[JournalRecord]) -> None:
        runs = (record.run for record in records if isinstance(record, EntryRecord))
        seen.extend(run.first + len(run.entries) - 1 for run in runs)

    await journal.replay(remember)
    entry = max(seen, default=int(sys.argv[3])) + 1
    while True:
        durable = asyncio.Event()
        for _ in range(10):
            entries = [content_of(entry + index) for index in range(3)]
            run = Run(LedgerId(1), EntryId(entry), entries, EntryId(-1), sum(map(len, entries)))
            entry += 3
            journal.append_run(run, lambda error, last=entry - 1: print(last, flush=True) if error is None else None)  # type: ignore[misc]
        journal.append_fence(LedgerId(2), None)
        journal.append_fence(LedgerId(2), lambda _, durable=durable: durable.set())  # type: ignore[misc]
        await durable.wait()
        if entry % 900 == 0:
            position = journal.position()
            print(f"mark {entry}", flush=True)  # printed first: the parent then expects no entry below it
            await journal.set_mark(position)


def run_and_kill(folder: str, way: str, lines: int, acked: int, flushed: int) -> tuple[int, int]:
    """Let a child write until it has printed `lines` lines. Return the last acknowledged entry and the last mark."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, folder, way, str(acked)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        for number, line in enumerate(child.stdout):
            if line.startswith("mark"):
                flushed = int(line.split()[1])
            else:
                acked = int(line)
            if number == lines:
                child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, "the child ended by itself"
    return acked, flushed


@pytest.mark.parametrize("way", ["auto", "thread"])
async def test_entries_acknowledged_before_a_kill_are_replayed(tmp_path: Path, way: JournalSubmit) -> None:
    folder = f"{tmp_path}/journal"
    acked, flushed = -1, 0
    for life in range(KILLS):
        acked, flushed = run_and_kill(folder, way, 150 + 331 * life, acked, flushed)
        found = await replayed(folder)
        assert all(data == content_of(entry) for entry, data in found.items())
        assert set(range(flushed, acked + 1)) <= set(found)
    assert flushed > 0


async def replayed(folder: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}

    def collect(records: Sequence[JournalRecord]) -> None:
        for run in (record.run for record in records if isinstance(record, EntryRecord)):
            for index, data in enumerate(run.entries):
                found[run.first + index] = bytes(data)

    disk = LocalDisk()
    journal = await Journal.open(disk, folder, SETTINGS, chance=SystemChance())
    await journal.replay(collect)
    await journal.close()
    disk.close()
    return found


_CHILD = """
import asyncio, importlib.util, sys
sys.path.insert(0, ".")
spec = importlib.util.spec_from_file_location("kill_child", "tests/unit/bookie/journal/test_kill.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
asyncio.run(module.write_until_killed(sys.argv[1], sys.argv[2]))
"""
