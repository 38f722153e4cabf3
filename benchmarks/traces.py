"""Measures what traces cost: `python -m benchmarks.traces [--rate 2000] [--seconds 6] [--rounds 5]`.

Standalones on this machine, which take turns of some seconds so that the machine's drift meets all of them: without an
endpoint, with one and no sampling, with a share of the entries sampled and a collector that answers, and with one that
is down. Messages of 1 KiB come at a fixed rate, each in a frame of its own; a consumer on the same topic acknowledges
each. CPU time of the whole standalone for each message, and the latency of publishes from their planned time on.
Prints a Markdown table: medians over the rounds, and the least and greatest round.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.consume_acks import acks, flow, messages_in
from benchmarks.servers import Quire, cpu_seconds
from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire
from tests.support.ports import free_ports

PAYLOAD = bytes(1024)
PACE_S = 0.002
PERMITS = 1_000
WARM_S = 1.0
_COLLECTOR = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *arguments):
        return
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass
class Side:
    """One standalone with its settings, and the figures of its rounds: CPU us a message, p50 and p99 in ms."""

    name: str
    settings: tuple[str, ...]
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    quire: Quire | None = None
    rounds: list[tuple[float, float, float]] = field(default_factory=list)


async def produce(wire: Wire, rate: int, seconds: float) -> list[float]:
    """Publish at the rate; return the latency of each message in ms, in order."""
    count, began_s = int(rate * seconds), time.perf_counter()
    latencies: list[float] = []
    entry = seal(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), PAYLOAD)

    async def answers() -> None:
        while len(latencies) < count:
            frame = await wire.next(60)
            if isinstance(frame, pb.BaseCommand) and frame.type == Kind.SEND_RECEIPT:
                planned_s = began_s + len(latencies) / rate
                latencies.append((time.perf_counter() - planned_s) * 1000)

    waiting, sent = asyncio.create_task(answers()), 0
    while sent < count:
        due = min(count, int((time.perf_counter() - began_s) * rate) + 1)
        wire.writer.write(b"".join(encode_send(1, number, entry) for number in range(sent, due)))
        sent = due
        await asyncio.sleep(PACE_S)
    await waiting
    return latencies


async def consume(wire: Wire) -> None:
    """Acknowledge each message until cancelled."""
    wire.writer.write(flow(0, PERMITS))
    rest, used = b"", 0
    while data := await wire.reader.read(1 << 20):
        got: list[tuple[int, bytes]] = []
        data = rest + data
        rest = data[messages_in(data, 0, got) :]
        used += len(got)
        wire.writer.write(acks(got, 1))
        if used >= PERMITS // 2:
            wire.writer.write(flow(0, used))
            used = 0


async def measure(side: Side, rate: int, seconds: float) -> tuple[float, float, float]:
    """Return the figures of one round."""
    assert side.quire is not None
    producer, consumer = await Wire.reach(side.ports[0]), await Wire.reach(side.ports[0])
    for wire in (producer, consumer):
        await wire.connect()
        request = pb.CommandLookupTopic(topic="persistent://public/default/traced", request_id=1)
        await wire.answer(pb.BaseCommand(type=Kind.LOOKUP, lookup=request))
    made = pb.CommandProducer(topic="persistent://public/default/traced", producer_id=1, request_id=1)
    await producer.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=made))
    subscribe = pb.CommandSubscribe(
        topic="persistent://public/default/traced", subscription="s", subType=0, consumer_id=0, request_id=2
    )
    await consumer.answer(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=subscribe))
    consuming = asyncio.create_task(consume(consumer))
    await produce(producer, rate, WARM_S)
    before_s = cpu_seconds(side.quire.pid)
    latencies = sorted(await produce(producer, rate, seconds))
    cpu_us = (cpu_seconds(side.quire.pid) - before_s) / len(latencies) * 1e6
    consuming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await consuming
    for wire in (producer, consumer):
        wire.writer.close()
    return cpu_us, latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Run a process that takes spans; its endpoint."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-c", _COLLECTOR, str(port)])
    try:
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        process.kill()
        process.wait()


def text(values: list[float]) -> str:
    """Return median, least and greatest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def sides(endpoint: str, ratio: str) -> list[Side]:
    """Return the standalones to compare."""
    (down,) = free_ports(1)
    on = f"traceEndpoint={endpoint}"
    return [
        Side("no endpoint", ()),
        Side("endpoint, 0", (on, "traceSampleRatio=0")),
        Side(f"endpoint, {ratio}", (on, f"traceSampleRatio={ratio}")),
        Side(f"collector down, {ratio}", (f"traceEndpoint=http://127.0.0.1:{down}/x", f"traceSampleRatio={ratio}")),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=2_000, help="messages in a second")
    parser.add_argument("--seconds", type=float, default=6, help="of one turn, after a second that is not counted")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--ratio", default="0.01", help="traceSampleRatio")
    given = parser.parse_args()
    with collector() as endpoint, contextlib.ExitStack() as undo:
        compared = sides(endpoint, given.ratio)
        for side in compared:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
            extra = tuple(word for setting in side.settings for word in ("--set", setting))
            broker, http, bookie = side.ports
            side.quire = Quire(folder, extra, ports=(broker, http, bookie))
            undo.callback(side.quire.stop)
            side.quire.start()
        for number in range(given.rounds):
            for side in compared if number % 2 == 0 else reversed(compared):
                side.rounds.append(asyncio.run(measure(side, given.rate, given.seconds)))
                figures = ", ".join(f"{each:.2f}" for each in side.rounds[-1])
                print(f"  {side.name}: {figures}", file=sys.stderr, flush=True)
    print("| traces | CPU a message, us | publish p50, ms | publish p99, ms |\n|---|---|---|---|")
    for side in compared:
        print(f"| {side.name} | {' | '.join(text(list(column)) for column in zip(*side.rounds, strict=True))} |")


if __name__ == "__main__":
    main()
