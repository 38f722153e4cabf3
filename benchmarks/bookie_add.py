"""Measures pipelined V2 adds to one bookie in its own process: durable adds a second, and server CPU of an add.

Usage: python -m benchmarks.bookie_add [--seconds 5] [--entry-bytes 1024] [--ledgers 4] [--ledgers-each 1]
       [--window 2000] [--in-all 0] [--profile FILE]

The client keeps `window` adds outstanding on each of `ledgers` connections. With `--in-all` it keeps that number on all
connections together and deals them to the ledgers in turns, like one client with many channels. Every ledger has an
entry before the measurement begins. The bookie's CPU is that of its whole process with its threads, from /proc.
`--profile` makes the bookie write a cProfile that begins at its start. The row "100 connections, 10,000 ledgers" of
`bench_bookie` is `--ledgers 100 --ledgers-each 100 --in-all 1000`.
"""

import argparse
import asyncio
import cProfile
import gc
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

import uvloop

from quire_bookie.cli.process import GC_THRESHOLDS
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import master_key
from quire_bookie.wire.messages import AddResponse, Status

W = TypeVar("W", bound="Writer")
KEY = master_key(b"")
ADD_HEAD = struct.Struct(">ii20sqqqqI")
WARM_UP_ENTRIES = 200_000
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


async def serve(folder: str, profile: str | None) -> None:
    """Run the bookie until SIGTERM; print its port on the standard output."""
    gc.freeze()  # same as `cli.process`
    gc.set_threshold(*GC_THRESHOLDS)
    disk = LocalDisk()
    metadata = await LocalMetadataStore.open(f"{folder}/metadata")
    settings = BookieSettings(data_dir=folder, listen="127.0.0.1", advertise="127.0.0.1", port=0)
    running = await start_bookie(settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    print(running.port, flush=True)
    await ended.wait()
    if profile:
        profiler.disable()
        profiler.dump_stats(profile)
    stats, journal = running.bookie.stats, running.journal.stats
    print(
        f"bookie: {stats.add_entries} adds in {stats.add_runs} runs, {journal.groups} journal groups, "
        f"mean group write {1000 * journal.write_seconds.seconds / max(1, journal.groups):.2f} ms, "
        f"{running.storage.stats.flushes} flushes in {running.storage.stats.flush_seconds.seconds:.1f} s, "
        f"{stats.adds_paused} paused, {stats.adds_rejected} rejected",
        flush=True,
    )
    await running.stop()
    await metadata.close()
    disk.close()


class Writer(asyncio.Protocol):
    """Writes to several ledgers in turns on one connection. `refill` sends the adds that answers make room for."""

    def __init__(self, ledgers: Sequence[int], entry_bytes: int, entries: int = 1 << 62) -> None:
        self._entries = entries
        self._ledgers = ledgers
        self._payload = bytes(entry_bytes - 36)
        self._codec = ClientCodec(2)
        self._transport: asyncio.Transport | None = None
        self.refill: Callable[[int], None] = self.send
        self.sent = 0
        self.acknowledged = 0
        self.failures = 0
        self.stopping = False
        self.stopped = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; `send` sends the first adds."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses

    def data_received(self, data: bytes) -> None:
        """Count answers and send the adds that they make room for."""
        freed = 0
        for response in self._codec.feed(data):
            assert isinstance(response, AddResponse)
            freed += response.count
            if response.status is not Status.OK:
                self.failures += response.count
        self.acknowledged += freed
        if not self.stopping and self.sent < self._entries:
            self.refill(freed)
        elif self.acknowledged == self.sent:
            self.stopped.set()

    def stop(self) -> None:
        """Stop sending."""
        self.stopping = True
        if self.acknowledged == self.sent:
            self.stopped.set()

    def send(self, count: int) -> None:
        """Send the next `count` adds in one write."""
        assert self._transport is not None
        payload, ledgers = self._payload, self._ledgers
        lac = self.acknowledged // len(ledgers) - 2
        length = 24 + 36 + len(payload)
        header = v2.header_word(v2.ADD)
        buffers = []
        for number in range(self.sent, self.sent + count):
            entry, at = divmod(number, len(ledgers))
            buffers.append(ADD_HEAD.pack(length, header, KEY, ledgers[at], entry, lac, entry * len(payload), 0))
            buffers.append(payload)
        self.sent += count
        self._transport.write(b"".join(buffers))


class Dealer:
    """Deals adds to connections in turns, one write each, like a client with many channels and one common limit."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = writers
        self._next = 0
        for writer in writers:
            writer.refill = self.deal

    def deal(self, count: int) -> None:
        """Send the next `count` adds."""
        for _ in range(count):
            self._writers[self._next].send(1)
            self._next = (self._next + 1) % len(self._writers)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


async def open_writers(make: Callable[[Sequence[int]], W], connections: int, ledgers_each: int, port: int) -> list[W]:
    """Connect a writer of some ledgers for each connection; warm up, and add an entry to every ledger."""
    loop = asyncio.get_running_loop()
    writers = []
    for number in range(connections):
        # Assigns ledgers to connections by the ledger's id, like a client with several connections.
        writer = make(range(number, connections * ledgers_each, connections))
        await loop.create_connection(lambda writer=writer: writer, "127.0.0.1", port)  # type: ignore[misc]
        writers.append(writer)
    await warm_up(connections * ledgers_each, port)
    await first_entries(writers, ledgers_each)
    return writers


async def stop_writers(writers: Sequence[Writer]) -> None:
    """Stop sending and wait for all answers."""
    for writer in writers:
        writer.stop()
    await asyncio.gather(*(asyncio.wait_for(writer.stopped.wait(), 10) for writer in writers))


async def warm_up(ledger: int, port: int) -> None:
    """Fill the write cache and the first journal files, whose memory and blocks are reused from then on."""
    writer = Writer([ledger], 1024, WARM_UP_ENTRIES)
    await asyncio.get_running_loop().create_connection(lambda: writer, "127.0.0.1", port)
    writer.send(1000)
    await writer.stopped.wait()


async def first_entries(writers: Sequence[Writer], ledgers_each: int) -> None:
    """Add one entry to every ledger, so that the bookie knows them all."""
    for writer in writers:
        writer.stopping = True
        writer.send(ledgers_each)
        await writer.stopped.wait()
        writer.stopping = False
        writer.stopped.clear()


async def measure(options: argparse.Namespace, port: int, pid: int) -> None:
    """Warm up for a second, measure and print."""
    writers = await open_writers(
        lambda ledgers: Writer(ledgers, options.entry_bytes), options.ledgers, options.ledgers_each, port
    )
    if options.in_all:
        Dealer(writers).deal(options.in_all)
    else:
        for writer in writers:
            writer.send(options.window)
    await asyncio.sleep(1.0)
    began_s, cpu_s, own_s = time.monotonic(), cpu_seconds(pid), time.process_time()
    before = sum(writer.acknowledged for writer in writers)
    await asyncio.sleep(options.seconds)
    adds = sum(writer.acknowledged for writer in writers) - before
    took_s, cpu_s, own_s = time.monotonic() - began_s, cpu_seconds(pid) - cpu_s, time.process_time() - own_s
    await stop_writers(writers)
    failures = sum(writer.failures for writer in writers)
    print(
        f"{adds / took_s:,.0f} adds/s of {options.entry_bytes} bytes ({adds * options.entry_bytes / took_s / 1e6:.0f} "
        f"MB/s), server CPU {1e6 * cpu_s / max(1, adds):.2f} us an add ({100 * cpu_s / took_s:.0f} % of a core), "
        f"client CPU {1e6 * own_s / max(1, adds):.2f} us an add, {failures} failures"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--ledgers", type=int, default=4)
    parser.add_argument("--ledgers-each", type=int, default=1, help="ledgers written in turns on each connection")
    parser.add_argument("--window", type=int, default=2000)
    parser.add_argument("--in-all", type=int, default=0, help="adds outstanding on all connections together")
    parser.add_argument("--folder", help="folder for the bookie's data; default: a temporary folder")
    parser.add_argument("--profile")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve, options.profile))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, "-m", "benchmarks.bookie_add", "--serve", folder]
        if options.profile:
            command += ["--profile", options.profile]
        bookie = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert bookie.stdout is not None
        try:
            uvloop.run(measure(options, int(bookie.stdout.readline()), bookie.pid))
        finally:
            bookie.terminate()
            print(bookie.stdout.read().strip())
            bookie.wait(30)


if __name__ == "__main__":
    main()
