"""A real bookie in a separate process, for tests that kill it: `python -m tests.support.bookie_process FOLDER`.

Real disk, real index, embedded metadata. Prints its port once it serves; SIGTERM stops it cleanly. With `busy` after
the folder its logs are small, and garbage collection, compaction and scrub run all the time; lines on its standard
input (`create LEDGER`, `delete LEDGER`) change the metadata, and are repeated on its standard output when done.
"""

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.limits import MIB
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.storage import StorageSettings
from tests.support.roomy_disk import NEVER_FULL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]


def busy(settings: BookieSettings) -> BookieSettings:
    """Return settings with which all background work runs all the time."""
    return replace(
        settings,
        journal=JournalSettings(file_bytes=2 * MIB, group_bytes_max=1 * MIB),
        storage=StorageSettings(write_cache_bytes=4 * MIB, flush_interval_s=0.05, entry_log_bytes_max=2 * MIB),
        garbage_collection=GarbageCollectionSettings(interval_s=0.1, quarantine=QuarantineSettings(0.0)),
        compaction=CompactionSettings(
            minor_threshold=0.5, minor_interval_s=0.1, major_threshold=0.95, major_interval_s=0.2, latency_max_s=0.0
        ),
        scrubbing=ScrubbingSettings(0.2, 100 * MIB),
    )


def _metadata(bookie: BookieId) -> LedgerMetadata:
    return LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (bookie,)),), digest_type=DigestType.CRC32)


async def obey(metadata: LocalMetadataStore, bookie: BookieId) -> None:
    """Change the metadata by the commands on the standard input."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    nodes = LedgerNodes(metadata)
    while line := (await lines.readline()).decode():
        what, ledger = line.split()[0], LedgerId(int(line.split()[1]))
        if what == "create":
            await nodes.create(ledger, _metadata(bookie))
        else:
            await nodes.delete(ledger)
        print(line, end="", flush=True)


async def serve(folder: str, *, is_busy: bool = False) -> None:
    """Serve until SIGTERM."""
    disk = LocalDisk()
    metadata = await LocalMetadataStore.open(f"{folder}/metadata")
    settings = BookieSettings(
        data_dir=f"{folder}/bookie",
        disks=DiskRules(threshold=NEVER_FULL),
        listen="127.0.0.1",
        advertise="127.0.0.1",
        port=0,
        journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB),
        storage=StorageSettings(write_cache_bytes=24 * MIB, flush_interval_s=0.2),
    )
    if is_busy:
        settings = busy(settings)
    running = await start_bookie(settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(running.port, flush=True)
    obeying = asyncio.create_task(obey(metadata, running.bookie_id)) if is_busy else None
    await ended.wait()
    if obeying is not None:
        obeying.cancel()
    await running.stop()
    await metadata.close()
    disk.close()


class BookieProcess:
    """Controls the process from a test."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    async def tell(self, line: str) -> None:
        """Let a busy process change the metadata."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), 30)
        assert answer.decode() == f"{line}\n", answer

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.terminate()
        return await self._process.wait()


@asynccontextmanager
async def bookie_process(folder: Path, *, busy: bool = False) -> "AsyncIterator[BookieProcess]":
    """Yield a serving bookie on `folder`; the process is ended in any case."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.bookie_process",
        str(folder),
        *(["busy"] if busy else []),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, "the bookie ended instead of serving"
        yield BookieProcess(process, int(line))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], is_busy="busy" in sys.argv[2:]))
