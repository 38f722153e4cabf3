"""Measures delayed entries of one subscription: `python -m benchmarks.delayed_entries [ENTRIES ...]`. Prints a table.

The index of a Shared subscription takes entries with delivery times spread over a day, saves them in buckets, and is
then loaded by a second owner. Ledgers are kept in memory, in a process of their own kind: the figures are what a
broker's event loop does, without bookies. Memory is what the index holds while everything waits, and afterwards at the
second owner; the ledgers are not counted.
"""

import asyncio
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable

from quire_broker.dispatch.delayed_index import DelayedIndex
from quire_broker.dispatch.redelivery import NO_SLOT
from quire_broker.managed_ledger import Cursor, ManagedLedger, Position
from quire_broker.settings.dispatch import DispatchSettings
from tests.unit.broker.managed_ledger.world import VirtualClock, World, run

COUNTS = (100_000, 1_000_000)
LEDGER_ENTRIES = 50_000
DAY_MS = 86_400_000
AT_ONCE = 1_000
LEDGER = 1_000_000_000
"""Above all ledgers of the run: the entries themselves are not stored."""


class Reading:
    """The topic, as far as the index asks for it: it ends behind the last delayed entry."""

    name = "public/default/persistent/topic"
    last_confirmed = Position(2 * LEDGER, 0)

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[object]:
        raise AssertionError("no bucket is unreadable here")


def index_of(cursor: Cursor, clock: VirtualClock) -> DelayedIndex:
    """Return an empty index of the subscription."""
    return DelayedIndex(cursor, Reading(), DispatchSettings(), clock, lambda entry: (0, NO_SLOT), lambda: None)  # type: ignore[arg-type]


async def subscription(world: World) -> tuple[ManagedLedger, Cursor]:
    """Return the cursor at a new broker."""
    process = world.process()
    ledger = await process.open()
    return ledger, await process.run(ledger.open_cursor("sub"))


def held_bytes(world: World) -> int:
    """Return the bytes that the index holds, without those of the ledgers in memory."""
    gc.collect()
    stored = sum(sys.getsizeof(entry) for one in world.bookies.ledgers.values() for entry in one.entries)
    statistics = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, f"*{part}*") for part in ("dispatch/delayed", "cursors/ack_ranges", "cursors/bucket")]
    )
    return sum(one.size for one in statistics.statistics("filename")) - stored


async def until(condition: Callable[[], bool]) -> None:
    """Wait in virtual time, which takes none."""
    while not condition():  # noqa: ASYNC110  nothing reports that all is saved
        await asyncio.sleep(0.1)


async def fill(index: DelayedIndex, entries: int, now_ms: int) -> float:
    """Add the entries and wait until they are saved. Return the CPU time, in s."""
    chance, begun = random.Random(1), time.process_time()
    for first in range(0, entries, AT_ONCE):
        for number in range(first, min(entries, first + AT_ONCE)):
            ledger, entry = divmod(number, LEDGER_ENTRIES)
            due_ms = now_ms + 60_000 + int(chance.random() * DAY_MS)
            index.add(due_ms, Position(LEDGER + ledger, entry), NO_SLOT, now_ms)
        await asyncio.sleep(0.001)
    await until(lambda: index.in_memory < DispatchSettings().delayed_bucket_entries)
    return time.process_time() - begun


def measure(entries: int, *, traced: bool) -> list[float]:
    """Return CPU s of saving, CPU s of loading, and with `traced` the bytes held by the first and the second owner."""
    found: list[float] = []

    async def scenario(world: World) -> None:
        _, cursor = await subscription(world)
        clock = VirtualClock()
        first = index_of(cursor, clock)
        await first.load()
        found.append(await fill(first, entries, clock.now_ms()))
        before = held_bytes(world) if traced else 0
        saved = len(first) - first.in_memory
        await first.close()
        second = index_of(cursor, clock)
        begun = time.process_time()
        await second.load()
        found.append(time.process_time() - begun)
        assert len(second) == saved, "the second owner knows all saved entries"
        first.clear()
        found.extend([before, held_bytes(world) if traced else 0])
        await second.close()

    if traced:
        tracemalloc.start()
    try:
        run(scenario)
    finally:
        tracemalloc.stop()
    return found


def main() -> None:
    """Print the table."""
    counts = [int(word) for word in sys.argv[1:]] or list(COUNTS)
    print(
        "| entries | add and save, us an entry | load by the next owner, ms | bytes an entry, first owner, next owner |"
    )
    print("|---|---|---|---|")
    for entries in counts:
        saving_s, loading_s, _, _ = measure(entries, traced=False)
        _, _, first, second = measure(entries, traced=True) if entries <= 1_000_000 else (0.0, 0.0, 0.0, 0.0)
        print(
            f"| {entries:,} | {saving_s / entries * 1e6:.1f} | {loading_s * 1000:.1f} | "
            f"{first / entries:.2f}, {second / entries:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
