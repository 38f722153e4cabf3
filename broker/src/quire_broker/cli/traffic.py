"""`quire produce` and `quire consume`: send and print lines, without a Pulsar client."""

import asyncio
import contextlib
import os
import stat
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import Output, OutputOption
from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError, QuireError
from quire_bookie.spans import TRACEPARENT, TraceContext
from quire_broker.cli.messages import print_message
from quire_broker.cli.topic_argument import Topic

if TYPE_CHECKING:
    from quire_broker.cli.client import Received

DEFAULT_URL = "pulsar://localhost:6650"
BATCH_MAX = 1000
BATCH_BYTES = 128 * 1024
"""Bounds of a batch, as of Pulsar's own clients."""
Broker = Annotated[str, typer.Option("--broker", help="Address of a broker.", envvar="QUIRE_BROKER")]


def register(commands: Commands) -> None:
    """Add both commands."""

    @commands.app.command()
    def produce(
        topic: Topic,
        file: Annotated[Path, typer.Argument(help="File whose lines become messages; - is standard input.")],
        broker: Broker = DEFAULT_URL,
        key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
        property_: Annotated[list[str] | None, typer.Option("--property", help="NAME=VALUE; may be repeated.")] = None,
        whole: Annotated[bool, typer.Option("--whole", help="The whole file is one message.")] = False,
        batch_max: Annotated[
            int,
            typer.Option("--batch-max", min=1, max=BATCH_MAX, help="Messages that one entry may hold; 1: no batches."),
        ] = BATCH_MAX,
        trace: Annotated[
            bool, typer.Option("--trace", help="Begin a trace, which brokers with traces continue, and print its id.")
        ] = False,
    ) -> None:
        """Send the lines of FILE to TOPIC and wait until all of them are stored."""
        properties = _properties(property_ or [])
        begun = _begin_trace(properties) if trace else None
        sending = _Sending(file, key, properties, whole, batch_max)
        if str(file) != "-" and not file.exists():
            raise ConfigError(f"cannot read {file}: the file does not exist")
        count = asyncio.run(_produce(broker, topic, sending))
        of_trace = "" if begun is None else f", trace {begun.trace_text}"
        say(f"{count} message{'' if count == 1 else 's'} stored in {topic}{of_trace}", err=True)

    @commands.app.command()
    def consume(
        topic: Topic,
        broker: Broker = DEFAULT_URL,
        subscription: Annotated[
            str | None, typer.Option(help="Read by this durable subscription and acknowledge; default: a reader.")
        ] = None,
        latest: Annotated[bool, typer.Option("--latest", help="Start with new messages, not the oldest.")] = False,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
        count: Annotated[int | None, typer.Option(min=1, help="Stop after this number of messages.")] = None,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Print the messages of TOPIC, oldest first, one per line."""
        asyncio.run(_consume(broker, topic, subscription, latest, follow or latest, count, output))


def _properties(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"--property {text}: expected NAME=VALUE")
        found[name] = value
    return found


def _begin_trace(properties: dict[str, str]) -> TraceContext:
    """Add the context of a new trace to the properties and return it. ConfigError if they have one."""
    if TRACEPARENT in properties:
        raise ConfigError(f"--trace begins a trace, and --property {TRACEPARENT} names another; give one of them")
    chance = SystemChance()
    # Begun with a byte that is not 0: a context without ids is invalid.
    trace_id, span_id = (int.from_bytes(b"\x01" + chance.token(size - 1), "big") for size in (16, 8))
    context = TraceContext(trace_id, span_id)
    properties[TRACEPARENT] = context.traceparent
    return context


@dataclass(frozen=True, slots=True)
class _Sending:
    """What `produce` sends: from where, how, and how many messages an entry may hold."""

    file: Path
    key: str | None
    properties: dict[str, str]
    whole: bool
    batch_max: int

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[int, int | None]]:
        """Yield the file descriptor, and the size of a regular file. ConfigError."""
        if str(self.file) == "-":
            yield sys.stdin.fileno(), None
            return
        try:
            descriptor = os.open(self.file, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(f"cannot read {self.file}: {error.strerror}") from error
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise ConfigError(f"cannot read {self.file}: it is a folder")
            yield descriptor, found.st_size if stat.S_ISREG(found.st_mode) else None
        finally:
            os.close(descriptor)


async def _produce(broker: str, topic: str, sending: _Sending) -> int:
    from quire_bookie.cli.progress import progress
    from quire_broker.cli.client import Producer, open_client

    clock = SystemClock()
    count = entries = 0
    with sending.opened() as (descriptor, size_bytes):
        async with open_client(broker) as client:
            producers = []
            for name in await client.partitions(topic, create=True):
                connection = await client.owner(name)
                producer = Producer(connection)
                await producer.open(name)
                producers.append(producer)
            with progress(f"sending {sending.file}", size_bytes) as advance:
                async for batch in _batches(descriptor, sending, connection.message_bytes_max):
                    # One key, one partition; without a key the partitions alternate.
                    chosen = zlib.crc32(sending.key.encode()) if sending.key is not None else entries
                    await producers[chosen % len(producers)].send(
                        batch, key=sending.key, properties=sending.properties, now_ms=clock.now_ms()
                    )
                    count += len(batch)
                    entries += 1
                    advance(sum(map(len, batch)) + len(batch))
                for producer in producers:
                    await producer.flush()
    return count


async def _batches(descriptor: int, sending: _Sending, message_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield the messages of each entry: the lines that one read returned, within the bounds of a batch."""
    from quire_bookie.env.piped_input import pieces_of
    from quire_broker.cli.lines import lines_of

    name = "standard input" if str(sending.file) == "-" else str(sending.file)
    if sending.whole:
        yield [b"".join([piece async for piece in pieces_of(descriptor, name)])]
        return
    async for lines in lines_of(descriptor, name, bytes_max=message_bytes_max):
        batch: list[bytes] = []
        size = 0
        for line in lines:
            if batch and (len(batch) == sending.batch_max or size + len(line) > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        yield batch


async def _consume(
    broker: str,
    topic: str,
    subscription: str | None,
    latest: bool,
    follow: bool,
    count: int | None,
    output: Output,
) -> None:
    from quire_broker.cli.client import Consumer, NoSuchTopicError, open_client

    queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
    async with open_client(broker) as client:
        consumers: list[Consumer] = []
        ends: list[tuple[int, int]] = []
        try:
            names = await client.partitions(topic, create=False)
        except NoSuchTopicError as error:
            raise NoSuchTopicError(f"{error}; `quire produce {topic} FILE` creates it") from error
        for partition, name in enumerate(names):
            consumer = Consumer(await client.owner(name), partition, queue)
            await consumer.open(name, subscription, earliest=not latest)
            consumers.append(consumer)
            ends.append(await consumer.last_position())
        unfinished = {partition for partition, end in enumerate(ends) if end[1] >= 0}
        printed = 0
        while follow or unfinished:
            received = await _next(queue, wait_s=None if follow else _QUIET_S)
            if received is None:
                break
            print_message(received, output)
            consumers[received.partition].acknowledge(received)
            printed += 1
            if printed == count:
                break
            if (received.ledger_id, received.entry_id) >= ends[received.partition] and received.ends_entry:
                unfinished.discard(received.partition)


_QUIET_S = 5.0
"""A subscription may have consumed the end of the topic already: without --follow, this much silence ends it."""


async def next_message(queue: "asyncio.Queue[Received | QuireError]") -> "Received":
    """Wait for the next message; raise the error that came in its place."""
    received = await queue.get()
    if isinstance(received, QuireError):
        raise received
    return received


async def _next(queue: "asyncio.Queue[Received | QuireError]", wait_s: float | None) -> "Received | None":
    try:
        return await asyncio.wait_for(next_message(queue), wait_s)
    except TimeoutError:
        return None
