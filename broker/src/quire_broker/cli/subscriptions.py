"""`quire subscription`: lists, creates, moves and deletes the subscriptions of a topic over the admin REST."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows
from quire_bookie.cli.times import duration_s, moment_ms
from quire_bookie.errors import ConfigError
from quire_broker.cli.admin_paths import peek_path, subscription_path, topic_of
from quire_broker.cli.messages import print_message
from quire_broker.cli.topic_argument import Topic
from quire_broker.cli.topic_stats import partitions_of, stats_of, subscription_row, subscription_rows
from quire_broker.names import TopicName

if TYPE_CHECKING:
    from quire_client.message import Message

Name = Annotated[str, typer.Argument(help="Name of the subscription.")]
_COLUMNS = (
    Column("subscription", lambda row: row["subscription"]),
    Column("type", lambda row: row["type"]),
    Column("backlog", lambda row: row["backlog"]),
    Column("unacknowledged", lambda row: row["unacknowledged"]),
    Column("consumers", lambda row: row["consumers"]),
    Column("messages/s out", lambda row: round(row["rateOut"]), wide=True),
    Column("durable", lambda row: "yes" if row["durable"] else "no", wide=True),
)


def register(commands: Commands) -> None:
    """Add `quire subscription`."""
    app = new_app("Show, create, move and delete the subscriptions of topics.")
    commands.app.add_typer(app, name="subscription")
    _add_showing(app)
    _add_changing(app)


def _add_showing(app: typer.Typer) -> None:
    @app.command("list")
    def list_(topic: Topic, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the subscriptions of a topic, with their backlogs and consumers."""
        rows = subscription_rows(stats_of(http, topic_of(topic)))
        empty = f"{topic} has no subscription; `quire subscription create {topic} NAME` creates one"
        print_rows(rows, _COLUMNS, output, name=lambda row: row["subscription"], empty=empty)

    @app.command()
    def describe(topic: Topic, name: Name, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Show a subscription: type, backlog, and each consumer with its address."""
        full = topic_of(topic)
        found = stats_of(http, full)
        row = subscription_row(found, full, name)
        parts = found.stats["partitions"] if found.partitions else {str(full): found.stats}
        each = {key: part["subscriptions"][name] for key, part in parts.items() if name in part["subscriptions"]}
        facts: dict[str, object] = {"topic": str(full), **{column.header: column.of(row) for column in _COLUMNS}}
        for key, stats in each.items():
            for consumer in stats["consumers"]:
                facts[f"consumer {consumer['consumerName']}"] = (
                    f"{consumer['address']}, {consumer['unackedMessages']} unacknowledged"
                    + (f", {key}" if found.partitions else "")
                )
        print_one({"topic": str(full), **row, "stats": each}, facts, output, name=name)

    @app.command()
    def peek(
        topic: Topic,
        name: Name,
        count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="Entries of each partition.")] = 10,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Print the next messages of a subscription without delivering or acknowledging them."""
        full = topic_of(topic)
        for index, part in enumerate(full.partitions(partitions_of(http, full)) or [full]):
            for received in _peeked(http, part, name, index, count):
                print_message(received, output)


def _peeked(http: str, topic: TopicName, name: str, partition: int, count: int) -> "Iterator[Message]":
    from quire_client.message import arrival_of, messages_of  # slow to import, and few of these commands need it

    for one in get(http, f"{peek_path(topic, name)}?count={count}")["entries"]:
        arrival = arrival_of((one["ledgerId"], one["entryId"]), base64.b64decode(one["entry"]), partition=partition)
        yield from messages_of(arrival, one["ackSet"])


def _add_changing(app: typer.Typer) -> None:
    @app.command()
    def create(
        topic: Topic,
        name: Name,
        at: Annotated[str, typer.Option("--at", help="earliest, latest, or LEDGER:ENTRY.")] = "latest",
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Create a subscription, which then keeps every message that it has not acknowledged."""
        full = topic_of(topic)
        ask(http, "PUT", subscription_path(full, name), at if at in ("earliest", "latest") else _position("--at", at))
        say(f"subscription {name} of {full} begins at {at}")

    @app.command()
    def delete(
        topic: Topic,
        name: Name,
        force: Annotated[bool, typer.Option("--force", help="Even with consumers, which are disconnected.")] = False,
        yes: Yes = False,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Delete a subscription and its position."""
        full = topic_of(topic)
        row = subscription_row(stats_of(http, full), full, name)
        confirm_name(yes, name, f"subscription {name} of {full} with a backlog of {row['backlog']} will be deleted")
        ask(http, "DELETE", subscription_path(full, name) + ("?force=true" if force else ""))
        say(f"subscription {name} of {full} is deleted")

    @app.command()
    def reset(
        topic: Topic,
        name: Name,
        to: Annotated[
            str, typer.Option("--to", help="earliest, latest, LEDGER:ENTRY, 2h ago as 2h, or 2026-01-31T12:00Z.")
        ],
        yes: Yes = False,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Move a subscription: its consumers receive the messages from there on, again or for the first time."""
        full = topic_of(topic)
        suffix, body = _target(to, datetime.now(UTC))
        subscription_row(stats_of(http, full), full, name)
        confirm_name(yes, name, f"subscription {name} of {full} will be moved to {to}")
        ask(http, "POST", f"{subscription_path(full, name)}/{suffix}", body)
        say(f"subscription {name} of {full} continues at {to}")

    @app.command()
    def skip(
        topic: Topic,
        name: Name,
        count: Annotated[
            int | None, typer.Option(min=1, help="Entries; an entry may hold a batch of messages.")
        ] = None,
        all_: Annotated[bool, typer.Option("--all", help="The whole backlog.")] = False,
        older_than: Annotated[str | None, typer.Option(help="Messages published before: 90s, 30m, 2h, 7d ago.")] = None,
        yes: Yes = False,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Acknowledge messages without delivering them."""
        if (count is not None) + all_ + (older_than is not None) != 1:
            raise ConfigError("skip: give --count, --all or --older-than")
        full = topic_of(topic)
        row = subscription_row(stats_of(http, full), full, name)
        if older_than is not None:
            what = f"messages older than {older_than}"
            suffix = f"expireMessages/{duration_s('--older-than', older_than):.0f}"
        elif all_:
            what, suffix = "the whole backlog", "skip_all"
        else:
            what, suffix = f"the next {count} entries", f"skip/{count}"
        confirm_name(yes, name, f"subscription {name} of {full} (backlog {row['backlog']}) will never receive {what}")
        ask(http, "POST", f"{subscription_path(full, name)}/{suffix}")
        left = subscription_row(stats_of(http, full), full, name)["backlog"]
        say(f"subscription {name} of {full} skipped {what}; its backlog is {left}")


def _position(option: str, text: str) -> dict[str, int]:
    ledger, colon, entry = text.partition(":")
    if not colon or not ledger.isdigit() or not entry.isdigit():
        raise ConfigError(f"{option} {text}: expected earliest, latest or LEDGER:ENTRY, e.g. 7:120")
    return {"ledgerId": int(ledger), "entryId": int(entry)}


def _target(text: str, now: datetime) -> tuple[str, Any]:
    """Return the end of the path and the body of a reset. ConfigError."""
    if text == "earliest":
        return "resetcursor/0", None
    if text == "latest":
        return "skip_all", None  # which a partitioned topic accepts, too, and which needs no clock
    ledger, colon, entry = text.partition(":")
    if colon and ledger.isdigit() and entry.isdigit():
        return "resetcursor", _position("--to", text)
    return f"resetcursor/{moment_ms('--to', text, now)}", None
