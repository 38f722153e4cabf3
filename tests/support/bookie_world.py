"""A bookie on simulated disk, index and metadata that listens on a real port, and a raw peer to connect to it.

`crash` cuts the power; the next process starts on the remaining state.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.index_store import IndexStore
from quire_bookie.limits import FRAME_BYTES_MAX, MIB
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.disk import SimDisk
from tests.sim.index_store import SimIndexStore
from tests.sim.metadata import SimMetadata, SimMetadataStore

SETTINGS = BookieSettings(
    data_dir="/data",
    listen="127.0.0.1",
    advertise="127.0.0.1",
    port=0,
    journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB, reserved_bytes=0),
    storage=StorageSettings(write_cache_bytes=24 * MIB, read_cache_bytes=4 * MIB),
)
ANSWER_TIMEOUT_S = 90


@dataclass
class BookieWorld:
    """Owns the state that outlives a process."""

    disk: SimDisk = field(default_factory=SimDisk)
    metadata: SimMetadata = field(default_factory=lambda: SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    settings: BookieSettings = SETTINGS
    running: RunningBookie | None = None
    session: SimMetadataStore | None = None

    async def start(self) -> RunningBookie:
        """Start the process."""

        async def open_index(path: str) -> IndexStore:
            return SimIndexStore(self.disk, path)

        self.session = SimMetadataStore(self.metadata)
        self.running = await start_bookie(
            self.settings,
            metadata=self.session,
            disk=self.disk,
            clock=SystemClock(),
            chance=SystemChance(),
            open_index=open_index,
        )
        return self.running

    async def stop(self) -> None:
        """Stop the process cleanly."""
        if self.running is not None:
            await self.running.stop()
            self.running = None

    async def crash(self) -> None:
        """Cut the power: the disk keeps synced data, and the tasks of the process are removed."""
        assert self.running is not None and self.session is not None
        heir = self.disk.crash()
        self.session.cut_for_good()
        dead, self.running = self.running, None
        await sweep_up(dead)
        self.session.lease_ran_out()
        self.disk = heir

    async def restart(self) -> RunningBookie:
        """Start the next process on the state that the last one left."""
        return await self.start()

    def with_settings(self, **changes: object) -> "BookieWorld":
        """Return the same world with other settings."""
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return self


async def sweep_up(dead: RunningBookie) -> None:
    """End the tasks and sockets of a process whose disk is dead, so that they have no effect."""
    dead.storage.failure = dead.storage.failure or OSError("crashed")
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and _is_bookies(task)]
    assert dead._parts.server is not None
    dead._parts.server.close()
    for connection in list(dead._parts.open_connections):
        connection.abort()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_bookies(task: "asyncio.Task[object]") -> bool:
    name = task.get_name()
    return name.startswith(("bookie", "journal", "storage", "registration", "load ledger"))


class RawPeer:
    """A client that sends and receives raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> "RawPeer":
        """Open a connection."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2 * FRAME_BYTES_MAX))

    def send(self, *frames: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(b"".join(frames))

    async def receive(self) -> bytes:
        """Receive one frame with its length. IncompleteReadError if the bookie closes instead."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(int.from_bytes(head, "big"))

    async def ask(self, *frames: bytes) -> bytes:
        """Send, then receive one frame."""
        self.send(*frames)
        return await self.receive()

    async def receive_all(self, count: int) -> Sequence[bytes]:
        """Receive several frames."""
        return [await self.receive() for _ in range(count)]

    async def closed_by_bookie(self) -> bool:
        """Wait for the end of the stream. Returns True if no byte arrived before it."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self.reader.read(1) == b""

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return
