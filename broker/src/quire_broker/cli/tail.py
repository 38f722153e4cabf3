"""`quire topic tail`: prints the last messages of a topic, and with -f those that follow."""

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.rest import DEFAULT_HTTP, Http, get
from quire_bookie.cli.tables import Output, OutputOption
from quire_broker.cli.admin_paths import topic_of, topic_path
from quire_broker.cli.messages import print_message
from quire_broker.cli.topic_argument import Topic
from quire_broker.cli.topic_stats import partitions_of
from quire_broker.cli.traffic import DEFAULT_URL, Broker
from quire_broker.names import TopicName

if TYPE_CHECKING:
    from quire_client.consumer import Reader
    from quire_client.message import Message

MESSAGES_MAX = 10_000


def register(app: typer.Typer) -> None:
    """Add the command to `quire topic`."""

    @app.command()
    def tail(
        topic: Topic,
        lines: Annotated[
            int, typer.Option("--lines", "-n", min=0, max=MESSAGES_MAX, help="Messages of each partition.")
        ] = 10,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
        http: Http = DEFAULT_HTTP,
        broker: Broker = DEFAULT_URL,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Print the last messages of a topic, and with -f those that follow. Changes no subscription."""
        name = topic_of(topic)
        parts = name.partitions(partitions_of(http, name)) or [name]
        asyncio.run(_tail(http, broker, parts, lines, follow, output))


def start_of(internal: dict[str, Any], entries: int) -> tuple[int, int]:
    """Return the position before the last `entries` entries of a topic, from its internal stats. Pure."""
    left = entries
    for ledger in reversed(internal["ledgers"]):
        if ledger["entries"] >= left:
            return ledger["ledgerId"], ledger["entries"] - left - 1
        left -= ledger["entries"]
    return -1, -1


async def _tail(http: str, broker: str, parts: list[TopicName], lines: int, follow: bool, output: Output) -> None:
    from quire_bookie.cli.client_access import client_access
    from quire_client import Client, ConsumerOptions, MessageId

    options = ConsumerOptions(creates_topic=False)
    async with Client(broker, client_access) as client, contextlib.AsyncExitStack() as stack:
        readers: list[Reader] = []
        shown: list[Message] = []
        for name in parts:
            internal = get(http, f"{topic_path(name)}/internalStats")
            # An entry holds one message or more: the last entries hold the last messages.
            start = MessageId(*start_of(internal, lines))
            reader = await stack.enter_async_context(client.reader(str(name), start, options))
            readers.append(reader)
            ledger, entry = internal["lastConfirmedEntry"].split(":")
            # A topic without entries, and one of which no entries were asked for, has nothing before its end.
            if int(entry) >= 0 and lines > 0:
                shown += await _last(reader, (int(ledger), int(entry)), lines)
        for message in sorted(shown, key=lambda one: one.publish_time_ms):
            print_message(message, output)
        if follow:
            async with asyncio.TaskGroup() as tasks:
                for reader in readers:
                    tasks.create_task(_follow(reader, output))


async def _last(reader: "Reader", end: tuple[int, int], lines: int) -> "deque[Message]":
    """Return the last messages up to an entry."""
    last: deque[Message] = deque(maxlen=lines)
    async for message in reader:
        last.append(message)
        if message.arrival.place >= end and message.ends_entry:
            break
    return last


async def _follow(reader: "Reader", output: Output) -> None:
    async for message in reader:
        print_message(message, output)
