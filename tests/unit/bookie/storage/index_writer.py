"""Run as a separate process, to be killed: commits to a RocksDB index and prints each number once it is durable."""

import asyncio
import sys

from quire_bookie.storage.index.index_rocksdb import RocksIndexStore


async def main(path: str) -> None:
    """Commit until killed."""
    index = await RocksIndexStore.open(path, cache_bytes=8 << 20)
    number = 0
    while True:
        await index.commit([(b"n%08d" % (number * 50 + at), b"%d" % number) for at in range(50)])
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
