"""Measures what a message costs on a topic with many subscriptions: `python -m benchmarks.fan_out [--keyed]`.

A standalone on this machine, and one connection with one Exclusive consumer on each subscription. Messages are sent one
at a time: the next one follows when every subscription has the last one. CPU time of the whole standalone for each
message, and for each delivery. Prints a Markdown table.
"""

import argparse
import asyncio
import time

from benchmarks.servers import cpu_seconds, standalone
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire

PORT = 6657
PERMITS = 10_000
PAYLOAD = bytes(1024)
COUNTS = (10, 100, 1_000, 5_000)
DELIVERIES = 20_000
"""Of each row, with at most 1,000 messages and at least 20, after a quarter as many that are not counted."""


async def subscribed(topic: str, count: int) -> Wire:
    """Return a connection with a consumer on each of `count` new subscriptions."""
    wire = await Wire.reach(PORT)
    await wire.connect()
    lookup = pb.CommandLookupTopic(topic=topic, request_id=1)
    await wire.answer(pb.BaseCommand(type=Kind.LOOKUP, lookup=lookup))
    for number in range(count):
        request = pb.CommandSubscribe(
            topic=topic, subscription=f"s{number}", subType=0, consumer_id=number, request_id=number + 1
        )
        answer = await wire.answer(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request))
        assert answer.type == Kind.SUCCESS, answer
        flow = pb.CommandFlow(consumer_id=number, messagePermits=PERMITS)
        wire.send(pb.BaseCommand(type=Kind.FLOW, flow=flow))
    return wire


async def publish(producer: Wire, consumers: Wire, first: int, messages: int, count: int, *, keyed: bool) -> None:
    """Send messages one at a time; wait for the receipt and for all deliveries of each."""
    for number in range(first, first + messages):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=int(time.time() * 1000))
        if keyed:
            metadata.partition_key = f"key-{number}"
        producer.writer.write(encode_send(1, number, seal(metadata, PAYLOAD)))
        await producer.next()
        for _ in range(count):
            while not isinstance(frame := await consumers.next(), MessageFrame):
                assert frame.type == Kind.PING, frame
                consumers.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))


async def measure(pid: int, count: int, *, keyed: bool) -> str:
    """Return the row of the table for `count` subscriptions."""
    topic = f"persistent://public/default/fan-{count}"
    consumers, producer = await subscribed(topic, count), await Wire.reach(PORT)
    await producer.connect()
    request = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
    await producer.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))
    messages = min(1_000, max(20, DELIVERIES // count))
    warm = messages // 4
    await publish(producer, consumers, 0, warm, count, keyed=keyed)
    before_s = cpu_seconds(pid)
    await publish(producer, consumers, warm, messages, count, keyed=keyed)
    message_us = (cpu_seconds(pid) - before_s) / messages * 1e6
    for wire in (consumers, producer):
        wire.writer.close()
    return f"| {count:,} | {message_us:,.0f} | {message_us / count:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keyed", action="store_true", help="give each message a key, so that its metadata is parsed")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="numbers of subscriptions")
    given = parser.parse_args()
    with standalone() as quire:
        print("| subscriptions | CPU a message, us | CPU a delivery, us |\n|---|---|---|")
        for count in given.counts:
            print(asyncio.run(measure(quire.pid, count, keyed=given.keyed)), flush=True)


if __name__ == "__main__":
    main()
