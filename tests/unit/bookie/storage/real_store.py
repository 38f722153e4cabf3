"""A storage on the real disk with a RocksDB index. Run as a process it reads one, since RocksDB may crash."""

import asyncio
import json
import sys
from pathlib import Path

from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import (
    DamagedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    StorageError,
    UnknownLedgerStateError,
)
from quire_bookie.limits import MIB
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.rebuilding.index_place import IndexPlace, open_index
from tests.unit.bookie.storage.store import body_of, run_of

SETTINGS = StorageSettings(
    write_cache_bytes=2 * MIB, read_cache_bytes=MIB, entry_log_bytes_max=4 * MIB, reserved_bytes=0
)
LEDGERS = 400
ENTRIES = 6


class NoMarks:
    """A journal that keeps nothing."""

    def capture(self) -> int:
        """Return a constant."""
        return 0

    async def commit(self, mark: int, /) -> None:
        """Do nothing."""
        return


def place_of(folder: Path) -> IndexPlace:
    """Return the location of the index."""
    return IndexPlace(str(folder / "index"), (str(folder),), 8 * MIB)


async def open_real(folder: Path, *, rebuild_on_damage: bool = False) -> tuple[LedgerStorage[int], LocalDisk]:
    """Open the storage in `folder`."""
    disk = LocalDisk()
    index = await open_index(disk, place_of(folder), rebuild_on_damage=rebuild_on_damage)
    storage = await LedgerStorage.open(
        disk=disk, index=index, directories=[str(folder)], settings=SETTINGS, marks=NoMarks()
    )
    return storage, disk


async def close_real(storage: LedgerStorage[int], disk: LocalDisk) -> None:
    """Close storage, index and disk."""
    await storage.close()
    await storage._index.close()
    disk.close()


async def fill(folder: Path) -> None:
    """Fill many ledgers in several flushes and openings, so that the index has several files."""
    for part in range(3):
        storage, disk = await open_real(folder)
        for ledger in range(LEDGERS):
            known = await storage.load_ledger(LedgerId(ledger))
            info = known or storage.create_ledger(LedgerId(ledger), b"k" * 20)
            first = part * ENTRIES // 3
            bodies = [body_of(ledger, entry) for entry in range(first, first + ENTRIES // 3)]
            await storage.wait_for_space()
            storage.put(info, run_of(ledger, first, bodies))
        await storage.flush()
        await close_real(storage, disk)


async def read_all(folder: Path, *, rebuild_on_damage: bool = False) -> dict[str, object]:
    """Return how many entries are right, how many raise an error, and which are absent or wrong."""
    try:
        storage, disk = await open_real(folder, rebuild_on_damage=rebuild_on_damage)
    except (QuireError, OSError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    right = errors = 0
    wrong: list[str] = []
    for ledger in range(LEDGERS):
        for entry in (*range(ENTRIES), NO_ENTRY):
            expected = body_of(ledger, ENTRIES - 1 if entry == NO_ENTRY else entry)
            try:
                body = await storage.read(LedgerId(ledger), EntryId(entry))
            except (NoSuchEntryError, NoSuchLedgerError) as error:
                wrong.append(str(error))
            except (DamagedError, UnknownLedgerStateError, StorageError):
                errors += 1
            else:
                right += body == expected
                if body != expected:
                    wrong.append(f"ledger {ledger} entry {entry} has other bytes")
    await close_real(storage, disk)
    return {"right": right, "errors": errors, "wrong": wrong[:5]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read_all(Path(sys.argv[1])))))
