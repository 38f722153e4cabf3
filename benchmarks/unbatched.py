"""Measures what unbatched messages cost to publish and to catch up on: `python -m benchmarks.unbatched`.

A standalone, or with `--bookies 3` etcd, one broker and three bookies with quorums 3/3/2. One connection publishes
messages of 1 KiB, 1,000 outstanding; then an Exclusive subscription reads all of them from the first on. The cache of
the broker is too small for them, so they come from the bookies. CPU of the broker and of the bookies for each message,
without that of the client, which reads only sizes of frames. Prints a Markdown table.
"""

import argparse
import asyncio
import struct
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.servers import cpu_seconds, standalone
from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_cluster import broker_cluster
from tests.support.broker_wire import Wire

PORT = 6657
PAYLOAD = bytes(1024)
OUTSTANDING = 1_000
AT_ONCE = 50
"""Messages of one write of the client."""
PERMITS = (1 << 31) - 1
_SIZES = struct.Struct(">I")


class Frames:
    """Counts the frames that a connection receives and that begin with a command's type."""

    def __init__(self, wire: Wire, kind: int) -> None:
        self._reader, self._rest = wire.reader, b""
        self._start = b"\x08%c" % kind

    async def more(self) -> int:
        """Wait for bytes; return the number of complete frames of the type."""
        got = await asyncio.wait_for(self._reader.read(1 << 20), 60)
        if not got:
            raise EOFError
        data, position, found = self._rest + got, 0, 0
        while len(data) - position >= 10:
            following = position + 4 + _SIZES.unpack_from(data, position)[0]
            if following > len(data):
                break
            found += data.startswith(self._start, position + 8)
            position = following
        self._rest = data[position:]
        return found


async def _open(port: int, topic: str) -> Wire:
    wire = await Wire.reach(port)
    await wire.connect()
    await wire.answer(pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=topic, request_id=1)))
    return wire


async def publish(port: int, topic: str, messages: int) -> None:
    """Store messages, at most 1,000 of them outstanding."""
    wire = await _open(port, topic)
    request = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
    await wire.answer(pb.BaseCommand(type=Kind.PRODUCER, producer=request))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=int(time.time() * 1000))
    entry = seal(metadata, PAYLOAD)
    frames = Frames(wire, Kind.SEND_RECEIPT)
    sent = answered = 0
    while answered < messages:
        while sent < messages and sent - answered <= OUTSTANDING - AT_ONCE:
            wire.writer.write(b"".join(encode_send(1, sent + number, entry) for number in range(AT_ONCE)))
            sent += AT_ONCE
        answered += await frames.more()
    wire.writer.close()


async def catch_up(port: int, topic: str, messages: int) -> None:
    """Read all messages with a new subscription."""
    wire = await _open(port, topic)
    request = pb.CommandSubscribe(
        topic=topic, subscription="s", subType=0, consumer_id=1, request_id=2, initialPosition=1
    )
    answer = await wire.answer(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request))
    assert answer.type == Kind.SUCCESS, answer
    wire.send(pb.BaseCommand(type=Kind.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=PERMITS)))
    frames = Frames(wire, Kind.MESSAGE)
    left = messages
    while left > 0:
        left -= await frames.more()
    wire.writer.close()


@contextmanager
def servers(bookies: int, extra: list[str]) -> Iterator[tuple[int, dict[str, list[int]]]]:
    """Start them; yield the port of the broker, and the processes by their names."""
    if bookies == 0:
        with standalone(tuple(word for item in extra for word in ("--set", item))) as quire:
            yield PORT, {"standalone": [quire.pid]}
        return
    settings = dict(item.split("=", 1) for item in extra)
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_cluster(Path(folder), brokers=1, bookies=bookies, linked=False, **settings) as cluster,
    ):
        broker = cluster.brokers[0]
        pids = [bookie.pid for bookie in cluster.storage.bookies]
        yield broker.port, {"broker": [broker.pid], f"{bookies} bookies": pids}


def measured(
    name: str, work: Callable[[], Coroutine[Any, Any, None]], messages: int, processes: dict[str, list[int]]
) -> str:
    """Do the work and return a row of the table."""
    before = {part: sum(map(cpu_seconds, pids)) for part, pids in processes.items()}
    began = time.monotonic()
    asyncio.run(work())
    rate = messages / (time.monotonic() - began)
    cpu = {part: (sum(map(cpu_seconds, pids)) - before[part]) / messages * 1e6 for part, pids in processes.items()}
    each = ", ".join(f"{part} {us:.2f}" for part, us in cpu.items())
    return f"| {name} | {sum(cpu.values()):.2f} | {each} | {rate:,.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="of each row")
    parser.add_argument("--bookies", type=int, default=0, help="0: a standalone")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", action="append", default=["managedLedgerCacheSizeMB=8"], help="a broker's setting")
    given = parser.parse_args()
    with servers(given.bookies, given.set) as (port, processes):
        print("| work | CPU a message, us | of it | messages/s |\n|---|---|---|---|")
        for number in range(given.rounds):
            topic = f"persistent://public/default/unbatched-{number}"
            publishing = partial(publish, port, topic, given.messages)
            reading = partial(catch_up, port, topic, given.messages)
            for name, work in (("publish", publishing), ("catch-up", reading)):
                print(measured(name, work, given.messages, processes), flush=True)


if __name__ == "__main__":
    main()
