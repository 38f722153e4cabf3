"""`quire topic`: lists, creates, describes and deletes topics over the admin REST."""

from typing import Annotated, Any, Final

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say
from quire_bookie.cli.refusals import DeniedError, RefusedError, refusal_of
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows
from quire_broker.cli import tail, topic_repair
from quire_broker.cli.admin_paths import namespace_of, topic_of, topic_path, topics_path
from quire_broker.cli.topic_argument import Topic
from quire_broker.cli.topic_stats import TopicStats, stats_of, subscription_rows
from quire_broker.names import TopicName

_COLUMNS: Final = (
    Column("topic", lambda row: row["topic"]),
    Column("messages in", lambda row: row["messagesIn"]),
    Column("entries kept", lambda row: row["entries"]),
    Column("bytes kept", lambda row: row["size"]),
    Column("subscriptions (backlog)", lambda row: _backlogs(row)),
    Column("producers", lambda row: row["producers"], wide=True),
    Column("bytes in", lambda row: row["bytesIn"], wide=True),
)


def register(commands: Commands) -> None:
    """Add `quire topic`."""
    app = new_app("Show, read, create and delete topics, and repair them after a restore.")
    commands.app.add_typer(app, name="topic")
    _add_showing(app)
    _add_changing(app)
    tail.register(app)
    topic_repair.register(commands, app)


def _add_showing(app: typer.Typer) -> None:
    @app.command("list")
    def list_(
        namespace: Annotated[str, typer.Argument(help="tenant/namespace")] = "public/default",
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """List the topics of a namespace, with counters of those that are loaded."""
        rows = _rows(http, namespace)
        empty = f"{namespace} has no topics yet; the first `quire produce` creates one"
        print_rows(rows, _COLUMNS, output, name=lambda row: row["topic"], empty=empty)

    @app.command()
    def describe(topic: Topic, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Show a topic: partitions, owner, rates, storage, ledgers, producers and subscriptions."""
        name = topic_of(topic)
        found = stats_of(http, name)
        path = topic_path(name)
        internal = get(http, f"{path}/partitioned-internalStats" if found.partitions else f"{path}/internalStats")
        value = {"topic": str(name), "partitions": found.partitions, "stats": found.stats, "internal": internal}
        print_one(value, _facts(name, found, internal), output, name=name)


def _add_changing(app: typer.Typer) -> None:
    @app.command()
    def create(
        topic: Topic,
        partitions: Annotated[int, typer.Option(min=0, help="Number of partitions; 0: a plain topic.")] = 0,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Create a topic."""
        name = topic_of(topic)
        if partitions:
            ask(http, "PUT", f"{topic_path(name)}/partitions", partitions)
            ask(http, "POST", f"{topic_path(name)}/createMissedPartitions")
        else:
            ask(http, "PUT", topic_path(name))
        say(f"{name} is created" + (f" with {partitions} partitions" if partitions else ""))

    @app.command()
    def grow(
        topic: Topic,
        partitions: Annotated[int, typer.Argument(min=1, help="Number of partitions afterwards.")],
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Add partitions to a partitioned topic. Messages with a key may then go to another partition than before."""
        name = topic_of(topic)
        ask(http, "POST", f"{topic_path(name)}/partitions", partitions)
        say(f"{name} has {partitions} partitions")

    @app.command()
    def delete(
        topic: Topic,
        force: Annotated[bool, typer.Option("--force", help="Even with producers or subscriptions.")] = False,
        yes: Yes = False,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Delete a topic with all its messages and subscriptions."""
        name = topic_of(topic)
        found = stats_of(http, name)
        confirm_name(yes, topic, f"{name} with {found.stats['storageSize']:,} bytes of messages will be deleted")
        path = topic_path(name) + ("/partitions" if found.partitions else "")
        ask(http, "DELETE", path + ("?force=true" if force else ""))
        say(f"{name} is deleted")

    @app.command()
    def truncate(topic: Topic, yes: Yes = False, http: Http = DEFAULT_HTTP) -> None:
        """Delete the messages of a topic: every subscription skips its backlog, and consumed ledgers are deleted."""
        name = topic_of(topic)
        found = stats_of(http, name)
        confirm_name(yes, topic, f"{name} with {found.stats['storageSize']:,} bytes of messages will be emptied")
        ask(http, "DELETE", f"{topic_path(name)}/truncate")
        say(f"{name} is truncated")

    @app.command()
    def terminate(topic: Topic, yes: Yes = False, http: Http = DEFAULT_HTTP) -> None:
        """End a topic: it refuses further messages for ever; consumers read to its end."""
        name = topic_of(topic)
        found = stats_of(http, name)
        confirm_name(yes, topic, f"{name} will refuse all further messages for ever")
        ask(http, "POST", f"{topic_path(name)}/terminate" + ("/partitions" if found.partitions else ""))
        say(f"{name} is terminated")

    @app.command()
    def unload(topic: Topic, http: Http = DEFAULT_HTTP) -> None:
        """Close a topic at its broker; its clients connect again, perhaps to another broker."""
        name = topic_of(topic)
        ask(http, "PUT", f"{topic_path(name)}/unload")
        say(f"{name} is unloaded")


def _rows(http: str, namespace: str) -> list[dict[str, Any]]:
    name = namespace_of(namespace)
    try:
        names: list[str] = get(http, topics_path(name))
    except RefusedError as error:
        raise refusal_of(error, namespace) from error
    try:
        loaded = {row["topic"]: row for row in get(http, "/admin/quire/topics")}
    except DeniedError as error:
        say(f"without counters: {error}", err=True)
        loaded = {}
    empty = {"messagesIn": None, "bytesIn": None, "entries": None, "size": None, "producers": None}
    return [loaded.get(each, {"topic": each, **empty, "subscriptions": None}) for each in sorted(names)]


def _backlogs(row: dict[str, Any]) -> str | None:
    if row["subscriptions"] is None:
        return "(not loaded)"
    return ", ".join(f"{name} ({count})" for name, count in sorted(row["subscriptions"].items())) or "-"


def _facts(name: TopicName, found: TopicStats, internal: dict[str, Any]) -> dict[str, object]:
    stats = found.stats
    parts = internal["partitions"].values() if found.partitions else [internal]
    owners = {part["ownerBroker"] for part in stats["partitions"].values()} if found.partitions else set()
    facts: dict[str, object] = {
        "topic": str(name),
        "partitions": found.partitions or None,
        "owner": ", ".join(sorted(owners)) or stats.get("ownerBroker"),
        "messages in": f"{stats['msgInCounter']:,} since it was loaded, {stats['msgRateIn']:,.0f}/s",
        "bytes in": f"{stats['bytesInCounter']:,} since it was loaded, {stats['msgThroughputIn']:,.0f}/s",
        "messages out": f"{stats['msgOutCounter']:,} since it was loaded, {stats['msgRateOut']:,.0f}/s",
        "entries kept": f"{sum(part['numberOfEntries'] for part in parts):,}",
        "bytes kept": f"{stats['storageSize']:,}",
        "backlog": f"{stats['backlogSize']:,} bytes",
        "ledgers": _ledgers([ledger for part in parts for ledger in part["ledgers"]]),
        "last entry": None if found.partitions else internal["lastConfirmedEntry"],
        "producers": len(stats["publishers"]),
    }
    for row in subscription_rows(found):
        facts[f"subscription {row['subscription']}"] = (
            f"{row['type']}, backlog {row['backlog']:,}, {row['consumers']} consumers"
        )
    return facts


def _ledgers(ledgers: list[dict[str, Any]]) -> str:
    ids = [str(ledger["ledgerId"]) for ledger in ledgers]
    shown = ", ".join(ids) if len(ids) <= 5 else f"{ids[0]} to {ids[-1]} ({len(ids)})"
    offloaded = sum(bool(ledger["offloaded"]) for ledger in ledgers)
    return (shown or "-") + (f", {offloaded} offloaded" if offloaded else "")
