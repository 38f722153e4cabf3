"""Reads the stats of a topic, plain or partitioned, for commands that show topics and subscriptions."""

import contextlib
from collections.abc import Iterator
from typing import Any

from quire_bookie.cli.refusals import MissingError
from quire_bookie.cli.rest import get
from quire_bookie.dataclass import dataclass
from quire_broker.cli.admin_paths import topic_path
from quire_broker.names import TopicName


@dataclass(frozen=True, slots=True)
class TopicStats:
    """What the owners of a topic report. `partitions`: 0 for a plain topic; then `stats` are those of the topic."""

    partitions: int
    stats: dict[str, Any]


def partitions_of(http: str, name: TopicName) -> int:
    """Return the number of partitions of a topic, 0 for a plain one. MissingError."""
    with _named(name):
        found: int = get(http, f"{topic_path(name)}/partitions")["partitions"]
    return found


def stats_of(http: str, name: TopicName) -> TopicStats:
    """Ask for the stats of a topic. MissingError."""
    count = partitions_of(http, name)
    with _named(name):  # an unused partition of a partitioned topic, too, has no stats
        return TopicStats(count, get(http, f"{topic_path(name)}/{'partitioned-stats' if count else 'stats'}"))


@contextlib.contextmanager
def _named(name: TopicName) -> Iterator[None]:
    """Say which topic is missing, and where to look: the broker says only that one is."""
    try:
        yield
    except MissingError as error:
        listed = f"`quire topic list {name.namespace}` shows those that do"
        raise MissingError(f"topic {name} does not exist; {listed}") from error


def subscription_rows(found: TopicStats) -> list[dict[str, Any]]:
    """Return a row for each subscription, by name: type, backlog, unacknowledged messages, consumers."""
    if not found.partitions:
        parts = [found.stats]
    else:
        parts = list(found.stats["partitions"].values())
    return [
        {
            "subscription": name,
            "type": stats["type"],
            "durable": all(part["subscriptions"][name]["durable"] for part in parts if name in part["subscriptions"]),
            "backlog": stats["msgBacklog"],
            "unacknowledged": stats["unackedMessages"],
            "consumers": sum(len(part["subscriptions"].get(name, {}).get("consumers", ())) for part in parts),
            "rateOut": sum(part["subscriptions"].get(name, {}).get("msgRateOut", 0.0) for part in parts),
        }
        for name, stats in sorted(found.stats["subscriptions"].items())
    ]


def subscription_row(found: TopicStats, topic: TopicName, subscription: str) -> dict[str, Any]:
    """Return the row of one subscription. MissingError lists the others."""
    rows = subscription_rows(found)
    for row in rows:
        if row["subscription"] == subscription:
            return row
    known = ", ".join(row["subscription"] for row in rows) or "none"
    raise MissingError(f"{topic} has no subscription {subscription}; it has: {known}")
