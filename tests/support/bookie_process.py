"""A real bookie as a process of its own, for tests that kill it: `python -m tests.support.bookie_process FOLDER`.

Real disk, real index, embedded metadata. Prints its port once it serves; SIGTERM stops it in order.
"""

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.journal import JournalSettings
from quire_bookie.limits import MIB
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]


async def serve(folder: str) -> None:
    """Serve until SIGTERM."""
    disk = LocalDisk()
    metadata = await LocalMetadataStore.open(f"{folder}/metadata")
    settings = BookieSettings(
        data_dir=f"{folder}/bookie",
        listen="127.0.0.1",
        advertise="127.0.0.1",
        port=0,
        journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB),
        storage=StorageSettings(write_cache_bytes=24 * MIB, flush_interval_s=0.2),
    )
    running = await start_bookie(settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(running.port, flush=True)
    await ended.wait()
    await running.stop()
    await metadata.close()
    disk.close()


class BookieProcess:
    """The process, as a test holds it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.terminate()
        return await self._process.wait()


@asynccontextmanager
async def bookie_process(folder: Path) -> "AsyncIterator[BookieProcess]":
    """A serving bookie on `folder`; gone at the end in any case."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.bookie_process", str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE
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
    asyncio.run(serve(sys.argv[1]))
