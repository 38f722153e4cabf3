"""A storage on the simulated disk, with the journal of its bookie."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from quire_bookie.model import Buffer, EntryId, LedgerId, Run
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage import LedgerInfo, LedgerStorage
from tests.sim.disk import SimDisk
from tests.sim.index_store import SimIndexStore

DIRECTORY = "/data/ledgers"
MARK = "/data/mark"
SMALL = StorageSettings(
    write_cache_bytes=256 * 1024, read_cache_bytes=256 * 1024, entry_log_bytes_max=2 << 20, reserved_bytes=0
)
_HEAD = struct.Struct(">qqqq")


def body_of(ledger: int, entry: int, size: int = 40, *, version: int = 0, lac: int = -1) -> bytes:
    """Return a stored entry: header, then unique bytes."""
    filling = f"{ledger}/{entry}/{version};".encode()
    return (_HEAD.pack(ledger, entry, lac, size) + filling * (size // len(filling) + 1))[: 32 + size]


def run_of(ledger: int, first: int, entries: Sequence[Buffer], lac: int = -1) -> Run:
    """Return a run of consecutive entries."""
    return Run(LedgerId(ledger), EntryId(first), entries, EntryId(lac), sum(map(len, entries)))


@dataclass
class SimMarks:
    """A journal of runs, which keeps those after the mark. A crash affects the mark like other files on the disk."""

    disk: SimDisk
    records: list[Run] = field(default_factory=list)
    commits: int = 0

    def capture(self) -> int:
        """Return the number of records so far."""
        return len(self.records)

    async def commit(self, mark: int, /) -> None:
        """Store the mark durably."""
        await self.disk.replace_file(MARK, str(mark).encode())
        self.commits += 1

    async def durable(self, disk: SimDisk) -> int:
        """Return the mark on a disk after a crash."""
        return int(await disk.read_file(MARK)) if await disk.exists(MARK) else 0


@dataclass
class Store:
    """One storage with its ports."""

    disk: SimDisk
    index: SimIndexStore
    marks: SimMarks
    storage: LedgerStorage[int]
    directories: Sequence[str] = (DIRECTORY,)

    async def ledger(self, ledger: int, key: bytes = b"k" * 20) -> LedgerInfo:
        """Load a ledger, or create it if it does not exist."""
        return await self.storage.load_ledger(LedgerId(ledger)) or self.storage.create_ledger(LedgerId(ledger), key)

    async def put(self, ledger: int, first: int, entries: Sequence[Buffer], lac: int = -1) -> None:
        """Put as a bookie does: cache and journal in one step, after waiting while both halves are full."""
        info = await self.ledger(ledger)
        await self.storage.wait_for_space()
        run = run_of(ledger, first, entries, lac)
        self.storage.put(info, run)
        self.marks.records.append(run)

    async def put_ids(self, ledger: int, ids: Iterable[int], size: int = 40, *, version: int = 0) -> None:
        """Put entries with generated bodies, one run each."""
        for entry in ids:
            await self.put(ledger, entry, [body_of(ledger, entry, size, version=version)])

    async def read(self, ledger: int, entry: int) -> bytes:
        """Read one entry."""
        return bytes(await self.storage.read(LedgerId(ledger), EntryId(entry)))

    async def restart(self, settings: StorageSettings = SMALL) -> "Store":
        """Close cleanly and reopen."""
        await self.storage.close()
        return await open_store(self.disk, settings, self.directories)


async def open_store(
    disk: SimDisk | None = None, settings: StorageSettings = SMALL, directories: Sequence[str] = (DIRECTORY,)
) -> Store:
    """Open a storage on a disk, by default a new one."""
    disk = disk or SimDisk()
    await disk.make_dirs("/data")
    index = SimIndexStore(disk)
    marks = SimMarks(disk)
    storage = await LedgerStorage.open(disk=disk, index=index, directories=directories, settings=settings, marks=marks)
    return Store(disk, index, marks, storage, directories)
