"""Measures pipelined V2 reads of one bookie in its own process, in order: reads a second, and server CPU of a read.

Usage: python -m benchmarks.bookie_read [--entries 150000] [--entry-bytes 1024] [--window 100] [--windows 8]
       [--passes 3] [--only cold,warm,batch,tail] [--profile FILE]

The reader works like the load generator of `make bench-bookie`: it keeps `windows` ranges of `window` single reads
outstanding on one connection, and starts the next range when one is answered. `batch`: batch reads of `window` entries,
one after the other. `cold`: the bookie was restarted and the kernel's pages of its entry logs were dropped. `warm`:
with the memory that the earlier passes left; the ledger is larger than the bookie's read cache. `tail`: entries that
are still in the write cache. The bookie's CPU is that of its whole process with its threads, from /proc.
"""

import argparse
import asyncio
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.bookie_add import ADD_HEAD, KEY, cpu_seconds
from quire_bookie.wire import v2

READ_HEAD_BYTES = v2.RESPONSE.size
BATCH_HEAD_BYTES = READ_HEAD_BYTES + 8
CODE = struct.Struct(">i")
TAIL_ENTRIES = 20_000


class Client(asyncio.Protocol):
    """Sends requests and counts the bytes of their answers, which all have one size.

    `send` is called with the number of answers received, and returns false at the end.
    """

    def __init__(self, answer_bytes: int, send: Callable[[asyncio.Transport, int], bool]) -> None:
        self._answer_bytes = answer_bytes
        self._send = send
        self._received_bytes = 0
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses
        self._send(self._transport, 0)

    def data_received(self, data: bytes) -> None:
        """Count answers, check the code of one answer of each buffer, and continue."""
        start = -self._received_bytes % self._answer_bytes
        if start + 12 <= len(data) and CODE.unpack_from(data, start + 8)[0]:
            self.done.set_exception(RuntimeError(f"unexpected answer: {data[start : start + 28].hex()}"))
        self._received_bytes += len(data)
        assert self._transport is not None
        if self._send(self._transport, self._received_bytes // self._answer_bytes) and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the run: the connection must stay open until its end."""
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the connection was lost: {exc}"))


async def run(port: int, answer_bytes: int, send: Callable[[asyncio.Transport, int], bool]) -> None:
    """Run one client from its first request to its last answer."""
    client: Client | None = None

    def make() -> Client:
        nonlocal client
        client = Client(answer_bytes, send)
        return client

    transport, _ = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    assert client is not None
    try:
        await client.done
    finally:
        transport.close()


async def fill(port: int, first: int, entries: int, entry_bytes: int) -> None:
    """Add entries to one ledger, 1,000 outstanding."""
    payload, header, sent = bytes(entry_bytes - 36), v2.header_word(v2.ADD), 0

    def send(transport: asyncio.Transport, received: int) -> bool:
        nonlocal sent
        count = min(entries, received + 1000) - sent
        buffers = []
        for entry in range(first + sent, first + sent + count):
            buffers.append(ADD_HEAD.pack(24 + entry_bytes, header, KEY, 1, entry, entry - 1000, 0, 0))
            buffers.append(payload)
        sent += count
        transport.write(b"".join(buffers))
        return received == entries

    await run(port, v2.ADD_RESPONSE_FRAME_BYTES, send)


async def read(port: int, first: int, entries: int, entry_bytes: int, window: int, windows: int) -> None:
    """Read single entries in order, with `windows` ranges of `window` reads outstanding."""
    pack, header, sent = v2.READ_REQUEST.pack, v2.header_word(v2.READ), 0

    def send(transport: asyncio.Transport, received: int) -> bool:
        nonlocal sent
        end = min(entries, (received // window + windows) * window)
        if end > sent:
            transport.write(b"".join([pack(20, header, 1, entry) for entry in range(first + sent, first + end)]))
            sent = end
        return received == entries

    await run(port, READ_HEAD_BYTES + entry_bytes, send)


async def read_batches(port: int, entries: int, entry_bytes: int, window: int) -> None:
    """Read batches of `window` entries, one after the other."""
    pack, header, sent = v2.BATCH_REQUEST.pack, v2.header_word(v2.BATCH_READ), 0

    def send(transport: asyncio.Transport, received: int) -> bool:
        nonlocal sent
        if received == sent and sent < entries // window:
            transport.write(pack(v2.BATCH_REQUEST.size - 4, header, 1, sent * window, sent, window, 5 << 20))
            sent += 1
        return received == entries // window

    await run(port, BATCH_HEAD_BYTES + window * (4 + entry_bytes), send)


class Server:
    """The bookie in its own process."""

    def __init__(self, folder: str, profile: str | None) -> None:
        command = [sys.executable, "-m", "benchmarks.bookie_add", "--serve", folder]
        if profile:
            command += ["--profile", profile]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def cpu_s(self) -> float:
        """Return its CPU seconds so far."""
        return cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """Stop it cleanly, so that everything is flushed to the entry logs."""
        self._process.terminate()
        self._process.wait(60)


def drop_pages(folder: str) -> None:
    """Drop the kernel's pages of the entry logs."""
    for path in Path(folder).rglob("*.qlog"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def measure(options: argparse.Namespace, folder: str) -> None:
    """Write a ledger, restart the bookie and read."""
    server = Server(folder, None)
    uvloop.run(fill(server.port, 0, options.entries, options.entry_bytes))
    server.stop()
    drop_pages(folder)
    server = Server(folder, options.profile)
    window, windows = options.window, options.windows
    wanted = options.only.split(",")
    try:
        for name in wanted:
            count, first = options.entries, 0
            if name == "tail":
                count, first = min(TAIL_ENTRIES, options.entries), options.entries
                uvloop.run(fill(server.port, first, count, options.entry_bytes))
            for _ in range(1 if name == "cold" else options.passes):
                began_s, cpu_s = time.monotonic(), server.cpu_s()
                if name == "batch":
                    uvloop.run(read_batches(server.port, count, options.entry_bytes, window))
                else:
                    uvloop.run(read(server.port, first, count, options.entry_bytes, window, windows))
                took_s, cpu_s = time.monotonic() - began_s, server.cpu_s() - cpu_s
                print(f"{name}: {count / took_s:,.0f} entries/s, server CPU {1e6 * cpu_s / count:.2f} us an entry")
    finally:
        server.stop()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=150_000)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--only", default="cold,warm,batch,tail")
    parser.add_argument("--folder", help="folder for the bookie's data; default: a temporary folder")
    parser.add_argument("--profile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(options, folder)


if __name__ == "__main__":
    main()
