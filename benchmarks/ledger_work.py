"""The work of our client in `make bench-ledger`, in its own process so that its CPU time can be measured.

    python -m benchmarks.ledger_work MODE metadata=etcd://HOST:PORT [KEY=VALUE ...]

Prints one line of JSON, with the names of the Java load generator where both measure the same thing. Modes:

* `write`: adds to one ledger, `pipeline` outstanding, `run` of them in one call;
* `crash`: confirms one entry, has `tail` more stored but not confirmed, and dies by SIGKILL;
* `recover`, `open`: open the given `ledgers` with recovery one after the other, or without it `at_once`;
* `create`: `count` ledgers of one entry, closed or left open;
* `read`: one ledger in order, by batch reads;
* `loss`: adds, kills the process `victim` during them, and continues;
* `repair`: marks the given ledger as lacking the bookie `bookies`; auto-recovery copies it at `rate` MiB/s.
"""

import asyncio
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from quire_bookie.client import LedgerClient, LedgerWriter
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import LedgerError
from quire_bookie.limits import MIB
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.recovery.process import start_auto_recovery
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.metadata import MetadataSettings
from quire_bookie.settings.recovery import RecoverySettings

Options = dict[str, str]
Figures = dict[str, float | int | str]
DEFAULTS = {
    "quorums": "3/3/2",
    "bookies": "",
    "size": "1024",
    "pipeline": "1000",
    "run": "1",
    "seconds": "10",
    "warmup": "3",
    "entries": "0",
    "tail": "1000",
    "ledgers": "",
    "count": "1000",
    "at_once": "64",
    "closed": "true",
    "victim": "0",
    "rate": "0",
}
READ_BYTES = 4 * MIB


class Load:
    """Keeps `pipeline` entries outstanding until `finish`. `on_progress` is called at every confirmation."""

    def __init__(self, writer: LedgerWriter, payload: bytes, pipeline: int, run: int) -> None:
        self._writer = writer
        self._payloads: Sequence[bytes] = [payload] * run
        self._pipeline = max(pipeline, run)
        self._sent: deque[tuple[int, float]] = deque()
        """The last entry of each call and the time of the call."""
        self.latencies_s: list[float] = []
        self.on_progress: Callable[[], None] = lambda: None
        self.entries_max = 0
        self.stopped = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writer.listener = self
        writer.on_drained = self.fill

    def fill(self) -> None:
        """Submit entries until the window is full."""
        writer, payloads, count, window = self._writer, self._payloads, len(self._payloads), self._pipeline
        sent, now = self._sent.append, time.perf_counter
        while (
            not self.stopped
            and writer.last_add_pushed + count - writer.last_add_confirmed <= window
            and writer.is_writable
        ):
            sent((writer.submit(payloads) + count - 1, now()))
            if self.entries_max and writer.last_add_pushed + 1 >= self.entries_max:
                self.stopped = True

    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        sent, now_s, latencies = self._sent, time.perf_counter(), self.latencies_s
        while sent and sent[0][0] <= up_to:
            latencies.append(now_s - sent.popleft()[1])
        self.on_progress()
        self.fill()
        if self.stopped and up_to == self._writer.last_add_pushed and not self.done.done():
            self.done.set_result(None)

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        if not self.done.done():
            self.done.set_exception(error)

    async def finish(self) -> None:
        """Submit nothing more and wait for the outstanding entries."""
        self.stopped = True
        if self._writer.last_add_confirmed < self._writer.last_add_pushed:
            await self.done


def milliseconds(values_s: list[float]) -> Figures:
    """Return median and 99th percentile in milliseconds."""
    ordered = sorted(values_s)
    return {
        "p50_ms": statistics.median(ordered) * 1000,
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
    }


async def new_ledger(client: LedgerClient, options: Options) -> LedgerWriter:
    """Create a ledger with the quorums and bookies of the options."""
    ensemble_size, write_quorum, ack_quorum = map(int, options["quorums"].split("/"))
    named = [BookieId(name) for name in options["bookies"].split(",") if name]
    return await client.create_ledger(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum, bookies=named or None
    )


async def write(client: LedgerClient, options: Options) -> Figures:
    """Add for a number of seconds, or a number of `entries`."""
    writer = await new_ledger(client, options)
    load = Load(writer, os.urandom(int(options["size"])), int(options["pipeline"]), int(options["run"]))
    load.entries_max = int(options["entries"])
    load.fill()
    if load.entries_max:
        await load.done
        await writer.close()
        return {"op": "write", "ledger": writer.ledger_id, "last": writer.last_add_confirmed}
    await asyncio.sleep(int(options["warmup"]))
    load.latencies_s.clear()
    first, wall, cpu = writer.last_add_confirmed, time.perf_counter(), time.process_time()
    await asyncio.sleep(int(options["seconds"]))
    count = writer.last_add_confirmed - first
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    latencies = load.latencies_s.copy()
    await load.finish()
    await writer.close()
    return {
        "op": "write",
        "ledger": writer.ledger_id,
        "last": writer.last_add_confirmed,
        "adds_s": count / wall,
        "client_cpu_us": cpu / count * 1e6,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **milliseconds(latencies),
    }


async def crash(client: LedgerClient, options: Options) -> Figures:
    """Leave a ledger whose `tail` the bookies hold, with a LAC of 0 in every entry. Never returns."""
    writer = await new_ledger(client, options)
    payload = os.urandom(int(options["size"]))
    await writer.append(payload)
    last = writer.submit([payload] * int(options["tail"])) + int(options["tail"]) - 1
    while writer.last_add_confirmed < last:  # noqa: ASYNC110 - no event signals the other confirmations
        await asyncio.sleep(0.01)
    print(json.dumps({"op": "crash", "ledger": writer.ledger_id, "last": last}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def recover(client: LedgerClient, options: Options) -> Figures:
    """Recover each ledger; measure from the call to a reader, over connections that the first recovery opens."""
    took_s: list[float] = []
    cpu = time.process_time()
    for ledger in options["ledgers"].split(","):
        begun = time.perf_counter()
        reader = await client.open_ledger(LedgerId(int(ledger)), recover=True)
        took_s.append(time.perf_counter() - begun)
        if reader.last_add_confirmed != int(options["tail"]):
            raise SystemExit(f"ledger {ledger} was closed at {reader.last_add_confirmed}, not {options['tail']}")
    cpu = time.process_time() - cpu
    return {
        "op": "recover",
        "median_ms": statistics.median(took_s) * 1000,
        "first_ms": took_s[0] * 1000,
        "most_ms": max(took_s) * 1000,
        "client_cpu_ms": cpu / len(took_s) * 1000,
    }


async def in_parallel(count: int, at_once: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Call `one` with each number, `at_once` at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def create(client: LedgerClient, options: Options) -> Figures:
    """Create ledgers of one entry each."""
    ledgers: list[int] = []

    async def one(_: int) -> None:
        writer = await new_ledger(client, options)
        await writer.append(b"entry")
        if options["closed"] == "true":
            await writer.close()
        ledgers.append(writer.ledger_id)

    begun = time.perf_counter()
    await in_parallel(int(options["count"]), int(options["at_once"]), one)
    rate = len(ledgers) / (time.perf_counter() - begun)
    return {"op": "create", "creates_s": rate, "ledgers": ",".join(map(str, ledgers))}


async def open_(client: LedgerClient, options: Options) -> Figures:
    """Open all ledgers without recovery."""
    ledgers = [LedgerId(int(ledger)) for ledger in options["ledgers"].split(",")]

    async def one(number: int) -> None:
        await client.open_ledger(ledgers[number], recover=False)

    await one(0)  # opens the connections
    wall, cpu = time.perf_counter(), time.process_time()
    await in_parallel(len(ledgers), int(options["at_once"]), one)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"op": "open", "opens_s": len(ledgers) / wall, "client_cpu_us": cpu / len(ledgers) * 1e6}


async def read(client: LedgerClient, options: Options) -> Figures:
    """Read one ledger from its first entry to its last."""
    reader = await client.open_ledger(LedgerId(int(options["ledgers"])), recover=False)
    rates: list[float] = []
    size_bytes = 0
    for _ in range(3):
        at, size_bytes, begun = 0, 0, time.perf_counter()
        while at <= reader.last_add_confirmed:
            entries = await reader.read(EntryId(at), reader.last_add_confirmed, READ_BYTES)
            at += len(entries)
            size_bytes += sum(len(entry.payload) for entry in entries)
        rates.append(size_bytes / (time.perf_counter() - begun) / MIB)
    return {"op": "read", "mib_s": max(rates), "mib": size_bytes / MIB}


async def loss(client: LedgerClient, options: Options) -> Figures:
    """Measure the longest time without a confirmation before and after a bookie is killed."""
    writer = await new_ledger(client, options)
    load = Load(writer, os.urandom(int(options["size"])), int(options["pipeline"]), int(options["run"]))
    seen_s = time.perf_counter()
    longest_s = 0.0

    def progress() -> None:
        nonlocal seen_s, longest_s
        now_s = time.perf_counter()
        longest_s = max(longest_s, now_s - seen_s)
        seen_s = now_s

    load.on_progress = progress
    load.fill()
    await asyncio.sleep(int(options["warmup"]))
    longest_s = 0.0
    await asyncio.sleep(int(options["seconds"]))
    before_s, longest_s = longest_s, 0.0
    os.kill(int(options["victim"]), signal.SIGKILL)
    confirmed = writer.last_add_confirmed
    await asyncio.sleep(int(options["seconds"]))
    after_s, went_on = longest_s, writer.last_add_confirmed - confirmed
    await load.finish()
    await writer.close()
    return {
        "op": "loss",
        "gap_before_ms": before_s * 1000,
        "pause_ms": after_s * 1000,
        "adds_s_after": went_on / int(options["seconds"]),
        "ensemble_changes": writer.ensemble_changes,
    }


async def repair(client: LedgerClient, options: Options) -> Figures:
    """Measure auto-recovery with no other work, from the mark to its end."""
    ledger = LedgerId(int(options["ledgers"]))
    rate = int(float(options["rate"]) * MIB)
    settings = RecoverySettings(audits=False, rate_bytes_s=rate, lost_bookie_delay_s=0)
    metadata = await open_metadata_store(options["metadata"], MetadataSettings())
    marks = UnderReplication(metadata, SystemClock())
    running = await start_auto_recovery(
        settings, metadata=metadata, clock=SystemClock(), chance=SystemChance(), name="benchmark"
    )
    wall, cpu = time.perf_counter(), time.process_time()
    await marks.mark(ledger, [BookieId(options["bookies"])])
    while await marks.read(ledger) is not None:
        if running.failed.done():
            raise running.failed.result()
        await asyncio.sleep(0.02)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    copied = running.stats.bytes_copied
    await running.stop()
    await metadata.close()
    names = (await client.read_metadata(ledger)).segments[0].ensemble
    if options["bookies"] in names or not copied:
        raise SystemExit(f"ledger {ledger} still names {options['bookies']}: {', '.join(names)}")
    return {"op": "repair", "mib_s": copied / wall / MIB, "cpu_us_kib": cpu / copied * 1024 * 1e6, "mib": copied / MIB}


@asynccontextmanager
async def opened(url: str, *, keeps_ensembles: bool = False) -> AsyncIterator[LedgerClient]:
    """Open a client with its own metadata store."""
    metadata = await open_metadata_store(url, MetadataSettings())
    settings = ClientSettings(delay_ensemble_change=keeps_ensembles)
    client = await LedgerClient.open(metadata, settings, clock=SystemClock(), chance=SystemChance())
    try:
        yield client
    finally:
        await client.close()
        await metadata.close()


MODES: dict[str, Callable[[LedgerClient, Options], Awaitable[Figures]]] = {
    "write": write,
    "crash": crash,
    "recover": recover,
    "create": create,
    "open": open_,
    "read": read,
    "loss": loss,
    "repair": repair,
}


async def run(mode: str, options: Options) -> None:
    """Run one mode; print its figures as one line."""
    # A restarted bookie may be slow at first: a ledger that is to be repaired must keep it nevertheless.
    keeps_ensembles = mode == "write" and bool(options["bookies"])
    async with opened(options["metadata"], keeps_ensembles=keeps_ensembles) as client:
        print(json.dumps(await MODES[mode](client, options)), flush=True)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main() -> None:
    """Parse and run, on uvloop where it is installed, like our servers."""
    options = DEFAULTS | dict(argument.split("=", 1) for argument in sys.argv[2:])
    unknown = options.keys() - DEFAULTS.keys() - {"metadata"}
    if unknown or len(sys.argv) < 2 or sys.argv[1] not in MODES:
        raise SystemExit(f"{__doc__}\nunknown: {' '.join(unknown) or sys.argv[1:2]}")
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(run(sys.argv[1], options))


if __name__ == "__main__":
    main()
