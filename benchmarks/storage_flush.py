"""Measures a flush: CPU and wall-clock microseconds of an entry, index blocks and bytes, for several shapes.

python benchmarks/storage_flush.py [folder]
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.storage_reads import open_storage, put

ENTRY_BYTES = 100
Shape = Iterator[tuple[int, int, int]]


def _dense() -> Shape:
    """Return 20 ledgers with all ids."""
    for first in range(0, 10_000, 50):
        for ledger in range(20):
            yield ledger, first, 50


def _striped() -> Shape:
    """Return 20 ledgers of which this bookie holds two of three ids."""
    for entry in range(15_000):
        if entry % 3 != 1:
            for ledger in range(20):
                yield ledger, entry, 1


def _third() -> Shape:
    """Return 20 ledgers of which this bookie holds every third id."""
    for entry in range(0, 30_000, 3):
        for ledger in range(20):
            yield ledger, entry, 1


def _many() -> Shape:
    """Return 10,000 ledgers with 10 entries each."""
    for ledger in range(10_000):
        yield ledger, 0, 10


def _again() -> Shape:
    """Return a second round of every third id after the first was flushed: each block is merged with its old
    content."""
    for entry in range(1, 30_000, 3):
        for ledger in range(20):
            yield ledger, entry, 1


def _table_bytes(folder: str) -> int:
    return sum(table.stat().st_size for table in Path(folder, "index").glob("*.sst"))


async def main() -> None:
    """Print a table."""
    print("shape      entries  flushes  blocks   CPU us/entry  wall us/entry  index bytes/entry")
    for shapes in ([_dense], [_striped], [_third, _again], [_many]):
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
            index, storage = await open_storage(folder)
            for shape in shapes:
                before = (storage.stats.entries_flushed, storage.stats.index_blocks_written, storage.stats.flushes)
                for ledger, first, count in shape():
                    await put(storage, ledger, first, [bytes(ENTRY_BYTES)] * count)
                cpu, wall = time.process_time(), time.perf_counter()
                await storage.flush()
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                entries = storage.stats.entries_flushed - before[0]
                blocks = storage.stats.index_blocks_written - before[1]
                flushes = storage.stats.flushes - before[2]
                line = f"{shape.__name__[1:]:8s} {entries:9d} {flushes:8d} {blocks:7d}"
                line += f" {cpu / entries * 1e6:14.2f} {wall / entries * 1e6:14.2f}"
                print(line, end="" if shape is shapes[-1] else "\n")
            await storage.close()
            await index.close()
            print(f" {_table_bytes(folder) / storage.stats.entries_flushed:18.2f}")


if __name__ == "__main__":
    asyncio.run(main())
