"""Measures a tail alone and beside a catch-up at full speed: `python -m benchmarks.tail_and_catchup [--batch 100]`.

A standalone on this machine. The tail publishes 1 KiB messages at a fixed rate and receives them on one subscription;
its latency is from the send to the arrival. The catch-up reads a backlog of another topic from its first entry again
and again, each time with a new subscription; a process that only counts bytes receives it. Prints Markdown tables: the
latency of the tail, the rate of the catch-up, the standalone's CPU a message that the catch-up read (without what the
tail costs alone), its memory, and its cache.
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import socket
import time
import urllib.request
from dataclasses import dataclass

from benchmarks.distribution import percentile
from benchmarks.servers import cpu_seconds, resident_mb, standalone
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import MessageFrame, encode
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire

PORT, HTTP_PORT, BOOKIE_PORT = 6659, 8089, 3199
TAIL = "persistent://public/default/tail"
BACKLOG = "persistent://public/default/backlog"
MESSAGE = 1024
PERMITS = (1 << 31) - 1
OUTSTANDING_BYTES = 16 << 20
"""Of the fill."""
WARM_UP_S = 3.0
PONG_S = 10.0


@dataclass
class Caught:
    """What a catch-up has received, and when."""

    messages: int
    received_bytes: int
    took_s: float


def _lookup(topic: str) -> pb.BaseCommand:
    return pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=topic, request_id=1))


def _subscribe(topic: str, name: str, initial: int) -> pb.BaseCommand:
    subscribe = pb.CommandSubscribe(
        topic=topic, subscription=name, subType=0, consumer_id=1, request_id=2, initialPosition=initial
    )
    return pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=subscribe)


def _flow() -> pb.BaseCommand:
    return pb.BaseCommand(type=Kind.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=PERMITS))


async def _ready(topic: str) -> Wire:
    """Return a connection after the lookup of a topic."""
    wire = await Wire.reach(PORT)
    await wire.connect()
    await wire.answer(_lookup(topic))
    return wire


async def _producer(topic: str) -> Wire:
    wire = await _ready(topic)
    request = pb.CommandProducer(topic=topic, producer_id=1, request_id=2, producer_name="p")
    await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))
    return wire


async def fill(megabytes: int, batch: int) -> int:
    """Publish the backlog in batches of messages that compress to nothing less. Return the number of its entries."""
    wire = await _producer(BACKLOG)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if batch > 1:
        metadata.num_messages_in_batch = batch
    entry = seal(metadata, os.urandom(MESSAGE * batch))
    count, window = (megabytes << 20) // (MESSAGE * batch), max(1, OUTSTANDING_BYTES // len(entry))
    unanswered = 0
    for number in range(count):
        wire.writer.write(encode_send(1, number, entry, batch))
        unanswered += 1
        while unanswered >= window:
            unanswered -= _is_receipt(await wire.next(60), wire)
    while unanswered:
        unanswered -= _is_receipt(await wire.next(60), wire)
    wire.writer.close()
    return count


def _is_receipt(frame: pb.BaseCommand | MessageFrame, wire: Wire) -> bool:
    assert isinstance(frame, pb.BaseCommand)
    if frame.type == Kind.PING:
        wire.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))
    else:
        assert frame.type == Kind.SEND_RECEIPT, frame
    return frame.type == Kind.SEND_RECEIPT


def _read_once(name: str, stored_bytes: int, until_s: float) -> int:
    """Receive the backlog with a new subscription, until it is complete or the time is over; return the bytes."""
    connection = socket.create_connection(("127.0.0.1", PORT))
    connect = pb.CommandConnect(client_version="t", protocol_version=20)
    commands = (pb.BaseCommand(type=Kind.CONNECT, connect=connect), _lookup(BACKLOG), _subscribe(BACKLOG, name, 1))
    for command in commands:
        connection.sendall(encode(command))
        connection.recv(65536)
    connection.sendall(encode(_flow()))
    connection.settimeout(20)
    buffer, received, pong_s = bytearray(1 << 20), 0, time.monotonic() + PONG_S
    while received < stored_bytes and (now_s := time.monotonic()) < until_s:
        got = connection.recv_into(buffer)
        if not got:
            raise SystemExit("the standalone closed the connection of the catch-up")
        received += got
        if now_s >= pong_s:
            pong_s = now_s + PONG_S
            connection.sendall(encode(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong())))
    connection.close()
    return received


def catch_up(turn: int, entries: int, batch: int, seconds: float, results: "multiprocessing.Queue[Caught]") -> None:
    """Read the backlog until the time is over; the rest of the last round counts by its bytes."""
    stored_bytes = entries * MESSAGE * batch
    began_s, received, number = time.monotonic(), 0, 0
    until_s = began_s + seconds
    while time.monotonic() < until_s:
        received += min(stored_bytes, _read_once(f"catch-up-{turn}-{number}", stored_bytes, until_s))
        number += 1
    results.put(Caught(received // MESSAGE, received, time.monotonic() - began_s))


async def _send(producer: Wire, rate: int, until_s: float) -> int:
    """Send at the rate; answer nothing, since a task reads the receipts. Return the number of messages."""
    began_s, number = time.perf_counter(), 0
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    while (now_s := time.perf_counter()) < until_s:
        due = int((now_s - began_s) * rate)
        while number <= due:
            stamp = time.perf_counter_ns().to_bytes(8, "big")
            producer.writer.write(encode_send(1, number, seal(metadata, bytes(MESSAGE - 8) + stamp)))
            number += 1
        await asyncio.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
    return number


async def _drop_receipts(producer: Wire) -> None:
    while True:
        await producer.reader.read(1 << 16)


async def _receive(consumer: Wire, took_ms: list[float]) -> None:
    """Note the latency of each message until cancelled."""
    while True:
        frame = await consumer.next(60)
        if isinstance(frame, MessageFrame):
            stamp = int.from_bytes(bytes(frame.entry[-8:]), "big")
            took_ms.append((time.perf_counter_ns() - stamp) / 1e6)
        elif frame.type == Kind.PING:
            consumer.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))


async def tail(name: str, rate: int, seconds: float) -> list[float]:
    """Publish and receive for a time. Return the latencies in ms, sorted."""
    consumer, producer = await _ready(TAIL), await _producer(TAIL)
    answer = await consumer.answer(_subscribe(TAIL, name, 0))
    assert answer.type == Kind.SUCCESS, answer
    consumer.send(_flow())
    took_ms: list[float] = []
    tasks = [asyncio.create_task(_receive(consumer, took_ms)), asyncio.create_task(_drop_receipts(producer))]
    sent = await _send(producer, rate, time.perf_counter() + seconds)
    for _ in range(100):
        if len(took_ms) >= sent:
            break
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if len(took_ms) != sent:
        raise SystemExit(f"{sent} messages were published, {len(took_ms)} arrived")
    for wire in (consumer, producer):
        wire.writer.close()
    return sorted(took_ms)


def _row(name: str, took_ms: list[float]) -> str:
    shares = " | ".join(f"{percentile(took_ms, share):.2f}" for share in (0.5, 0.99, 0.999))
    return f"| {name} | {len(took_ms):,} | {shares} | {took_ms[-1]:.1f} |"


def _cache() -> str:
    """Return the counters of the cache."""
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/admin/quire/stats", timeout=10) as answer:
        return ", ".join(re.findall(r'"(cache_\w+": ?\d+)', answer.read().decode())).replace('"', "")


async def measure(pid: int, given: argparse.Namespace) -> None:
    """Fill, then measure the tail alone and beside the catch-up, in turns."""
    began_s = time.monotonic()
    entries = await fill(given.megabytes, given.batch)
    print(f"{entries:,} entries of {given.batch} KiB stored in {time.monotonic() - began_s:.1f} s", flush=True)
    await asyncio.sleep(given.rest)
    await tail("warm-up", given.rate, WARM_UP_S)
    alone: list[float] = []
    beside: list[float] = []
    messages = received_bytes = 0
    alone_cpu_s = beside_cpu_s = beside_took_s = catch_up_s = 0.0
    results: multiprocessing.Queue[Caught] = multiprocessing.Queue()
    for number in range(given.rounds):
        before_s = cpu_seconds(pid)
        alone += await tail(f"alone-{number}", given.rate, given.seconds)
        alone_cpu_s += cpu_seconds(pid) - before_s
        work = (number, entries, given.batch, given.seconds + 1, results)
        worker = multiprocessing.Process(target=catch_up, args=work)
        before_s, began_s = cpu_seconds(pid), time.monotonic()
        worker.start()
        await asyncio.sleep(0.5)
        beside += await tail(f"beside-{number}", given.rate, given.seconds)
        caught = await asyncio.to_thread(results.get)
        beside_cpu_s += cpu_seconds(pid) - before_s
        beside_took_s += time.monotonic() - began_s
        catch_up_s += caught.took_s
        messages += caught.messages
        received_bytes += caught.received_bytes
        worker.join()
    print("| tail | messages | p50 ms | p99 ms | p99.9 ms | longest ms |\n|---|---|---|---|---|---|")
    print(_row("alone", sorted(alone)))
    print(_row("beside the catch-up", sorted(beside)))
    tail_cores = alone_cpu_s / (given.seconds * given.rounds)
    cpu_us = (beside_cpu_s - tail_cores * beside_took_s) / max(1, messages) * 1e6
    print(
        f"\ncatch-up: {messages / catch_up_s:,.0f} messages/s, {received_bytes / catch_up_s / 1e6:.0f} MB/s, "
        f"{cpu_us:.2f} us of CPU a message; tail alone {tail_cores:.2f} cores; {resident_mb(pid)} MiB; {_cache()}"
    )


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100, help="messages of an entry of the backlog")
    parser.add_argument("--megabytes", type=int, default=1_500, help="of the backlog")
    parser.add_argument("--rate", type=int, default=1_000, help="messages of the tail a second")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of both measurements, in turns")
    parser.add_argument("--rest", type=float, default=5.0, help="seconds between the fill and the first measurement")
    parser.add_argument("--set", action="append", default=[], help="a setting of the standalone, key=value")
    given = parser.parse_args()
    extra = tuple(word for setting in given.set for word in ("--set", setting))
    with standalone(extra, ports=(PORT, HTTP_PORT, BOOKIE_PORT)) as quire:
        asyncio.run(measure(quire.pid, given))


if __name__ == "__main__":
    main()
