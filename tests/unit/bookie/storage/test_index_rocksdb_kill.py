"""A RocksDB index whose process is killed, runs out of space, or finds its log truncated."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import DamagedError, DiskFullError, StartupError
from quire_bookie.model import LedgerId
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore
from tests.unit.bookie.storage.store import body_of, run_of

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[4]


class _NoMarks:
    def capture(self) -> int:
        return 0

    async def commit(self, mark: int, /) -> None:
        return


async def _open(path: Path) -> RocksIndexStore:
    return await RocksIndexStore.open(str(path), cache_bytes=8 * MIB)


def _commit_and_kill(path: Path, commits: int) -> int:
    """Let a process commit, kill it, and return the last number that it reported as durable."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.bookie.storage.index_writer", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    last = -1
    for line in writer.stdout:
        last = int(line)
        if last >= commits:
            writer.send_signal(signal.SIGKILL)
            break
    for line in writer.stdout:
        last = int(line) if line.endswith("\n") else last
    writer.wait()
    writer.stdout.close()
    return last


async def test_after_a_kill_every_returned_commit_is_present_and_none_is_partial(tmp_path: Path) -> None:
    last = _commit_and_kill(tmp_path / "index", 60)
    index = await _open(tmp_path / "index")
    for number in range(last + 1):
        keys = [b"n%08d" % (number * 50 + at) for at in range(50)]
        assert await index.get_many(keys) == [b"%d" % number] * 50
    started = await index.get_many([b"n%08d" % ((last + 1) * 50 + at) for at in range(50)])
    assert len(set(started)) == 1
    await index.close()


async def test_a_commit_without_space_changes_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    await index.commit([(b"a", b"1")])
    store = index._db

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def write(self, *_args: object) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

    index._db = Full()
    with pytest.raises(DiskFullError):
        await index.commit([(b"a", b"2")])
    assert await index.get(b"a") == b"1"
    await index.commit([(b"b", b"3")])
    assert await index.get_many([b"a", b"b"]) == [b"1", b"3"]
    await index.close()


async def test_a_log_truncated_between_two_commits_is_detected_by_the_proof(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    index = await _open(folder / "index")
    settings = StorageSettings(reserved_bytes=0)
    storage = await LedgerStorage.open(
        disk=LocalDisk(), index=index, directories=[str(folder / "ledgers")], settings=settings, marks=_NoMarks()
    )
    await storage.load_ledger(LedgerId(1))
    info = storage.create_ledger(LedgerId(1), b"k" * 20)
    for entry in range(5):
        storage.put(info, run_of(1, entry, [body_of(1, entry)]))
        await storage.flush()
    found = tmp_path / "found"
    shutil.copytree(folder, found)  # the files as a power cut would leave them, while nothing is being written
    await storage.close()
    await index.close()
    (log,) = (found / "index").glob("*.log")
    whole = log.read_bytes()
    refused = 0
    for cut in range(0, len(whole), 97):
        log.write_bytes(whole[:cut])
        copy = tmp_path / f"cut{cut}"
        shutil.copytree(found, copy)
        try:
            again = await _open(copy / "index")
        except DamagedError:
            refused += 1
            continue
        try:
            with pytest.raises((DamagedError, StartupError)):
                await LedgerStorage.open(
                    disk=LocalDisk(),
                    index=again,
                    directories=[str(copy / "ledgers")],
                    settings=settings,
                    marks=_NoMarks(),
                )
            refused += 1
        finally:
            await again.close()
    assert refused >= 10
