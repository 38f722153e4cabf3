"""Measures how long an auditor takes to load a cluster of many ledgers and to mark those of a lost bookie, and memory.

A real etcd is filled with ledgers as a broker writes them, on a dozen registered bookies and a missing one. It keeps
its data in a temporary folder without syncs, since the disk is not measured. Then a separate process starts
auto-recovery. Printed are the seconds until its first search for lost bookies has ended and until every ledger of the
missing bookie is marked once that counts as lost, its CPU seconds, and its peak memory before and after.

    python -m benchmarks.auditor_start [--ledgers N] [--etcd URL]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.service_info import BookieServiceInfo, bookie_endpoint, encode_service_info
from quire_bookie.metadata.store import MetadataStore, Put
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.recovery import start_auto_recovery
from quire_bookie.settings.metadata import MetadataSettings
from quire_bookie.settings.recovery import RecoverySettings
from tests.support.etcd_server import find_etcd
from tests.support.ports import free_port

_BOOKIES = [BookieId(f"bookie-{number}.bookies.pulsar.svc.cluster.local:3181") for number in range(13)]
_MISSING = _BOOKIES[-1]
_BATCH = 100
_BATCHES_AT_ONCE = 8


def ledger(number: int) -> LedgerMetadata:
    """Return metadata of a closed ledger as a broker leaves it: three replicas, an ensemble change in every eighth."""
    ensemble = tuple(_BOOKIES[(number + step) % len(_BOOKIES)] for step in range(3))
    segments = [Segment(EntryId(0), ensemble)]
    if number % 8 == 0:
        segments.append(Segment(EntryId(20_000), (*ensemble[:2], _BOOKIES[(number + 5) % len(_BOOKIES)])))
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        segments=tuple(segments),
        state=LedgerState.CLOSED,
        last_entry=EntryId(49_999),
        length=50_000 * 1024,
        custom={
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"tenant/namespace/persistent/topic-%d" % (number % 1000),
            "application": b"pulsar",
        },
        ctime_ms=1_700_000_000_000 + number,
        c_token=number,
    )


async def fill(url: str, count: int) -> None:
    """Write ledgers and cookies."""
    store = await open_metadata_store(url, MetadataSettings())
    try:
        batches = iter(range(0, count, _BATCH))

        async def work() -> None:
            for first in batches:
                numbers = range(first, min(first + _BATCH, count))
                puts = [Put(layout.ledger_path(LedgerId(n)), encode_ledger_metadata(ledger(n))) for n in numbers]
                await store.transact([], puts)

        await store.put(layout.INSTANCE_ID, b"benchmark")
        await asyncio.gather(*(work() for _ in range(_BATCHES_AT_ONCE)))
        for bookie in _BOOKIES:
            await store.put(layout.cookie_path(bookie), b"")
    finally:
        await store.close()


async def register(store: MetadataStore) -> None:
    """Register all bookies except the missing one."""
    for bookie in _BOOKIES[:-1]:
        info = BookieServiceInfo((bookie_endpoint("127.0.0.1", 1),))
        await store.put(layout.writable_path(bookie), encode_service_info(info), ephemeral=True)


def peak_mib() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _audit(url: str, pipe: Pipe) -> None:
    before_mib = peak_mib()
    store = await open_metadata_store(url, MetadataSettings())
    await register(store)
    settings = RecoverySettings(workers=0, lost_bookie_delay_s=86_400, check_interval_s=0)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    running = await start_auto_recovery(
        settings, metadata=store, clock=SystemClock(), chance=SystemChance(), name="benchmark"
    )
    while not running.stats.searches:  # noqa: ASYNC110  counters send no events
        await asyncio.sleep(0.01)
    start_s, start_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    start_mib = peak_mib()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await RecoveryControls(store).set_lost_bookie_delay_s(86_400)  # as an operator who declares the bookie lost
    while not running.stats.audits:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    audit_s, audit_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    marks = running.stats.marks_made
    await running.stop()
    await store.close()
    pipe.send((start_s, start_cpu_s, before_mib, start_mib, audit_s, audit_cpu_s, marks, peak_mib()))


def _process(url: str, pipe: Pipe) -> None:
    asyncio.run(_audit(url, pipe))


@contextlib.contextmanager
def etcd() -> Iterator[str]:
    """Start an etcd server and return its URL."""
    with tempfile.TemporaryDirectory() as folder:
        client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        arguments = (
            *("--data-dir", folder, "--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--logger", "zap", "--log-level", "error"),
        )
        server = subprocess.Popen([find_etcd(), *arguments])
        try:
            yield "etcd://" + client.removeprefix("http://")
        finally:
            server.kill()
            server.wait()


def measure(url: str, count: int) -> None:
    """Fill etcd, audit and print."""
    began_s = time.perf_counter()
    asyncio.run(fill(url, count))
    print(f"{count:,} ledgers were written in {time.perf_counter() - began_s:.1f} s", flush=True)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_process, args=(url, theirs))
    process.start()
    start_s, start_cpu_s, before_mib, start_mib, audit_s, audit_cpu_s, marks, peak = ours.recv()
    process.join()
    print(f"start: {start_s:.1f} s ({start_cpu_s:.1f} s CPU), memory {before_mib:.0f} -> {start_mib:.0f} MiB at most")
    print(f"audit: {audit_s:.1f} s ({audit_cpu_s:.1f} s CPU) for {marks:,} marks, memory {peak:.0f} MiB at most")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--etcd", help="an empty etcd to use; default: starts a server")
    options = parser.parse_args()
    if options.etcd:
        measure(options.etcd, options.ledgers)
        return
    with etcd() as url:
        measure(url, options.ledgers)


if __name__ == "__main__":
    main()
