"""Measures a flush: CPU and wall-clock microseconds of an entry, index blocks and bytes, for several shapes.

python -m benchmarks.storage_flush [folder] [--turns]

With `--turns`, measures instead how long a flush keeps the event loop from other work: the most CPU that the loop's
thread spends in one turn, the longest turn on the clock, and how much of a flush the turns above 10 ms take. The loop
never sleeps then, so the other figures would mean nothing.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.storage_reads import open_storage, put
from quire_bookie.storage import LedgerStorage

ENTRY_BYTES = 100
LONG_TURN_S = 0.01
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


def _wide() -> Shape:
    """Return 32,000 ledgers with one entry each."""
    for ledger in range(32_000):
        yield ledger, 0, 1


def _wide_again() -> Shape:
    """Return the second entry of 32,000 ledgers."""
    for ledger in range(32_000):
        yield ledger, 1, 1


def _again() -> Shape:
    """Return a second round of every third id after the first was flushed: each block is merged with its old
    content."""
    for entry in range(1, 30_000, 3):
        for ledger in range(20):
            yield ledger, entry, 1


def _table_bytes(folder: str) -> int:
    return sum(table.stat().st_size for table in Path(folder, "index").glob("*.sst"))


async def _turns(storage: LedgerStorage[int]) -> str:
    """Flush, and return what the turns of the loop took meanwhile."""
    longest_cpu_s = longest_s = blocked_s = 0.0
    began = time.perf_counter()
    flushing = asyncio.ensure_future(storage.flush())
    while not flushing.done():
        cpu, wall = time.thread_time(), time.perf_counter()
        await asyncio.sleep(0)
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        longest_cpu_s, longest_s = max(longest_cpu_s, cpu), max(longest_s, wall)
        blocked_s += wall if wall > LONG_TURN_S else 0
    await flushing
    took_s = time.perf_counter() - began
    return f"{longest_cpu_s * 1e3:8.1f} {longest_s * 1e3:8.1f} {blocked_s * 1e3:9.1f} {took_s * 1e3:9.1f}"


async def _costs(storage: LedgerStorage[int]) -> str:
    """Flush, and return what an entry took."""
    stats = storage.stats
    before, blocks, flushes = stats.entries_flushed, stats.index_blocks_written, stats.flushes
    cpu, wall = time.process_time(), time.perf_counter()
    await storage.flush()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    entries = stats.entries_flushed - before
    figures = f"{entries:9d} {stats.flushes - flushes:8d} {stats.index_blocks_written - blocks:7d}"
    return figures + f" {cpu / entries * 1e6:14.2f} {wall / entries * 1e6:14.2f}"


async def main() -> None:
    """Print a table."""
    turns = "--turns" in sys.argv
    folders = [each for each in sys.argv[1:] if not each.startswith("--")]
    if turns:
        print("shape       CPU ms  wall ms  above 10  flush ms")
    else:
        print("shape        entries  flushes  blocks   CPU us/entry  wall us/entry  index bytes/entry")
    for shapes in ([_dense], [_striped], [_third, _again], [_many], [_wide, _wide_again]):
        with tempfile.TemporaryDirectory(dir=folders[0] if folders else None) as folder:
            index, storage = await open_storage(folder)
            for shape in shapes:
                for ledger, first, count in shape():
                    await put(storage, ledger, first, [bytes(ENTRY_BYTES)] * count)
                line = f"{shape.__name__[1:]:10s} {await (_turns if turns else _costs)(storage)}"
                print(line, end="" if shape is shapes[-1] and not turns else "\n")
            await storage.close()
            await index.close()
            if not turns:
                print(f" {_table_bytes(folder) / storage.stats.entries_flushed:18.2f}")


if __name__ == "__main__":
    asyncio.run(main())
