"""Compares the ways to submit a journal group: `python -m benchmarks.journal_submit [--folder DIR] [--seconds S]`.

For each way, group size and load of the event loop: the latency from submission to `done` on the loop, and the time
that the submission itself takes on the loop. *Load* is a callback that computes in slices of 1 ms, 9 of every 10, like
a busy bookie. The ways take turns within each case, so that a noisy machine affects all alike. Prints a Markdown table.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from quire_bookie.env.disk import JournalFile
from quire_bookie.env.journal_submit_aio import AioContexts, AioJournalFile
from quire_bookie.env.journal_submit_thread import ThreadJournalFile
from quire_bookie.env.local_disk import LocalDisk

FILE_BYTES = 64 << 20
ROUNDS = 12
SIZES = {"4 KiB": 4096, "1 MiB": 1 << 20}
LOADS = (0.0, 0.9)
SLICE_S = 0.001
PERIOD_SLICES = 10


@dataclass(slots=True)
class Sample:
    """Times in seconds, one value a group."""

    latency_s: list[float] = field(default_factory=list)
    submit_s: list[float] = field(default_factory=list)


class Load:
    """Keeps the loop busy for a share of the time: slices of a millisecond with a poll between them, then a pause."""

    def __init__(self, share: float) -> None:
        self._slices = round(share * PERIOD_SLICES)
        self._done = 0
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        """Start the load; does nothing at a share of 0."""
        if self._slices:
            self._tick()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        end = time.perf_counter() + SLICE_S
        count = 0
        while time.perf_counter() < end:
            count += 1  # holds the interpreter lock, like parsing and encoding
        self._done += 1
        if self._done % self._slices:
            self._handle = loop.call_soon(self._tick)
        else:
            # asyncio waits in whole milliseconds: a shorter pause would become one.
            self._handle = loop.call_later(SLICE_S * (PERIOD_SLICES - self._slices), self._tick)

    def stop(self) -> None:
        """End."""
        if self._handle is not None:
            self._handle.cancel()


async def measure(file: JournalFile, size: int, share: float, seconds: float, sample: Sample) -> None:
    """Submit one group after the other for `seconds`."""
    loop = asyncio.get_running_loop()
    head, body = os.urandom(48), os.urandom(size - 48)
    offset = 0
    load = Load(share)
    load.start()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        answered = loop.create_future()

        def done(error: BaseException | None, answered: asyncio.Future[float] = answered) -> None:
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(time.perf_counter())

        started = time.perf_counter()
        file.submit(offset, [head, body], done)
        sample.submit_s.append(time.perf_counter() - started)
        sample.latency_s.append(await answered - started)
        offset = (offset + size) % (FILE_BYTES - size)
    load.stop()


async def compare(folder: str, seconds: float) -> dict[tuple[str, float, str], Sample]:
    """Run all cases; the ways take turns."""
    disk = LocalDisk()
    ways: dict[str, Callable[[str], JournalFile]] = {
        "aio": partial(AioJournalFile, contexts=AioContexts()),
        "thread": ThreadJournalFile,
    }
    for way in ways:
        # Each way has its own file: direct and buffered writes to one file would slow each other down.
        await disk.create_journal(f"{folder}/{way}", FILE_BYTES)
    samples: dict[tuple[str, float, str], Sample] = {}
    for name, size in SIZES.items():
        for share in LOADS:
            for _ in range(ROUNDS):
                for way, open_file in ways.items():
                    # As in production, only the thread lowers the switch interval.
                    sys.setswitchinterval(0.005)
                    file = open_file(f"{folder}/{way}")
                    sample = samples.setdefault((name, share, way), Sample())
                    await measure(file, size, share, seconds / ROUNDS, sample)
                    await file.close()
    disk.close()
    return samples


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journal_submit", description=__doc__)
    parser.add_argument("--folder", help="folder to write to; default: the system's temporary folder")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-journal-", dir=options.folder) as folder:
        samples = asyncio.run(compare(folder, options.seconds))
    print("| group | load of the loop | way | p50 ms | p99 ms | submit us (p50) | groups |")
    print("|---|---|---|---|---|---|---|")
    for (name, share, way), sample in samples.items():
        percentiles = statistics.quantiles(sample.latency_s, n=100)
        submit_us = statistics.median(sample.submit_s) * 1e6
        print(
            f"| {name} | {share:.0%} | {way} | {percentiles[49] * 1e3:.2f} | {percentiles[98] * 1e3:.2f} "
            f"| {submit_us:.0f} | {len(sample.latency_s)} |"
        )


if __name__ == "__main__":
    main()
