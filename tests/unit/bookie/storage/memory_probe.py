"""Run as a separate process: loads a real storage with small entries and prints its memory use, in bytes.

Output: one line `idle peak configured`.
"""

import asyncio
import gc
import sys
from pathlib import Path

from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import TooManyRequestsError
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

MIB = 1 << 20
WRITE_CACHE_BYTES, READ_CACHE_BYTES, INDEX_BYTES = 32 * MIB, 24 * MIB, 8 * MIB
ENTRY_BYTES = 100
LEDGERS = 200
RUN_ENTRIES = 40


class _NoMarks:
    def capture(self) -> int:
        return 0

    async def commit(self, mark: int, /) -> None:
        return


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


async def _load(storage: LedgerStorage[int], entries: int) -> None:
    """Put runs of every ledger in turn, as views into one socket buffer each, until `entries` were stored."""
    infos = []
    for ledger in range(LEDGERS):
        await storage.load_ledger(LedgerId(ledger))
        infos.append(storage.create_ledger(LedgerId(ledger), b"k" * 20))
    first = 0
    for _round in range(entries // (LEDGERS * RUN_ENTRIES)):
        for info in infos:
            buffer = memoryview(bytes(64 * 1024))
            views = [buffer[at * 150 : at * 150 + ENTRY_BYTES] for at in range(RUN_ENTRIES)]
            run = Run(info.ledger_id, EntryId(first), views, EntryId(-1), RUN_ENTRIES * ENTRY_BYTES)
            while True:
                try:
                    storage.put(info, run)
                    break
                except TooManyRequestsError:
                    await storage.wait_for_space()
        first += RUN_ENTRIES
        await asyncio.sleep(0)


async def _read_all(storage: LedgerStorage[int]) -> int:
    """Scan half of the ledgers, so that read cache and index cache fill."""
    read = 0
    for ledger in range(0, LEDGERS, 2):
        entry = 0
        info = storage.cached_ledger(LedgerId(ledger))
        assert info is not None
        while entry <= info.last_entry:
            got = len(await storage.read_many(LedgerId(ledger), EntryId(entry), 1000, MIB))
            entry += got
            read += got
    return read


async def main(folder: str, entries: int) -> None:
    """Print the resident memory when idle, and the peak after loading and reading."""
    disk = LocalDisk()
    index = await RocksIndexStore.open(f"{folder}/index", cache_bytes=INDEX_BYTES)
    settings = StorageSettings(write_cache_bytes=WRITE_CACHE_BYTES, read_cache_bytes=READ_CACHE_BYTES)
    storage = await LedgerStorage.open(
        disk=disk, index=index, directories=[f"{folder}/ledgers"], settings=settings, marks=_NoMarks()
    )
    gc.collect()
    idle = _status("VmRSS")
    await _load(storage, entries)
    assert await _read_all(storage) == LEDGERS // 2 * (entries // LEDGERS)
    print(idle, _status("VmHWM"), WRITE_CACHE_BYTES + READ_CACHE_BYTES + INDEX_BYTES)
    await storage.close()
    await index.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
