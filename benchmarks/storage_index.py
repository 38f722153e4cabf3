"""Counts the index operations: puts and gets of a flush, and gets of a cold lookup, for striped and many small ledgers.

python -m benchmarks.storage_index [folder]

Counts every call between the storage and RocksDB. Fails when a lookup took more than one get.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.storage_reads import SETTINGS, NoMarks, put
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage import LedgerStorage
from quire_bookie.storage.formats.index_keys import block_key
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

ENTRY_BYTES = 1024
LOOKUPS = 500
Shape = list[tuple[int, list[int]]]
"""Ledgers, each with the ids that the bookie holds of it."""


class CountingIndex(RocksIndexStore):
    """RocksDB with counted calls."""

    keys_got = 0
    keys_put = 0
    bytes_put = 0

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return one value per key, in order."""
        self.keys_got += len(keys)
        return await super().get_many(keys)

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """Apply all changes or none."""
        self.keys_put += len(puts)
        self.bytes_put += sum(len(key) + len(value) for key, value in puts)
        await super().commit(puts, deletes, sync=sync)


def striped(ensemble: int, quorum: int, bookie: int, ledgers: int, entries: int) -> Shape:
    """Return the entries on one bookie of an ensemble when each entry is written to `quorum` of `ensemble` in turn."""
    ids = [entry for entry in range(entries) if (bookie - entry) % ensemble < quorum]
    return [(ledger, ids) for ledger in range(ledgers)]


SHAPES: dict[str, Shape] = {
    "20 ledgers, all ids": striped(1, 1, 0, 20, 5_000),
    "20 ledgers, 5/3/2": striped(5, 3, 2, 20, 8_000),
    "20 ledgers, 3/2/2": striped(3, 2, 1, 20, 8_000),
    "10,000 ledgers x 10": [(ledger, list(range(10))) for ledger in range(10_000)],
}


async def fill(storage: LedgerStorage[int], shape: Shape) -> int:
    """Put every entry, in runs of consecutive ids as from a socket; return their number."""
    count = 0
    for ledger, ids in shape:
        at = 0
        while at < len(ids):
            end = at + 1
            while end < len(ids) and ids[end] == ids[end - 1] + 1 and end - at < 50:
                end += 1
            await put(storage, ledger, ids[at], [bytes(ENTRY_BYTES)] * (end - at))
            at = end
        count += len(ids)
    return count


async def look_up(folder: str, shape: Shape) -> tuple[float, float]:
    """Return gets and microseconds of a lookup of a random entry, with empty caches and loaded ledger states."""
    chance = random.Random(1)
    asked = [(LedgerId(ledger), EntryId(chance.choice(ids))) for ledger, ids in chance.choices(shape, k=LOOKUPS)]
    index, storage = await opened(folder)
    for ledger in {ledger for ledger, _entry in asked}:
        await storage.load_ledger(ledger)
    before, begun = index.keys_got, time.perf_counter()
    for ledger, entry in asked:
        if await index.get(block_key(ledger, entry >> 8)) is None:
            raise SystemExit(f"ledger {ledger} entry {entry} is not in the index")
    took = time.perf_counter() - begun
    own = index.keys_got - before
    before = index.keys_got
    for ledger, entry in asked:
        await storage.read(ledger, entry)
    gets = (index.keys_got - before) / len(asked)
    await storage.close()
    await index.close()
    if gets > 1:
        raise SystemExit(f"{gets:.2f} gets a lookup instead of one")
    return gets, took * 1e6 / own


async def opened(folder: str) -> tuple[CountingIndex, LedgerStorage[int]]:
    """Open a storage on the real disk with an index that counts."""
    index = await CountingIndex.open(f"{folder}/index")
    assert isinstance(index, CountingIndex)
    storage = await LedgerStorage.open(
        disk=LocalDisk(), index=index, directories=[f"{folder}/ledgers"], settings=SETTINGS, marks=NoMarks()
    )
    return index, storage


async def main() -> None:
    """Print a table."""
    print("| shape | entries | flushes | puts | gets of flushes | index bytes an entry | gets a lookup | get us |")
    print("|---|---|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
            index, storage = await opened(folder)
            before = index.keys_got
            entries = await fill(storage, shape)
            loading = index.keys_got - before  # each new ledger takes one get that checks whether it exists
            await storage.flush()
            puts, gets, size = index.keys_put, index.keys_got - before - min(loading, len(shape)), index.bytes_put
            flushes = storage.stats.flushes
            await storage.close()
            await index.close()
            a_lookup, get_us = await look_up(folder, shape)
            print(
                f"| {name} | {entries:,} | {flushes} | {puts:,} | {gets:,} | {size / entries:.2f} | {a_lookup:.2f} | "
                f"{get_us:.0f} |"
            )


if __name__ == "__main__":
    asyncio.run(main())
