"""`quire produce` and `quire consume`: send and print lines."""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import Output, OutputOption
from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import ConfigError
from quire_bookie.spans import TRACEPARENT, TraceContext
from quire_broker.cli.messages import print_message
from quire_broker.cli.topic_argument import Topic

if TYPE_CHECKING:
    from quire_client.consumer import Receiver
    from quire_client.message import Message

DEFAULT_URL = "pulsar://localhost:6650"
BATCH_MAX = 1000
"""Messages of an entry, as of Pulsar's own clients."""
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
    from quire_bookie.cli.client_access import client_access
    from quire_bookie.cli.progress import progress
    from quire_client import Client, Extra, ProducerOptions

    options = ProducerOptions(batch_messages_max=sending.batch_max)
    extra = Extra(sending.key, sending.properties)
    count = 0
    with sending.opened() as (descriptor, size_bytes):
        async with Client(broker, client_access) as client, client.producer(topic, options) as producer:
            with progress(f"sending {sending.file}", size_bytes) as advance:
                async for payloads in _payloads(descriptor, sending, producer.message_bytes_max):
                    for payload in payloads:
                        await producer.enqueue(payload, extra)
                    count += len(payloads)
                    advance(sum(map(len, payloads)) + len(payloads))
                await producer.flush()
    return count


async def _payloads(descriptor: int, sending: _Sending, message_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield the messages of each read."""
    from quire_bookie.env.piped_input import pieces_of
    from quire_broker.cli.lines import lines_of

    name = "standard input" if str(sending.file) == "-" else str(sending.file)
    if sending.whole:
        yield [b"".join([piece async for piece in pieces_of(descriptor, name)])]
        return
    async for lines in lines_of(descriptor, name, bytes_max=message_bytes_max):
        yield lines


async def _consume(
    broker: str,
    topic: str,
    subscription: str | None,
    latest: bool,
    follow: bool,
    count: int | None,
    output: Output,
) -> None:
    from quire_bookie.cli.client_access import client_access
    from quire_client import (
        EARLIEST,
        LATEST,
        Client,
        Consumer,
        ConsumerOptions,
        InitialPosition,
        NoSuchTopicError,
        SubscriptionType,
    )

    initial = InitialPosition.LATEST if latest else InitialPosition.EARLIEST
    async with Client(broker, client_access) as client:
        receiver: Receiver
        if subscription is None:
            receiver = client.reader(topic, LATEST if latest else EARLIEST, ConsumerOptions(creates_topic=False))
        else:
            options = ConsumerOptions(SubscriptionType.SHARED, initial, creates_topic=False)
            receiver = client.consumer(topic, subscription, options)
        try:
            await receiver.open()
        except NoSuchTopicError as error:
            raise NoSuchTopicError(f"{error}; `quire produce {topic} FILE` creates it") from error
        try:
            ends = {max(0, each.partition): each[:2] for each in await receiver.last_message_ids()}
            unfinished = {partition for partition, end in ends.items() if end[1] >= 0}
            printed = 0
            while follow or unfinished:
                message = await _next(receiver, wait_s=None if follow else _QUIET_S)
                if message is None:
                    break
                print_message(message, output)
                if isinstance(receiver, Consumer):
                    receiver.acknowledge_soon(message)
                printed += 1
                if printed == count:
                    break
                partition = max(0, message.id.partition)
                if message.arrival.place >= ends[partition] and message.ends_entry:
                    unfinished.discard(partition)
            if isinstance(receiver, Consumer):
                await receiver.confirmed()
        finally:
            await receiver.close()


_QUIET_S = 5.0
"""A subscription may have consumed the end of the topic already: without --follow, this much silence ends it."""


async def _next(receiver: "Receiver", wait_s: float | None) -> "Message | None":
    try:
        return await asyncio.wait_for(receiver.receive(), wait_s)
    except TimeoutError:
        return None
