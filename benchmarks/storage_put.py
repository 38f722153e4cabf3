"""Measures the CPU microseconds of putting an entry into the write cache, by run length and entry size."""

import time

from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.write_cache import WriteCache

TOTAL_BYTES = 48 << 20


def _measure(entries: int, size: int) -> float:
    cache = WriteCache(1 << 30)
    info = LedgerInfo(LedgerId(1), b"k" * 20)
    buffer = memoryview(bytes(entries * size))
    views = [buffer[at * size : at * size + size] for at in range(entries)]
    runs = [
        Run(LedgerId(1), EntryId(first), views, EntryId(-1), entries * size)
        for first in range(0, min(200_000, TOTAL_BYTES // size), entries)
    ]
    for run in runs:
        cache.put(info, run)
    cache.swap()
    cache.release()
    start = time.process_time()
    for run in runs:
        cache.put(info, run)  # reuses chunks, like a bookie that has run for a while
    return (time.process_time() - start) * 1e6 / (len(runs) * entries)


def main() -> None:
    """Print a table."""
    print("entry bytes   run of   us per entry")
    for size in (100, 1024, 65_536):
        for entries in (1, 4, 64, 256):
            print(f"{size:11d} {entries:8d} {min(_measure(entries, size) for _ in range(3)):14.3f}")


if __name__ == "__main__":
    main()
