"""Measures a managed ledger on one bookie: `python -m benchmarks.reference_targets [--seconds 5]`.

One process holds a bookie (real disk, RocksDB), embedded metadata and a managed ledger; bookie and client communicate
over loopback TCP. Prints percentiles of an append paced at 1,000/s, a read of the newest entry from the cache and from
the bookie, and the opening of a new durable cursor, with their targets.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.distribution import percentile
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import QuireError
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server import BookieSettings, start_bookie
from quire_broker.managed_ledger import EARLIEST, ManagedLedger, ManagedLedgerFactory, Position
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

RATE = 1000
PAYLOAD = bytes(1024)
TARGETS = {"append": 10.0, "tail read, cache": 1.0, "tail read, bookie": 5.0, "cursor open": 100.0}


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[LedgerClient, ManagedLedger]]:
    """Start one bookie and one managed ledger; close them at the end."""
    async with contextlib.AsyncExitStack() as undo:
        clock, chance, disk = SystemClock(), SystemChance(), LocalDisk()
        undo.callback(disk.close)
        metadata = await open_metadata_store(f"local:{folder / 'metadata'}")
        undo.push_async_callback(metadata.close)
        settings = BookieSettings(str(folder / "bookie"), listen="127.0.0.1", port=0, advertise="127.0.0.1")
        bookie = await start_bookie(settings, metadata=metadata, disk=disk, clock=clock, chance=chance)
        undo.push_async_callback(bookie.stop)
        client = await LedgerClient.open(metadata, clock=clock, chance=chance)
        undo.push_async_callback(client.close)
        one = ManagedLedgerSettings(ensemble_size=1, write_quorum=1, ack_quorum=1)
        factory = ManagedLedgerFactory(client, metadata, one, clock, chance)
        undo.push_async_callback(factory.close)
        yield client, await factory.open("public/default/persistent/targets")


async def measure_appends(ledger: ManagedLedger, seconds: float) -> tuple[list[float], list[float], Position]:
    """Return the latencies in ms of paced appends and of reading each new entry from the cache, and the last
    position."""
    loop = asyncio.get_running_loop()
    cursor = await ledger.open_cursor("reader", EARLIEST)
    appended: list[float] = []
    read: list[float] = []
    last = Position(-1, -1)
    begun = loop.time()
    for number in range(int(seconds * RATE)):
        await asyncio.sleep(max(0.0, begun + number / RATE - loop.time()))
        durable: asyncio.Future[Position] = loop.create_future()

        def done(
            position: Position | None, error: QuireError | None, durable: asyncio.Future[Position] = durable
        ) -> None:
            if position is None:
                durable.set_exception(error or RuntimeError("an append failed without a reason"))
            else:
                durable.set_result(position)

        sent = time.perf_counter()
        ledger.append(PAYLOAD, done)
        last = await durable
        stored = time.perf_counter()
        entries = await cursor.read(entries_max=10)
        appended.append((stored - sent) * 1000)
        read.append((time.perf_counter() - stored) * 1000)
        cursor.acknowledge([entry.position for entry in entries])
    return appended, read, last


async def measure_bookie_reads(client: LedgerClient, last: Position, count: int) -> list[float]:
    """Return the latencies in ms of reading one of the newest entries from the bookie."""
    reader = await client.open_ledger(LedgerId(last.ledger_id), recover=False)
    took = []
    for back in range(count):
        entry = EntryId(max(0, reader.last_add_confirmed - back % 500))
        begun = time.perf_counter()
        await reader.read(entry, entry)
        took.append((time.perf_counter() - begun) * 1000)
    return took


async def measure_cursor_opens(ledger: ManagedLedger, count: int) -> list[float]:
    """Return the latencies in ms of creating durable cursors."""
    took = []
    for number in range(count):
        begun = time.perf_counter()
        await ledger.open_cursor(f"cursor-{number}", EARLIEST)
        took.append((time.perf_counter() - begun) * 1000)
    return took


async def run(seconds: float) -> None:
    """Measure and print a Markdown table."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        async with cluster(Path(folder)) as (client, ledger):
            appended, cached, last = await measure_appends(ledger, seconds)
            found = {
                "append": appended,
                "tail read, cache": cached,
                "tail read, bookie": await measure_bookie_reads(client, last, 2000),
                "cursor open": await measure_cursor_opens(ledger, 200),
            }
    print("| operation | p50 ms | p95 ms | p99 ms | target p95 ms |\n|---|---|---|---|---|")
    for name, values in found.items():
        shown = " | ".join(f"{percentile(sorted(values), share):.3f}" for share in (0.5, 0.95, 0.99))
        print(f"| {name} | {shown} | {TARGETS[name]:g} |")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    asyncio.run(run(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
