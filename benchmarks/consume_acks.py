"""Measures what it costs to deliver a message and to acknowledge it alone: `python -m benchmarks.consume_acks`.

A standalone on this machine. Messages of 1 KiB wait in one topic for a subscription of each type; then its consumers
get them over one connection, with 1,000 permits each, and acknowledge each message with an ACK of its own, or, as stock
clients do by default, many with one. CPU time of the whole standalone, for each message. Prints a Markdown table.
"""

import argparse
import asyncio
import re
import struct
import time

from benchmarks.servers import cpu_seconds, standalone
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import MessageFrame, encode
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_broker.wire.varint import varint
from tests.support.broker_wire import Wire

PORT = 6657
PERMITS = 1_000
PAYLOAD = bytes(1024)
KEYS = 1_000
IN_FLIGHT = 500
TYPES = (("Exclusive", 0, 1), ("Shared", 1, 2), ("Key_Shared", 3, 2))
"""Name, number, consumers."""


async def subscribe(topic: str, kind: int, consumers: int) -> Wire:
    """Return a connection with the consumers of a new subscription, which have no permits yet."""
    wire = await Wire.reach(PORT)
    await wire.connect()
    await wire.answer(pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=topic, request_id=1)))
    for number in range(consumers):
        request = pb.CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=kind,
            consumer_id=number,
            request_id=number,
            consumer_name=f"c{number}",
        )
        answer = await wire.answer(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request))
        assert answer.type == Kind.SUCCESS, answer
    return wire


async def publish(topic: str, messages: int) -> None:
    """Store messages with keys."""
    wire = await Wire.reach(PORT)
    await wire.connect()
    request = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
    await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))
    now_ms = int(time.time() * 1000)
    for first in range(0, messages, IN_FLIGHT):
        numbers = range(first, min(first + IN_FLIGHT, messages))
        for number in numbers:
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=now_ms)
            metadata.partition_key = f"key-{number % KEYS}"
            wire.writer.write(encode_send(1, number, seal(metadata, PAYLOAD)))
        for _ in numbers:
            assert (await wire.next()).type == Kind.SEND_RECEIPT  # type: ignore[union-attr]
    wire.writer.close()


def flow(consumer_id: int, permits: int) -> bytes:
    """Return a FLOW."""
    return encode(pb.BaseCommand(type=Kind.FLOW, flow=pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)))


_SIZES = struct.Struct(">II")
_HEAD = re.compile(rb"\x08\x09\x4a.\x08(.)\x12.(\x08[\x80-\xff]*[\x00-\x7f]\x10[\x80-\xff]*[\x00-\x7f])", re.DOTALL)
"""A MESSAGE of a consumer with a small id: its id, and ledger and entry as an ACK names them."""


def messages_in(data: bytes, position: int, got: list[tuple[int, bytes]]) -> int:
    """Append the consumer and the encoded ledger and entry ids of each MESSAGE. Return where the incomplete rest is.

    It reads only the fields that an ACK needs: the measured server must be slower than this client.
    """
    end, sizes, match = len(data), _SIZES.unpack_from, _HEAD.match
    while end - position >= 8:
        following = position + 4 + sizes(data, position)[0]
        if following > end:
            break
        found = match(data, position + 8)
        if found is not None:
            got.append((found[1][0], found[2]))
        position = following
    return position


def acks(got: list[tuple[int, bytes]], each: int) -> bytes:
    """Return ACKs of at most `each` messages of one consumer."""
    by_consumer: dict[int, list[bytes]] = {}
    for consumer_id, message_id in got:
        by_consumer.setdefault(consumer_id, []).append(b"\x1a%c%b" % (len(message_id), message_id))
    frames = []
    for consumer_id, ids in by_consumer.items():
        start = b"\x08%c\x10\x00" % consumer_id
        for first in range(0, len(ids), each):
            ack = start + b"".join(ids[first : first + each])
            command = b"\x08\x0a\x52%b%b" % (varint(len(ack)), ack)
            frames.append(_SIZES.pack(len(command) + 4, len(command)) + command)
    return b"".join(frames)


async def consume(wire: Wire, consumers: int, messages: int, each: int) -> None:
    """Get the messages and acknowledge them; permits are renewed when half of them are used."""
    used = [0] * consumers
    wire.writer.write(b"".join(flow(number, PERMITS) for number in range(consumers)))
    left, rest = messages, b""
    while left:
        data = rest + await asyncio.wait_for(wire.reader.read(1 << 20), 30)
        got: list[tuple[int, bytes]] = []
        rest = data[messages_in(data, 0, got) :]
        answer = acks(got, each)
        for consumer_id, _ in got:
            used[consumer_id] += 1
        for number in range(consumers):
            if used[number] >= PERMITS // 2:
                answer += flow(number, used[number])
                used[number] = 0
        wire.writer.write(answer)
        left -= len(got)


async def all_acknowledged(wire: Wire) -> None:
    """Wait for the broker to have handled every ACK: it handles commands in order."""
    request = pb.CommandConsumerStats(consumer_id=0, request_id=9)
    wire.send(pb.BaseCommand(type=Kind.CONSUMER_STATS, consumer_stats=request))
    frame = await wire.next()
    while isinstance(frame, MessageFrame) or frame.type != Kind.CONSUMER_STATS_RESPONSE:
        frame = await wire.next()
    assert frame.consumer_stats_response.msgBacklog == 0, frame


async def measure(pid: int, name: str, kind: int, consumers: int, messages: int, each: int) -> str:
    """Return a row of the table."""
    topic = f"persistent://public/default/acks-{name}-{each}"
    wire = await subscribe(topic, kind, consumers)
    await publish(topic, messages)
    await asyncio.sleep(0.5)
    before_s, began_s = cpu_seconds(pid), time.monotonic()
    await consume(wire, consumers, messages, each)
    await all_acknowledged(wire)
    cpu_us = (cpu_seconds(pid) - before_s) / messages * 1e6
    rate = messages / (time.monotonic() - began_s)
    wire.writer.close()
    return f"| {name}, {consumers} consumer{'s' if consumers > 1 else ''} | {each} | {cpu_us:.1f} | {rate:,.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000, help="of each row")
    parser.add_argument("--each", type=int, nargs="*", default=(1, 100), help="messages that one ACK acknowledges")
    parser.add_argument("--types", nargs="*", default=[name for name, *_ in TYPES], help="types of subscriptions")
    given = parser.parse_args()
    with standalone() as quire:
        print("| subscription | messages an ACK | CPU a message, us | messages/s |\n|---|---|---|---|")
        for each in given.each:
            for name, kind, consumers in [wanted for wanted in TYPES if wanted[0] in given.types]:
                row = asyncio.run(measure(quire.pid, name, kind, consumers, given.messages, each))
                print(row, flush=True)


if __name__ == "__main__":
    main()
