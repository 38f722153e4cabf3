"""`quire topic tail`: prints the last messages of a topic, and with -f those that follow."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.rest import DEFAULT_HTTP, Http, get
from quire_bookie.cli.tables import Output, OutputOption
from quire_bookie.errors import QuireError
from quire_broker.cli.admin_paths import topic_of, topic_path
from quire_broker.cli.messages import print_message
from quire_broker.cli.topic_argument import Topic
from quire_broker.cli.topic_stats import partitions_of
from quire_broker.cli.traffic import DEFAULT_URL, Broker, next_message
from quire_broker.names import TopicName

if TYPE_CHECKING:
    from quire_broker.cli.client import Received

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
    from quire_broker.cli.client import Consumer, open_client

    queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
    ends: list[tuple[int, int]] = []
    async with open_client(broker) as client:
        for partition, name in enumerate(parts):
            internal = get(http, f"{topic_path(name)}/internalStats")
            consumer = Consumer(await client.owner(str(name)), partition, queue)
            # An entry holds one message or more: the last entries hold the last messages.
            await consumer.open(str(name), None, after=start_of(internal, lines))
            ledger, entry = internal["lastConfirmedEntry"].split(":")
            ends.append((int(ledger), int(entry)))
        # A topic without entries, and one of which no entries were asked for, has nothing before its end.
        unfinished = {partition for partition, end in enumerate(ends) if end[1] >= 0 and lines > 0}
        last: list[deque[Received]] = [deque(maxlen=lines) for _ in parts]
        while unfinished:
            received = await next_message(queue)
            last[received.partition].append(received)
            if (received.ledger_id, received.entry_id) >= ends[received.partition] and received.ends_entry:
                unfinished.discard(received.partition)
        shown = [received for found in last for received in found]
        for received in sorted(shown, key=lambda one: one.message.publish_time_ms):
            print_message(received, output)
        while follow:
            print_message(await next_message(queue), output)
