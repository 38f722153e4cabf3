"""`quire bench`: publishes to a topic at a rate, or as fast as the brokers accept, and measures latencies.

With a rate, the latency of a message counts from the time at which it was due: a stall of the cluster also delays the
messages that should have been sent meanwhile. One event loop sends; the result says when it was the limit.
"""

import asyncio
import contextlib
import struct
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.refusals import MissingError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask
from quire_bookie.cli.tables import Output, OutputOption, print_one
from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.machine import process_cpu_s
from quire_broker.cli.admin_paths import topic_of, topic_path
from quire_broker.cli.latencies import Latencies
from quire_broker.cli.traffic import BATCH_MAX, DEFAULT_URL, Broker

if TYPE_CHECKING:
    from quire_client.batch import OnDone
    from quire_client.consumer import Reader
    from quire_client.producer import Producer

_STAMP = struct.Struct("<d")
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
SECONDS_MAX = 24 * 3600
BYTES_MAX = 5 * 1024 * 1024
PRODUCERS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """The load: how many messages of what size, at what rate."""

    seconds: float
    rate: int
    """Messages a second of all producers together; 0: as fast as the brokers accept."""
    size: int
    batch: int
    producers: int
    reads: bool


@dataclass(slots=True)
class Result:
    """The measurements of one run."""

    acknowledged: int = 0
    received: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    publish: Latencies = field(default_factory=Latencies)
    end_to_end: Latencies = field(default_factory=Latencies)


def register(commands: Commands) -> None:
    """Add the command."""

    @commands.app.command()
    def bench(
        topic: Annotated[str | None, typer.Argument(help="Topic; default: a new one, deleted at the end.")] = None,
        seconds: Annotated[float, typer.Option(min=0.1, max=SECONDS_MAX, help="How long to send.")] = 10.0,
        rate: Annotated[int, typer.Option(min=0, help="Messages a second of all producers; 0: no limit.")] = 1000,
        size: Annotated[int, typer.Option(min=_STAMP.size, max=BYTES_MAX, help="Bytes of a message.")] = 1024,
        batch_max: Annotated[int, typer.Option("--batch-max", min=1, max=BATCH_MAX, help="Messages of an entry.")] = 1,
        producers: Annotated[int, typer.Option(min=1, max=PRODUCERS_MAX, help="Number of producers.")] = 1,
        consume: Annotated[bool, typer.Option("--consume", help="Also read, and measure from end to end.")] = False,
        broker: Broker = DEFAULT_URL,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Publish to a topic and measure rate and latencies. The messages stay if TOPIC is given."""
        plan = Plan(seconds, rate, size, batch_max, producers, consume)
        name = topic_of(topic if topic is not None else f"quire-bench-{SystemChance().token(8).hex()}")
        try:
            result = asyncio.run(measure(broker, str(name), plan))
        finally:
            if topic is None:
                with contextlib.suppress(MissingError):  # it was not created
                    ask(http, "DELETE", f"{topic_path(name)}?force=true")
        found = facts(plan, result)
        print_one(values(result), found, output, name=name)
        if topic is not None:
            say(f"{result.acknowledged} messages stay in {name}", err=True)


async def measure(broker: str, topic: str, plan: Plan) -> Result:
    """Send by the plan and wait for every receipt, and with `reads` for every message."""
    from quire_bookie.cli.client_access import client_access
    from quire_client import LATEST, Client, ProducerOptions

    result = Result()
    options = ProducerOptions(batch_messages_max=plan.batch)
    async with (
        Client(broker, client_access) as client,
        Client(broker, client_access) as reading,
        contextlib.AsyncExitStack() as stack,
    ):
        senders = []
        for _ in range(plan.producers):
            senders.append(await stack.enter_async_context(client.producer(topic, options)))
        sent = asyncio.Event()
        reader = None
        if plan.reads:
            receiver = await stack.enter_async_context(reading.reader(topic, LATEST))
            reader = asyncio.ensure_future(_read(receiver, plan, result, sent))
        began, cpu = _now(), process_cpu_s()
        try:
            await asyncio.gather(*(_send(sender, plan, began, result) for sender in senders))
            result.seconds, result.cpu_s = _now() - began, process_cpu_s() - cpu
            sent.set()
            if reader is not None and result.received < result.acknowledged:
                await reader
        finally:
            if reader is not None:
                reader.cancel()
    return result


async def _send(producer: "Producer", plan: Plan, began: float, result: Result) -> None:
    """Send batches until the time is over, and wait for their receipts."""
    filler = SystemChance().token(plan.size - _STAMP.size)
    pause_s = plan.batch * plan.producers / plan.rate if plan.rate else 0.0
    failures: list[BaseException] = []
    for number in count():
        # Not added up: the errors of rounding would send one entry more at some times of the loop.
        after = number * pause_s if plan.rate else _now() - began
        if after >= plan.seconds or failures:
            break
        due = began + after
        await asyncio.sleep(max(0.0, due - _now()))
        payload = _STAMP.pack(due) + filler
        stored = _on_stored(due, result, failures)
        for _ in range(plan.batch):
            await producer.enqueue(payload, on_done=stored)
    await producer.flush()
    if failures:
        raise failures[0]


def _on_stored(due: float, result: Result, failures: list[BaseException]) -> "OnDone":
    """Return what counts a stored message that was due at this time."""

    def stored(outcome: object) -> None:
        if isinstance(outcome, BaseException):
            failures.append(outcome)
            return
        result.publish.add(_now() - due)
        result.acknowledged += 1

    return stored


async def _read(reader: "Reader", plan: Plan, result: Result, sent: asyncio.Event) -> None:
    """Note the ages of received messages, until all are `sent` and those acknowledged are there."""
    while not (sent.is_set() and result.received >= result.acknowledged):
        message = await reader.receive()
        if len(message.payload) != plan.size:
            continue  # of another producer
        (due,) = _STAMP.unpack_from(message.payload)
        result.end_to_end.add(_now() - due)
        result.received += 1


def _now() -> float:
    """Return the time of the event loop, in seconds."""
    return asyncio.get_running_loop().time()


def values(result: Result) -> dict[str, object]:
    """Return the figures for programs: rates per second, times in ms."""
    found: dict[str, object] = {
        "messages": result.acknowledged,
        "seconds": round(result.seconds, 3),
        "messagesPerSecond": round(result.acknowledged / result.seconds, 1) if result.seconds else 0.0,
        "cpuMicrosPerMessage": round(1e6 * result.cpu_s / max(1, result.acknowledged), 2),
        "publishMillis": _percentiles(result.publish),
    }
    if result.end_to_end.count:
        found |= {"received": result.received, "endToEndMillis": _percentiles(result.end_to_end)}
    return found


def _percentiles(latencies: Latencies) -> dict[str, float]:
    shares = {name: latencies.percentile_s(share) or 0.0 for name, share in PERCENTILES.items()}
    return {name: round(1000 * seconds, 2) for name, seconds in (shares | {"max": latencies.max_s}).items()}


def facts(plan: Plan, result: Result) -> dict[str, object]:
    """Return the figures for people."""
    rate = result.acknowledged / result.seconds if result.seconds else 0.0
    found: dict[str, object] = {
        "messages": f"{result.acknowledged:,} of {plan.size:,} bytes in {result.seconds:.1f} s",
        "rate": f"{rate:,.0f} messages/s, {rate * plan.size / 1e6:,.1f} MB/s",
        "publish": _shown(result.publish),
    }
    if result.end_to_end.count:
        found["end to end"] = _shown(result.end_to_end)
    share = result.cpu_s / result.seconds if result.seconds else 0.0
    found["this process"] = f"{share:.0%} of a core" + (": it is the limit" if share > 0.9 else "")
    return found


def _shown(latencies: Latencies) -> str:
    return ", ".join(f"{name} {value} ms" for name, value in _percentiles(latencies).items())
