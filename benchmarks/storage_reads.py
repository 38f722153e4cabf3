"""Measures cold reads from entry logs: scans with read-ahead, random reads, and many short ledgers one after the other.

    python benchmarks/storage_reads.py [folder]

On the real disk and index. Cold means that the caches of the storage are empty; the kernel's pages of the logs are
dropped too, where permitted.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import TooManyRequestsError
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

LEDGERS = 20
SHORT_LEDGERS, SHORT_ENTRIES = 5000, 10
READERS = 64
SETTINGS = StorageSettings()


class NoMarks:
    """A storage without a journal has no marks."""

    def capture(self) -> int:
        """Nothing."""
        return 0

    async def commit(self, mark: int, /) -> None:
        """Nothing."""


async def open_storage(folder: str) -> tuple[RocksIndexStore, LedgerStorage[int]]:
    """Open a storage on the real disk."""
    index = await RocksIndexStore.open(f"{folder}/index")
    storage = await LedgerStorage.open(
        disk=LocalDisk(), index=index, directories=[f"{folder}/ledgers"], settings=SETTINGS, marks=NoMarks()
    )
    return index, storage


async def put(storage: LedgerStorage[int], ledger: int, first: int, entries: list[bytes]) -> None:
    """Put entries, waiting while both halves of the write cache are full."""
    info = await storage.load_ledger(LedgerId(ledger)) or storage.create_ledger(LedgerId(ledger), b"k" * 20)
    run = Run(LedgerId(ledger), EntryId(first), entries, EntryId(-1), sum(map(len, entries)))
    while True:
        try:
            return storage.put(info, run)
        except TooManyRequestsError:
            await storage.wait_for_space()


def _drop_pages(folder: str) -> None:
    for path in Path(folder, "ledgers").glob("*.qlog"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


async def _fill(folder: str, size: int, per_ledger: int) -> None:
    index, storage = await open_storage(folder)
    for first in range(0, per_ledger, 50):
        for ledger in range(LEDGERS):
            await put(storage, ledger, first, [bytes(size)] * 50)
    await storage.close()
    await index.close()
    _drop_pages(folder)


async def _measure(folder: str, size: int, per_ledger: int, style: str, reads: int) -> tuple[float, int]:
    _drop_pages(folder)
    index, storage = await open_storage(folder)
    chance = random.Random(1)
    start = time.perf_counter()
    done = 0
    while done < reads:
        if style == "random":
            ledger, entry = chance.randrange(LEDGERS), chance.randrange(per_ledger)
            await storage.read(LedgerId(ledger), EntryId(entry))
            done += 1
        elif style == "one by one":
            await storage.read(LedgerId(done // per_ledger % LEDGERS), EntryId(done % per_ledger))
            done += 1
        else:
            ledger, entry = done // per_ledger % LEDGERS, done % per_ledger
            done += len(await storage.read_many(LedgerId(ledger), EntryId(entry), 1000, 1 << 20))
    rate = done / (time.perf_counter() - start)
    disk_reads = storage.stats.log_reads
    await storage.close()
    await index.close()
    return rate, disk_reads


async def _short_ledgers(folder: str) -> None:
    """Print rate, CPU and disk reads of ledgers that are read from their first to their last entry."""
    index, storage = await open_storage(folder)
    for ledger in range(SHORT_LEDGERS):
        await put(storage, ledger, 0, [bytes(1024)] * SHORT_ENTRIES)
    await storage.close()
    await index.close()
    for readers in (1, READERS):
        _drop_pages(folder)
        index, storage = await open_storage(folder)
        left = iter(range(SHORT_LEDGERS))
        start_s, start_cpu_s = time.perf_counter(), time.process_time()

        async def read(wanted: Iterator[int] = left, storage: LedgerStorage[int] = storage) -> None:
            for ledger in wanted:
                for entry in range(SHORT_ENTRIES):
                    await storage.read(LedgerId(ledger), EntryId(entry))

        await asyncio.gather(*(read() for _ in range(readers)))
        took_s, cpu_s, entries = time.perf_counter() - start_s, time.process_time() - start_cpu_s, storage.stats.reads
        print(
            f"{readers:7d}  {entries / took_s:9.0f}  {1e6 * cpu_s / SHORT_LEDGERS:18.0f}  "
            f"{storage.stats.log_reads / SHORT_LEDGERS:20.2f}"
        )
        await storage.close()
        await index.close()


async def main() -> None:
    """Print two tables."""
    print("entry bytes  style       entries/s     MB/s  disk reads  times random")
    for size, per_ledger in ((100, 20_000), (1024, 10_000), (65_536, 200)):
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
            await _fill(folder, size, per_ledger)
            base = 0.0
            for style, reads in (
                ("random", 3000),
                ("one by one", LEDGERS * per_ledger),
                ("batch", LEDGERS * per_ledger),
            ):
                rate, disk_reads = await _measure(folder, size, per_ledger, style, min(reads, 100_000))
                base = base or rate
                line = f"{size:11d}  {style:10s} {rate:10.0f} {rate * size / 1e6:8.1f} {disk_reads:11d}"
                print(f"{line} {rate / base:13.1f}")
    print(f"\n{SHORT_LEDGERS} ledgers of {SHORT_ENTRIES} entries of 1 KiB")
    print("readers  entries/s  CPU us of a ledger  disk reads a ledger")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        await _short_ledgers(folder)


if __name__ == "__main__":
    asyncio.run(main())
