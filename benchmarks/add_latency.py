"""Measures where pipelined adds wait in a bookie: the parts of their latency by percentile, and what ran meanwhile.

Usage: python -m benchmarks.add_latency [--seconds 8] [--entry-bytes 1024] [--connections 4] [--ledgers-each 1]
       [--outstanding 1000] [--folder FOLDER]

The bookie runs in its own process on a disk port that notes when each call began and ended, the client of `bookie_add`
in this one. It prints the client's latency; the parts of the bookie's latency around each percentile of it; and how
long a journal group took, by the calls that overlapped it. uvloop's clock counts in
milliseconds, and so do the parts.
"""

import argparse
import asyncio
import gc
import json
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bookie_add import Dealer, Writer, cpu_seconds, open_writers, stop_writers
from quire_bookie.cli.process import GC_THRESHOLDS
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.disk import DiskFile, JournalFile
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.env.slow_log import Value
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import Buffer
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

Span = tuple[str, float, float, int]
"""A call: what it did, when it began and ended, and its bytes."""
EVERY_ADD_S = 1e-9
STALL_SAMPLE_S = 0.001
STALL_S = 0.002
SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
GROUP = "journal group"
KINDS = {"last-mark": "mark", "index.proof": "proof", "journal.witness": "witness"}


@dataclass(slots=True)
class Trace:
    """What happened in the bookie: calls, and the parts of batches of adds."""

    spans: list[Span] = field(default_factory=list)
    adds: list[dict[str, Value]] = field(default_factory=list)

    async def call(self, kind: str, size: int, step: Callable[[], Any]) -> Any:
        """Await a step, and note it."""
        began_s = time.monotonic()
        try:
            return await step()
        finally:
            self.spans.append((kind, began_s, time.monotonic(), size))


class TracedFile:
    """Implements `DiskFile`: another one, with notes."""

    def __init__(self, file: DiskFile, trace: Trace) -> None:
        self._file = file
        self._trace = trace
        self._kind = "log" if file.path.endswith(".qlog") else "file"
        self.path = file.path
        self.size, self.read = file.size, file.read
        self.truncate, self.close = file.truncate, file.close

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write, and note it."""
        size = sum(map(len, buffers))
        await self._trace.call(f"{self._kind} write", size, lambda: self._file.write(offset, buffers))

    async def sync(self) -> None:
        """Sync, and note it."""
        await self._trace.call(f"{self._kind} sync", 0, self._file.sync)


class TracedJournalFile:
    """Implements `JournalFile`: another one, with notes of submissions and of the loop's time for them."""

    def __init__(self, file: JournalFile, trace: Trace) -> None:
        self._file = file
        self._trace = trace
        self._kind = KINDS.get(file.path.rpartition("/")[2], GROUP)
        self.path = file.path
        self.alignment_bytes = file.alignment_bytes
        self.close = file.close

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]) -> None:
        """Submit, and note it."""
        size, began_s, spans, now = sum(map(len, buffers)), time.monotonic(), self._trace.spans, time.monotonic
        kind = "journal header" if self._kind == GROUP and offset == 0 else self._kind

        def noted(error: BaseException | None) -> None:
            spans.append((kind, began_s, now(), size))
            done(error)

        self._file.submit(offset, buffers, noted)
        spans.append(("submit", began_s, now(), size))


class TracedDisk(LocalDisk):
    """The real disk, with notes of the calls of a bookie's flushes and journal."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    async def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open a file whose writes and syncs are noted."""
        return TracedFile(await super().open(path, create=create), self._trace)

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """Open a file whose submissions are noted."""
        return TracedJournalFile(await super().open_journal(path, synced=synced), self._trace)

    async def create_journal(self, path: str, size: int) -> None:
        """Create a journal file, and note it."""
        create = super().create_journal
        await self._trace.call("journal file of zeros", size, lambda: create(path, size))

    async def replace_file(self, path: str, content: bytes) -> None:
        """Replace a file, and note it."""
        kind, replace = KINDS.get(path.rpartition("/")[2], "replaced file"), super().replace_file
        await self._trace.call(kind, len(content), lambda: replace(path, content))


class TracedIndex(RocksIndexStore):
    """The real index, with notes of its commits. Set `trace` after `open`."""

    trace: Trace

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """Commit, and note it."""
        commit = super().commit
        await self.trace.call("index commit", len(puts), lambda: commit(puts, deletes, sync=sync))


def note_adds(running: RunningBookie, trace: Trace) -> None:
    """Note every batch of adds instead of logging the slow ones."""

    def note(operation: str, took_s: float, fields: Mapping[str, Value]) -> None:
        if operation == "add":
            ended_s = time.monotonic()
            trace.adds.append({"ended_s": ended_s, "took_s": took_s, **fields})

    running.bookie.slow.note = note  # type: ignore[method-assign]


def note_stalls(loop: asyncio.AbstractEventLoop, trace: Trace) -> None:
    """Note when a timer of 1 ms was late."""
    due_s = time.monotonic() + STALL_SAMPLE_S

    def late() -> None:
        now_s = time.monotonic()
        if now_s - due_s > STALL_S:
            trace.spans.append(("loop stall", due_s, now_s, 0))
        note_stalls(loop, trace)

    loop.call_later(STALL_SAMPLE_S, late)


async def serve(folder: str) -> Trace:
    """Run the bookie until SIGTERM. Print its port, later its counters."""
    gc.freeze()  # same as `cli.process`
    gc.set_threshold(*GC_THRESHOLDS)
    trace, loop = Trace(), asyncio.get_running_loop()
    disk, metadata = TracedDisk(trace), await LocalMetadataStore.open(f"{folder}/metadata")

    async def open_index(path: str) -> IndexStore:
        index = await TracedIndex.open(path)
        assert isinstance(index, TracedIndex)
        index.trace = trace
        return index

    service = ServiceSettings(slow=SlowSettings(EVERY_ADD_S))
    settings = BookieSettings(data_dir=folder, listen="127.0.0.1", advertise="127.0.0.1", port=0, service=service)
    running = await start_bookie(
        settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance(), open_index=open_index
    )
    note_adds(running, trace)
    note_stalls(loop, trace)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    print(running.port, flush=True)
    await ended.wait()
    stats, storage = running.bookie.stats, running.storage.stats
    print(
        f"{storage.flushes} flushes in {storage.flush_seconds.seconds:.1f} s, {stats.adds_paused} runs waited for "
        f"space in the write cache, {stats.adds_rejected} refused",
        flush=True,
    )
    await running.stop()
    await metadata.close()
    disk.close()
    return trace


class TimedWriter(Writer):
    """Notes how long each add took, for the client. One list of times for all connections."""

    def __init__(self, ledgers: Sequence[int], entry_bytes: int, took: list[tuple[float, float, int]]) -> None:
        super().__init__(ledgers, entry_bytes)
        self._took = took
        self._sent: deque[tuple[float, int]] = deque()

    def send(self, count: int) -> None:
        """Send adds, and note when."""
        super().send(count)
        self._sent.append((time.monotonic(), count))

    def data_received(self, data: bytes) -> None:
        """Count answers, and note how long they took. Answers of one connection come in order."""
        before, now_s = self.acknowledged, time.monotonic()
        super().data_received(data)
        answers, sent = self.acknowledged - before, self._sent
        while answers:
            at_s, count = sent.popleft()
            done = min(count, answers)
            self._took.append((now_s, now_s - at_s, done))
            answers -= done
            if done < count:
                sent.appendleft((at_s, count - done))


async def measure(options: argparse.Namespace, port: int, pid: int) -> tuple[float, float, list[tuple[float, int]]]:
    """Add for some seconds; return when that began and ended, and the latencies that the client saw, with counts."""
    took = list[tuple[float, float, int]]()
    writers = await open_writers(
        lambda ledgers: TimedWriter(ledgers, options.entry_bytes, took), options.connections, options.ledgers_each, port
    )
    if options.ledgers_each > 1:
        Dealer(writers).deal(options.outstanding)
    else:
        for writer in writers:
            writer.send(options.outstanding // options.connections)
    await asyncio.sleep(2.0)
    began_s, cpu_s, own_s = time.monotonic(), cpu_seconds(pid), time.process_time()
    await asyncio.sleep(options.seconds)
    ended_s, cpu_s, own_s = time.monotonic(), cpu_seconds(pid) - cpu_s, time.process_time() - own_s
    await stop_writers(writers)
    if any(writer.failures for writer in writers):
        raise SystemExit("adds failed")
    measured = [(each_s, count) for at_s, each_s, count in took if began_s <= at_s < ended_s]
    adds = sum(count for _, count in measured)
    seconds = ended_s - began_s
    print(
        f"{adds / seconds:,.0f} adds/s of {options.entry_bytes} bytes, bookie {cpu_s / seconds:.2f} of a core, "
        f"client {own_s / seconds:.2f}"
    )
    return began_s, ended_s, measured


def at_shares(values: Iterable[tuple[float, int]]) -> list[float]:
    """Return the latencies in ms at `SHARES`; `values`: latencies in seconds, and how many entries have each."""
    ordered = sorted(values)
    total, found, seen = sum(count for _, count in ordered), list[float](), 0
    for took_s, count in ordered:
        seen += count
        while len(found) < len(SHARES) and seen >= SHARES[len(found)][1] * total:
            found.append(took_s * 1000)
    return found


class Overlaps:
    """Finds the calls that ran during a time, other than the journal's own."""

    def __init__(self, spans: Iterable[Span]) -> None:
        by_kind: dict[str, list[Span]] = {}
        for span in spans:
            by_kind.setdefault(span[0], []).append(span)
        self._by_kind = {kind: sorted(each, key=lambda span: span[2]) for kind, each in by_kind.items()}
        self._ends = {kind: [span[2] for span in each] for kind, each in self._by_kind.items()}
        self.kinds = [kind for kind in self._by_kind if kind not in (GROUP, "submit")]

    def seconds(self, kind: str, began_s: float, ended_s: float) -> float:
        """Return for how long calls of a kind ran in that time."""
        spans, total = self._by_kind[kind], 0.0
        for at in range(bisect_left(self._ends[kind], began_s), len(spans)):
            if spans[at][1] >= ended_s and spans[at][1] - ended_s > 1:
                break
            total += max(0.0, min(spans[at][2], ended_s) - max(spans[at][1], began_s))
        return total


def print_parts(adds: list[dict[str, Any]], overlaps: Overlaps) -> None:
    """Print the parts of the latency of the entries around each percentile."""
    adds = sorted((each for each in adds if "queue_s" in each), key=lambda each: float(each["took_s"]))
    total = sum(each["entries"] for each in adds)
    parts = ("space_s", "queue_s", "journal_s", "answer_s")
    names = " | ".join(["entries around", "latency ms", *(part[:-2] for part in parts), *overlaps.kinds])
    print(f"\n| {names} |\n|{'---|' * (len(parts) + 2 + len(overlaps.kinds))}")
    for name, low, high in (
        ("p50", 0.45, 0.55),
        ("p90", 0.88, 0.92),
        ("p99", 0.985, 0.995),
        ("p99.9", 0.998, 1.0),
    ):
        seen, count, sums = 0, 0, dict.fromkeys([*parts, "took_s", *overlaps.kinds], 0.0)
        for each in adds:
            seen += each["entries"]
            if not low * total < seen <= high * total:
                continue
            count += each["entries"]
            for part in (*parts, "took_s"):
                sums[part] += each[part] * each["entries"]
            for kind in overlaps.kinds:
                sums[kind] += each["entries"] * overlaps.seconds(
                    kind, each["ended_s"] - each["took_s"], each["ended_s"]
                )
        if count:
            figures = [sums["took_s"], *(sums[part] for part in parts), *(sums[kind] for kind in overlaps.kinds)]
            print(f"| {name} | {' | '.join(f'{1000 * figure / count:.1f}' for figure in figures)} |")


def print_groups(spans: list[Span], overlaps: Overlaps, took_s: float) -> None:
    """Print how long journal groups took, by what overlapped them, and all other calls."""
    groups = [span for span in spans if span[0] == GROUP]
    print(f"\n| journal groups during | groups | share of time | KiB | {' | '.join(name for name, _ in SHARES)} ms |")
    print(f"|{'---|' * (4 + len(SHARES))}")

    def line(name: str, some: list[Span]) -> None:
        if some:
            figures = " | ".join(f"{figure:.1f}" for figure in at_shares((each[2] - each[1], 1) for each in some))
            size = sum(each[3] for each in some) / len(some) / 1024
            share = sum(each[2] - each[1] for each in some) / took_s
            print(f"| {name} | {len(some)} | {share:.3f} | {size:,.0f} | {figures} |")

    line("any", groups)
    alone = list(groups)
    for kind in overlaps.kinds:
        beside = [span for span in groups if overlaps.seconds(kind, span[1], span[2])]
        line(kind, beside)
        known = set(beside)
        alone = [span for span in alone if span not in known]
    line("nothing else", alone)
    print(f"\n| call | calls | share of time | KiB | {' | '.join(name for name, _ in SHARES)} ms |")
    print(f"|{'---|' * (4 + len(SHARES))}")
    for kind in [*overlaps.kinds, "submit"]:
        line(kind, [span for span in spans if span[0] == kind])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--ledgers-each", type=int, default=1, help="ledgers written in turns on each connection")
    parser.add_argument("--outstanding", type=int, default=1000, help="adds outstanding on all connections together")
    parser.add_argument("--folder", help="folder for the bookie's data; default: a temporary folder")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        noted = uvloop.run(serve(options.serve))
        Path(options.serve, "trace.json").write_text(json.dumps({"spans": noted.spans, "adds": noted.adds}))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, "-m", "benchmarks.add_latency", "--serve", folder]
        bookie = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert bookie.stdout is not None
        try:
            port = int(bookie.stdout.readline())
            began_s, ended_s, client = uvloop.run(measure(options, port, bookie.pid))
        finally:
            bookie.terminate()
            print(bookie.stdout.read().strip())
            bookie.wait(60)
        trace = json.loads(Path(folder, "trace.json").read_text())
    print("client: " + ", ".join(f"{n[0]} {ms:.1f}" for n, ms in zip(SHARES, at_shares(client), strict=True)) + " ms")
    spans = [tuple(span) for span in trace["spans"] if began_s <= span[1] and span[2] < ended_s]
    adds = [each for each in trace["adds"] if began_s <= each["ended_s"] - each["took_s"] and each["ended_s"] < ended_s]
    bookie_s = at_shares((each["took_s"], each["entries"]) for each in adds)
    print("bookie: " + ", ".join(f"{n[0]} {ms:.1f}" for n, ms in zip(SHARES, bookie_s, strict=True)) + " ms")
    overlaps = Overlaps(spans)
    print_parts(adds, overlaps)
    print_groups(spans, overlaps, ended_s - began_s)


if __name__ == "__main__":
    main()
