"""Measures the CPU time that a client process takes for a message: our client, and Pulsar's (C++ under Python).

One standalone serves both in turn. Each run is a process of its own, which publishes or consumes messages of 1 KiB on
a new topic; its CPU time, of all its threads, is counted after a warm-up. The clients are asked for the same: batches
of at most 1,000 messages or 128 KiB, a callback for each stored message, and an acknowledgement of each consumed one.
CPU time changes little when other processes use the machine.

    python -m benchmarks.client_cost [--messages N] [--rounds N]
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.standalone import StandaloneProcess

SIZE = 1024
WARM_UP = 20_000
BATCH_MESSAGES, BATCH_BYTES = 1000, 128 * 1024
PAYLOAD = bytes(range(256)) * (SIZE // 256)


async def publish_ours(url: str, topic: str, messages: int) -> float:
    """Publish, and return the CPU seconds."""
    from quire_client import BrokerRefusedError, Client, MessageId, Producer, ProducerOptions

    stored = 0

    def done(result: MessageId | BrokerRefusedError) -> None:
        nonlocal stored
        assert isinstance(result, MessageId), result
        stored += 1

    async def publish(producer: Producer, count: int) -> None:
        for _ in range(count):
            await producer.enqueue(PAYLOAD, on_done=done)
        await producer.flush()

    options = ProducerOptions(batch_messages_max=BATCH_MESSAGES, batch_bytes_max=BATCH_BYTES)
    async with Client(url) as client, client.producer(topic, options) as producer:
        await publish(producer, WARM_UP)
        began = time.process_time()
        await publish(producer, messages)
        assert stored == WARM_UP + messages
        return time.process_time() - began


async def consume_ours(url: str, topic: str, messages: int) -> float:
    """Consume and acknowledge each message, and return the CPU seconds."""
    from quire_client import Client, ConsumerOptions, InitialPosition, SubscriptionType

    options = ConsumerOptions(SubscriptionType.SHARED, InitialPosition.EARLIEST)
    async with Client(url) as client, client.consumer(topic, "ours", options) as consumer:
        began = 0.0
        for number in range(WARM_UP + messages):
            if number == WARM_UP:
                began = time.process_time()
            message = await consumer.receive()
            assert len(message.payload) == SIZE
            consumer.acknowledge_soon(message)
        await consumer.confirmed()
        return time.process_time() - began


def publish_stock(url: str, topic: str, messages: int) -> float:
    """Publish with Pulsar's client, and return the CPU seconds."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCH_BYTES,
        max_pending_messages=10_000,
        block_if_queue_full=True,
    )
    stored = 0
    changed = threading.Condition()

    def done(result: object, _: object) -> None:
        nonlocal stored
        assert result == pulsar.Result.Ok, result
        stored += 1
        if stored in (WARM_UP, WARM_UP + messages):
            with changed:
                changed.notify_all()

    def publish(count: int, until: int) -> None:
        for _ in range(count):
            producer.send_async(PAYLOAD, done)
        producer.flush()
        with changed:
            changed.wait_for(lambda: stored >= until)

    publish(WARM_UP, WARM_UP)
    began = time.process_time()
    publish(messages, WARM_UP + messages)
    taken = time.process_time() - began
    client.close()
    return taken


def consume_stock(url: str, topic: str, messages: int) -> float:
    """Consume with Pulsar's client, and return the CPU seconds."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        topic, "stock", consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )
    began = 0.0
    for number in range(WARM_UP + messages):
        if number == WARM_UP:
            began = time.process_time()
        message = consumer.receive()
        assert len(message.data()) == SIZE
        consumer.acknowledge(message)
    taken = time.process_time() - began
    client.close()
    return taken


def one_run(part: str, side: str, url: str, topic: str, messages: int) -> float:
    """Run one side of one part in this process; return microseconds of CPU for each message."""
    if side == "ours":
        taken_s = asyncio.run((publish_ours if part == "publish" else consume_ours)(url, topic, messages))
    else:
        taken_s = (publish_stock if part == "publish" else consume_stock)(url, topic, messages)
    return 1e6 * taken_s / messages


def in_a_process(*arguments: object) -> float:
    """Do the same in a new process."""
    command = [sys.executable, "-m", "benchmarks.client_cost", "--one", *map(str, arguments)]
    return float(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout))


def main() -> None:
    """Measure both clients in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        part, side, url, topic, messages = given.one
        print(json.dumps(one_run(part, side, url, topic, int(messages))))
        return
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="quire-client-") as folder:
        server = StandaloneProcess(Path(folder))
        server.start()
        try:
            for number in range(given.rounds):
                # Each client consumes what each has published: their batches differ.
                for writer in ("ours", "stock"):
                    topic = f"cost-{number}-{writer}"
                    cost = in_a_process("publish", writer, server.url, topic, given.messages)
                    found.setdefault(f"publish {writer}", []).append(cost)
                    for reader in ("ours", "stock"):
                        cost = in_a_process("consume", reader, server.url, topic, given.messages)
                        found.setdefault(f"consume {reader}, published by {writer}", []).append(cost)
        finally:
            server.close()
    medians = {name: statistics.median(costs) for name, costs in found.items()}
    for name, cost in medians.items():
        print(f"{name:34} {cost:6.2f} us a message   {', '.join(f'{each:.2f}' for each in found[name])}")
    for name in ("publish {}", "consume {}, published by ours", "consume {}, published by stock"):
        ours, stock = medians[name.format("ours")], medians[name.format("stock")]
        print(f"{name.format('ours'):34} {ours / stock:6.2f} of the stock client's CPU time")


if __name__ == "__main__":
    main()
