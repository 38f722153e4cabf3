"""Measures the CPU microseconds of an append in the ledger client, for runs of one entry and of fifty.

The bookies are real and run in their own processes, so that the CPU time of this process is that of the client alone
(with its socket calls). `--null` replaces them by servers that only answer, which measures the client without waits for
a disk.

    python -m benchmarks.ledger_append [--entries N] [--payload BYTES] [--bookies N] [--null]
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from quire_bookie.client import LedgerClient, LedgerWriter
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import LedgerError
from quire_bookie.limits import MIB
from quire_bookie.metadata import layout
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.service_info import BookieServiceInfo, bookie_endpoint, encode_service_info
from quire_bookie.model import BookieId, EntryId
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import AddRequest, BookieInfoRequest, BookieInfoResponse, Status
from quire_bookie.wire.server_codec import ServerCodec, encode_adds


class _Null(asyncio.Protocol):
    """Answers every add at once and stores nothing; to the other requests of a new ledger it knows no answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._codec = ServerCodec()

    def data_received(self, data: bytes) -> None:
        for request in self._codec.feed(data):
            if isinstance(request, AddRequest):
                self._transport.write(encode_adds(request, Status.OK))
            elif isinstance(request, BookieInfoRequest):
                unknown = BookieInfoResponse(Status.OK, None, None, request.origin.transaction, None, None)
                self._transport.write(server_v3.encode_info(unknown))


async def _serve(pipe: Pipe, folder: str, null: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if null:
        server = await loop.create_server(_Null, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        loop.add_reader(pipe.fileno(), stop.set)
        await stop.wait()
        return
    # The bookie has its own metadata store here: the client needs only its port.
    metadata = await LocalMetadataStore.open(f"{folder}/metadata")
    bookie = await start_bookie(
        BookieSettings(data_dir=folder, listen="127.0.0.1", advertise="127.0.0.1", port=0),
        metadata=metadata,
        disk=LocalDisk(),
        clock=SystemClock(),
        chance=SystemChance(),
    )
    pipe.send(bookie.port)
    loop.add_reader(pipe.fileno(), stop.set)
    await stop.wait()
    await bookie.stop()
    await metadata.close()


def _serve_in_process(pipe: Pipe, folder: str, null: bool) -> None:
    asyncio.run(_serve(pipe, folder, null))


class _Load:
    """Keeps `window_bytes` of entries outstanding until `count` are confirmed."""

    def __init__(self, writer: LedgerWriter, payload: bytes, count: int, run: int, window_bytes: int) -> None:
        self._writer = writer
        self._payloads: Sequence[bytes] = [payload] * run
        self._count = count
        self._window = max(run, window_bytes // len(payload))
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writer.listener = self

    def fill(self) -> None:
        """Submit entries until the window is full."""
        writer = self._writer
        while (
            writer.last_add_pushed + 1 < self._count
            and writer.last_add_pushed - writer.last_add_confirmed < self._window
            and writer.is_writable
        ):
            writer.submit(self._payloads)

    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        if up_to + 1 >= self._count and not self.done.done():
            self.done.set_result(None)
        self.fill()

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self.done.set_exception(error)


async def _measure(ports: Sequence[int], folder: str, args: argparse.Namespace) -> None:
    metadata = await LocalMetadataStore.open(f"{folder}/metadata")
    for number, port in enumerate(ports):
        info = BookieServiceInfo((bookie_endpoint("127.0.0.1", port),))
        await metadata.put(layout.writable_path(BookieId(f"b{number}")), encode_service_info(info))
    client = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
    size = len(ports)
    payload = os.urandom(args.payload)
    print(f"{size} {'null servers' if args.null else 'bookies'}, payload {args.payload} bytes, window 2 MiB")
    for run in (1, 50):
        writer = await client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=(size + 1) // 2)
        load = _Load(writer, payload, args.entries, run, 2 * MIB)
        wall, cpu = time.perf_counter(), time.process_time()
        load.fill()
        await load.done
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        count = writer.last_add_confirmed + 1
        print(f"runs of {run:2}: {cpu / count * 1e6:6.2f} us CPU an append, {count / wall:9,.0f} appends/s", flush=True)
        await writer.close()
    await client.close()
    await metadata.close()


def main() -> None:
    """Parse the command line, start the servers, measure and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--payload", type=int, default=1024)
    parser.add_argument("--bookies", type=int, default=1)
    parser.add_argument("--null", action="store_true")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for number in range(args.bookies):
            ours, theirs = spawn.Pipe()
            data = Path(folder) / f"bookie{number}"
            data.mkdir()
            process = spawn.Process(target=_serve_in_process, args=(theirs, str(data), args.null))
            process.start()
            pipes.append(ours)
            processes.append(process)
        asyncio.run(_measure([pipe.recv() for pipe in pipes], folder, args))
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send("stop")
            process.join()


if __name__ == "__main__":
    main()
