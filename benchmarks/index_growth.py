"""Measures the costs of a commit and a get in an index with up to a million ledgers and a hundred million entries.

python -m benchmarks.index_growth [--ledgers 1000000] [--entries-each 100] [--folder FOLDER]

Only the index is written, not the entries: the state of each ledger and its blocks, as flushes of 10,000 ledgers each
would write them. `get` reads one random block at a time with nothing else running; `many` reads 512 in one call, as a
flush does. The lookups use the store of production with its threads.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.bookie_sides import memory_mib
from quire_bookie import limits
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.block_index import BlockSegment, merge_block
from quire_bookie.storage.formats.index_keys import BLOCK_SHIFT, block_key, state_key
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, encode_state

LEDGERS_PER_COMMIT = 10_000
ENTRY_BYTES = 1024
GETS = 3_000


def pairs_of(ledger: int, entries: int) -> list[tuple[bytes, bytes]]:
    """Return the index records of a ledger with this number of entries of 1 KiB."""
    pairs = [(state_key(LedgerId(ledger)), encode_state(LedgerInfo(LedgerId(ledger), b"k" * 20)))]
    for first in range(0, entries, 1 << BLOCK_SHIFT):
        count = min(entries - first, 1 << BLOCK_SHIFT)
        key = block_key(LedgerId(ledger), first >> BLOCK_SHIFT)
        segment = BlockSegment(ledger // 1000, 4096 + first * ENTRY_BYTES, range(count), [ENTRY_BYTES] * count)
        pairs.append((key, merge_block(key, None, [segment])))
    return pairs


async def get_costs(index: RocksIndexStore, ledgers: int, chance: random.Random) -> tuple[float, float, float]:
    """Return median and 99th percentile of a random get, and the time of a key in a get of many, in microseconds."""
    took = []
    for _ in range(GETS):
        key = block_key(LedgerId(chance.randrange(ledgers)), 0)
        begun = time.perf_counter()
        if await index.get(key) is None:
            raise SystemExit(f"the index lost {key.hex()}")
        took.append((time.perf_counter() - begun) * 1e6)
    begun = time.perf_counter()
    for _ in range(10):
        await index.get_many([block_key(LedgerId(chance.randrange(ledgers)), 0) for _ in range(512)])
    many = (time.perf_counter() - begun) * 1e6 / 5120
    took.sort()
    return statistics.median(took), took[len(took) * 99 // 100], many


def folder_mib(path: str) -> float:
    """Return the size of the files in a folder in MiB."""
    return sum(file.stat().st_size for file in Path(path).iterdir()) / 2**20


def own_memory_mib() -> float:
    """Return the resident memory of this process in MiB."""
    return memory_mib(os.getpid())[0]


async def main() -> None:
    """Grow the index and print a line at each power of ten."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--entries-each", type=int, default=100)
    parser.add_argument("--folder")
    options = parser.parse_args()
    chance = random.Random(1)
    print("| ledgers | entries | index MiB | commit of 10,000 ledgers, ms (worst) | get us p50 / p99 | many us a key | "
          "open s | memory MiB |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = f"{folder}/index"
        index = await RocksIndexStore.open(path, cache_bytes=limits.INDEX_CACHE_BYTES)
        commits: list[float] = []
        shown = LEDGERS_PER_COMMIT
        for first in range(0, options.ledgers, LEDGERS_PER_COMMIT):
            puts = [pair for n in range(LEDGERS_PER_COMMIT) for pair in pairs_of(first + n, options.entries_each)]
            begun = time.perf_counter()
            await index.commit(puts, sync=True)
            commits.append((time.perf_counter() - begun) * 1000)
            held = first + LEDGERS_PER_COMMIT
            if held >= min(shown, options.ledgers):
                shown *= 10
                begun = time.perf_counter()
                await index.close()
                index = await RocksIndexStore.open(path, cache_bytes=limits.INDEX_CACHE_BYTES)
                opened = time.perf_counter() - begun
                p50, p99, many = await get_costs(index, held, chance)
                print(
                    f"| {held:,} | {held * options.entries_each:,} | {folder_mib(path):.1f} | "
                    f"{statistics.median(commits):.0f} ({max(commits):.0f}) | {p50:.0f} / {p99:.0f} | "
                    f"{many:.1f} | {opened:.2f} | {own_memory_mib():.0f} |",
                    flush=True,
                )
                commits = []
        await index.close()


if __name__ == "__main__":
    asyncio.run(main())
