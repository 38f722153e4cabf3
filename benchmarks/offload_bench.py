"""`make bench-offload`: measures offloads, reads of offloaded ledgers through a broker, and the effect on publishers.

One `quire standalone` with one bookie, etcd and a real S3 server, all on this machine. Three parts:

* objects: the bytes of a ledger are uploaded unchanged, copied from the bookie into both objects, and read back, like a
  task of the offload job does. MB/s, and CPU in ms per MiB of this process, of the standalone and of the S3 server.
* catch-up: the stock client reads two topics with the same messages from the earliest on, one whose ledgers are on the
  bookie and one whose ledgers are only in the bucket. MB/s, and CPU of the standalone.
* publishing: the stock client publishes at a steady rate, first alone, then while an offload job of another topic runs
  at its rate limit. p50 and p99 until the acknowledgement.

Prints medians (least..most) over the rounds, then each aim of issue 7 with the measured value. `--quick` runs short
cases, `--json FILE` stores the numbers.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.offload_topics import Bucket, catch_up, publishing
from benchmarks.servers import cpu_seconds
from benchmarks.spark_bench import Case, write_ledgers
from quire_bookie.client import LedgerClient
from quire_bookie.limits import MIB
from quire_bookie.model import LedgerId
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_broker.offload.format import new_uuid
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import delete_segment, write_segment
from quire_broker.offload.settings import WriteSettings
from quire_broker.offload.windows import WindowCache
from quire_jobs.offload.ledger_copy import READ_BACK
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.s3_server import S3Server, require_s3
from tests.support.standalone import StandaloneProcess

BUCKET = "ledgers"
SIZES = (1024, 16 * 1024)
SETTINGS = (
    "managedLedgerMaxSizePerLedgerMbytes=16",
    "managedLedgerMaxEntriesPerLedger=1000000",
    "managedLedgerMinLedgerRolloverTimeMinutes=0",
    "defaultRetentionTimeInMinutes=-1",
    "defaultRetentionSizeInMB=-1",
    "retentionCheckIntervalInSeconds=1",
    "managedLedgerOffloadDeletionLagMs=0",
    "managedLedgerOffloadDriver=aws-s3",
    f"managedLedgerOffloadBucket={BUCKET}",
)

Row = dict[str, float]


@dataclass
class Results:
    """Rows by step, one a round."""

    rows: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, name: str, row: Row) -> None:
        """Record one round of a step."""
        self.rows.setdefault(name, []).append(row)
        shown = {key: round(value, 2) for key, value in row.items()}
        print(f"  {name}: {json.dumps(shown)}", file=sys.stderr)

    def median(self, name: str, key: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(row[key] for row in self.rows[name])

    def show(self) -> None:
        """Print a line for each step."""
        for name, rows in self.rows.items():
            cells = []
            for key in rows[0]:
                values = [row[key] for row in rows]
                cells.append(f"{key} {statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})")
            print(f"{name:<34}" + "  ".join(cells))

    def aims(self) -> Iterator[tuple[str, str, float, bool]]:
        """Yield name, aim and measured value, and whether the aim is met."""
        for size in SIZES:
            for step, said in (("copy", "into the bucket"), ("offload", "into the bucket and read back")):
                rate = self.median(f"{size} B, {step}", "mb_s")
                yield f"offload of {size} B entries, one task, {said}: MB/s", ">= 100", rate, rate >= 100
        for size in SIZES:
            gone, kept = (self.median(f"{size} B, catch-up from {tier}", "mb_s") for tier in ("the bucket", "bookies"))
            yield f"catch-up of {size} B messages: bucket by bookies", ">= 0.50", gone / kept, gone / kept >= 0.5
        for key in ("p50_ms", "p99_ms"):
            ratio = self.median("publishing, offload at its rate", key) / self.median("publishing, quiet", key)
            yield f"publishing during an offload by without: {key[:3]}", "<= 1.10", ratio, ratio <= 1.1


async def copying(
    results: Results, metadata: str, objects: ObjectStore, size_mib: int, rounds: int, pids: list[int]
) -> None:
    """Run the part `objects`."""
    async with LedgerClient.connect(metadata) as client:
        for size in SIZES:
            (ledger,) = await write_ledgers(metadata, Case("", "entries", size, size_mib * MIB // size), 1)
            for _ in range(rounds):
                for name, row in (await _one_round(client, objects, LedgerId(ledger), pids)).items():
                    results.add(f"{size} B, {name}", row)


async def _one_round(client: LedgerClient, objects: ObjectStore, ledger: LedgerId, pids: list[int]) -> dict[str, Row]:
    settings, uuid = WriteSettings(), new_uuid(os.urandom(16))
    rows: dict[str, Row] = {}
    async with await client.open_ledger(ledger, recover=False) as reader:
        size_bytes = reader.length

        async def plain() -> None:
            block = os.urandom(4 * MIB)

            async def chunks() -> AsyncIterator[bytes]:
                for at in range(0, size_bytes, len(block)):
                    yield block[: size_bytes - at]

            await objects.put_stream(
                "plain", chunks(), part_bytes=settings.part_bytes, parts_at_once=settings.parts_at_once
            )

        async def read_back() -> None:
            cache = WindowCache(READ_BACK)
            await (await SegmentReader.open(objects, ledger, uuid, cache)).verify()
            await cache.close()

        rows["plain upload"] = await _measured(plain, size_bytes, pids)
        rows["copy"] = await _measured(lambda: write_segment(objects, reader, uuid, settings), size_bytes, pids)
        rows["read back"] = await _measured(read_back, size_bytes, pids)
    copied, read, upload = rows["copy"], rows["read back"], rows["plain upload"]
    both = {name: copied[name] + read[name] for name in copied if name != "mb_s"}
    rows["offload"] = {"mb_s": 1 / (1 / copied["mb_s"] + 1 / read["mb_s"])} | both
    rows["offload"]["of_upload"] = rows["offload"]["mb_s"] / upload["mb_s"]
    await delete_segment(objects, ledger, uuid)
    await objects.delete("plain")
    return rows


async def _measured(work: Callable[[], Awaitable[object]], size_bytes: int, pids: list[int]) -> Row:
    """Return MB/s, and ms of CPU per MiB of this process and of each of `pids`."""
    began_s, cpu_s, theirs = time.perf_counter(), time.process_time(), [cpu_seconds(pid) for pid in pids]
    await work()
    mib = size_bytes / MIB
    row = {
        "mb_s": size_bytes / 1e6 / (time.perf_counter() - began_s),
        "here_ms": (time.process_time() - cpu_s) * 1000 / mib,
    }
    for name, pid, before in zip(("standalone_ms", "s3_ms"), pids, theirs, strict=True):
        row[name] = (cpu_seconds(pid) - before) * 1000 / mib
    return row


def run(size_mib: int, rounds: int, seconds: float, parts: list[str], folder: Path) -> Results:
    """Start the servers, measure and stop them."""
    results = Results()
    for part in ("etcd", "s3"):
        (folder / part).mkdir()
    s3, etcd = S3Server(require_s3(), folder / "s3"), EtcdServer(require_etcd(), folder / "etcd")
    process: StandaloneProcess | None = None
    try:
        s3.start()
        s3.make_bucket(BUCKET)
        os.environ.update(s3.environment)  # broker and job use the same keys
        etcd.start()
        metadata = f"etcd://{etcd.endpoint}"
        process = StandaloneProcess(folder, metadata=metadata, settings=SETTINGS)
        process.start()
        bucket = Bucket(f"s3://{BUCKET}", s3.endpoint, s3.buckets / BUCKET)
        if "objects" in parts:
            objects, pids = open_object_store(bucket.url, s3.environment), [process.pid, s3.pid]
            asyncio.run(copying(results, metadata, objects, size_mib, rounds, pids))
        if "catch-up" in parts:
            for size in SIZES:
                catch_up(results.add, process, size, size_mib * MIB // size, rounds)
        if "publishing" in parts:
            publishing(results.add, process, metadata, bucket, seconds, rounds)
    finally:
        if process is not None:
            process.close()
        etcd.kill()
        s3.stop()
    return results


def main() -> None:
    """Run the command line."""
    every = ["objects", "catch-up", "publishing"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="48 MiB a case and one round, 3 s of publishing")
    parser.add_argument("--mib", type=int, default=96, help="payload of a case, 48 or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="seconds of each round of publishing")
    parser.add_argument("--only", choices=every, help="run only this part, without the aims")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    size_mib, rounds, seconds = (48, 1, 3) if given.quick else (given.mib, given.rounds, given.seconds)
    parts = [given.only] if given.only else every
    with tempfile.TemporaryDirectory(prefix="quire-bench-offload-") as folder:
        results = run(size_mib, rounds, seconds, parts, Path(folder))
    results.show()
    if not given.only:
        print(f"\n{'aim':72} {'wanted':>8} {'measured':>9}")
        for name, wanted, measured, is_met in results.aims():
            print(f"{name:72} {wanted:>8} {measured:9.2f} {'' if is_met else 'MISSED'}")
    if given.json:
        given.json.write_text(json.dumps(results.rows, indent=1))


if __name__ == "__main__":
    main()
