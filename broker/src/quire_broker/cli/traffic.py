"""`quire produce` and `quire consume`: send and print lines, without a Pulsar client."""

import asyncio
import json
import sys
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.output import say, say_content
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError, QuireError

if TYPE_CHECKING:
    from quire_broker.cli.client import Received

DEFAULT_URL = "pulsar://localhost:6650"
Broker = Annotated[str, typer.Option("--broker", help="Address of a broker.", envvar="QUIRE_BROKER")]


class OutputFormat(StrEnum):
    """How messages are printed."""

    TEXT = "text"
    JSON = "json"


def register(commands: Commands) -> None:
    """Add both commands."""

    @commands.app.command()
    def produce(
        topic: Annotated[str, typer.Argument(help="Topic, e.g. my-topic or persistent://public/default/my-topic.")],
        file: Annotated[Path, typer.Argument(help="File whose lines become messages; - is standard input.")],
        broker: Broker = DEFAULT_URL,
        key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
        property_: Annotated[list[str] | None, typer.Option("--property", help="NAME=VALUE; may be repeated.")] = None,
        whole: Annotated[bool, typer.Option("--whole", help="The whole file is one message.")] = False,
    ) -> None:
        """Send the lines of FILE to TOPIC and wait until all of them are stored."""
        if str(file) != "-" and not file.is_file():
            raise ConfigError(f"cannot read {file}: the file does not exist")
        properties = _properties(property_ or [])
        count = asyncio.run(_produce(broker, topic, _messages(file, whole=whole), key, properties))
        say(f"{count} messages stored in {topic}", err=True)

    @commands.app.command()
    def consume(
        topic: Annotated[str, typer.Argument(help="Topic, e.g. my-topic.")],
        broker: Broker = DEFAULT_URL,
        subscription: Annotated[
            str | None, typer.Option(help="Read by this durable subscription and acknowledge; default: a reader.")
        ] = None,
        latest: Annotated[bool, typer.Option("--latest", help="Start with new messages, not the oldest.")] = False,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
        count: Annotated[int | None, typer.Option(min=1, help="Stop after this number of messages.")] = None,
        format_: Annotated[OutputFormat, typer.Option("--format", help="How to print.")] = OutputFormat.TEXT,
    ) -> None:
        """Print the messages of TOPIC, oldest first, one per line."""
        asyncio.run(_consume(broker, topic, subscription, latest, follow or latest, count, format_))


def _properties(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"--property {text}: expected NAME=VALUE")
        found[name] = value
    return found


def _messages(file: Path, *, whole: bool) -> Iterator[bytes]:
    if str(file) == "-":
        yield from _pieces(sys.stdin.buffer, whole=whole)
        return
    try:
        with file.open("rb") as opened:
            yield from _pieces(opened, whole=whole)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _pieces(stream: BinaryIO, *, whole: bool) -> Iterator[bytes]:
    if whole:
        yield stream.read()
    else:
        for line in stream:
            yield line.rstrip(b"\r\n")


async def _produce(
    broker: str, topic: str, messages: Iterator[bytes], key: str | None, properties: dict[str, str]
) -> int:
    from quire_broker.cli.client import Producer, open_client

    clock = SystemClock()
    count = 0
    async with open_client(broker) as client:
        producers = []
        for name in await client.partitions(topic, create=True):
            producer = Producer(await client.owner(name))
            await producer.open(name)
            producers.append(producer)
        for payload in messages:
            # One key, one partition; without a key the partitions alternate.
            chosen = zlib.crc32(key.encode()) if key is not None else count
            await producers[chosen % len(producers)].send(
                payload, key=key, properties=properties, now_ms=clock.now_ms()
            )
            count += 1
        for producer in producers:
            await producer.flush()
    return count


async def _consume(
    broker: str,
    topic: str,
    subscription: str | None,
    latest: bool,
    follow: bool,
    count: int | None,
    form: OutputFormat,
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
            _print(received, form)
            consumers[received.partition].acknowledge(received)
            printed += 1
            if printed == count:
                break
            if (received.ledger_id, received.entry_id) >= ends[received.partition]:
                unfinished.discard(received.partition)


_QUIET_S = 5.0
"""A subscription may have consumed the end of the topic already: without --follow, this much silence ends it."""


async def _next(queue: "asyncio.Queue[Received | QuireError]", wait_s: float | None) -> "Received | None":
    try:
        received = await asyncio.wait_for(queue.get(), wait_s)
    except TimeoutError:
        return None
    if isinstance(received, QuireError):
        raise received
    return received


def _print(received: "Received", form: OutputFormat) -> None:
    message = received.message
    text = message.payload.decode("utf-8", errors="replace")
    if form is OutputFormat.TEXT:
        say_content(text)
        return
    shown = {
        "id": f"{received.ledger_id}:{received.entry_id}:{message.batch_index}",
        "partition": received.partition,
        "key": message.key,
        "properties": message.properties,
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "producer": message.producer_name,
        "sequence_id": message.sequence_id,
        "payload": text,
    }
    print(json.dumps({name: value for name, value in shown.items() if value is not None}), flush=True)
