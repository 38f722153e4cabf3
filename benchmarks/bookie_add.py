"""Pipelined V2 adds against one bookie in a process of its own: durable adds a second, and server CPU an add.

Usage: python -m benchmarks.bookie_add [--seconds 5] [--entry-bytes 1024] [--ledgers 4] [--ledgers-each 1]
       [--window 2000] [--profile FILE]

The client keeps `window` adds in flight on each of `ledgers` connections. The bookie's CPU is that of its whole
process, threads included, from /proc. `--profile` makes the bookie write a cProfile of the measured time.
"""

import argparse
import asyncio
import cProfile
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import LedgerId
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import master_key
from quire_bookie.wire.messages import AddResponse, Status

KEY = master_key(b"")
ADD_HEAD = struct.Struct(">ii20sqqqqI")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


async def serve(folder: str, profile: str | None) -> None:
    """Be the bookie until SIGTERM; says its port on the standard output."""
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
        f"{stats.adds_paused} paused, {stats.adds_rejected} rejected",
        flush=True,
    )
    await running.stop()
    await metadata.close()
    disk.close()


class Writer(asyncio.Protocol):
    """Some ledgers in turns on one connection with a full window."""

    def __init__(self, first: LedgerId, ledgers: int, entry_bytes: int, window: int) -> None:
        self._first = first
        self._ledgers = ledgers
        self._payload = bytes(entry_bytes - 36)
        self._window = window
        self._codec = ClientCodec(2)
        self._next = 0
        self._transport: asyncio.Transport | None = None
        self.acknowledged = 0
        self.failures = 0
        self.stopped = asyncio.Event()
        self._stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Fill the window."""
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self._transport = transport
        self._send(self._window)

    def data_received(self, data: bytes) -> None:
        """Count answers and refill what they freed."""
        freed = 0
        for response in self._codec.feed(data):
            assert isinstance(response, AddResponse)
            freed += response.count
            if response.status is not Status.OK:
                self.failures += response.count
        self.acknowledged += freed
        if not self._stopping:
            self._send(freed)
        elif self.acknowledged == self._next:
            self.stopped.set()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping = True

    def _send(self, count: int) -> None:
        assert self._transport is not None
        payload, first, ledgers = self._payload, self._first, self._ledgers
        lac = self.acknowledged // ledgers - 2
        length = 24 + 36 + len(payload)
        header = v2.header_word(v2.ADD)
        buffers = []
        for number in range(self._next, self._next + count):
            entry, ledger = number // ledgers, first + number % ledgers
            buffers.append(ADD_HEAD.pack(length, header, KEY, ledger, entry, lac, entry * len(payload), 0))
            buffers.append(payload)
        self._next += count
        self._transport.write(b"".join(buffers))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


async def measure(options: argparse.Namespace, port: int, pid: int) -> None:
    """Warm up for a second, measure, print."""
    loop = asyncio.get_running_loop()
    writers = []
    for ledger in range(options.ledgers):
        first = LedgerId(ledger * options.ledgers_each)
        writer = Writer(first, options.ledgers_each, options.entry_bytes, options.window)
        await loop.create_connection(lambda writer=writer: writer, "127.0.0.1", port)  # type: ignore[misc]
        writers.append(writer)
    await asyncio.sleep(1.0)
    began_s, cpu_s, own_s = time.monotonic(), cpu_seconds(pid), time.process_time()
    before = sum(writer.acknowledged for writer in writers)
    await asyncio.sleep(options.seconds)
    adds = sum(writer.acknowledged for writer in writers) - before
    took_s, cpu_s, own_s = time.monotonic() - began_s, cpu_seconds(pid) - cpu_s, time.process_time() - own_s
    for writer in writers:
        writer.stop()
    await asyncio.gather(*(asyncio.wait_for(writer.stopped.wait(), 10) for writer in writers))
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
    parser.add_argument("--ledgers-each", type=int, default=1, help="written in turns on each connection")
    parser.add_argument("--window", type=int, default=2000)
    parser.add_argument("--folder", help="where the bookie keeps its data; default: a temporary folder")
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
