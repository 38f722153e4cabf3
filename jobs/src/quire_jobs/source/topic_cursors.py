"""Durable cursors of jobs and streams, made, moved and removed through the topic's own broker. Keeps nothing.

While the cursor is there, nothing from its position on is trimmed. A cursor that is left behind holds data for ever:
`release` removes it, and it is named after its job, so that whoever looks at a topic's subscriptions knows it.
"""

from typing import Any
from urllib.parse import quote

from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_broker.topic.topic_names import TopicName
from quire_jobs.source.broker_http import BrokerHttp, good, topic_path

JOB_CURSOR = "quire.job."


def job_cursor(job_id: str) -> str:
    """Name of the cursor of a job."""
    return JOB_CURSOR + job_id


def _json(position: Position) -> Any:
    if position == EARLIEST or position.ledger_id < 0:
        return "earliest"
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": -1}


async def hold(brokers: BrokerHttp, topic: TopicName, cursor: str, position: Position) -> bool:
    """A cursor whose next entry is `position`; one that is there already stays where it is. Whether it was made."""
    status, value = await brokers.ask("PUT", _path(topic, cursor), _json(position))
    if status == 409:
        return False
    good(status, value, f"cursor {cursor} of {topic}")
    return True


async def move(brokers: BrokerHttp, topic: TopicName, cursor: str, position: Position) -> bool:
    """What comes before `position` may go. False: the cursor is not there any more, somebody removed it."""
    status, value = await brokers.ask("POST", _path(topic, cursor) + "/resetcursor", _json(position))
    if status == 404:
        return False
    good(status, value, f"cursor {cursor} of {topic}")
    return True


async def release(brokers: BrokerHttp, topic: TopicName, cursor: str) -> None:
    """Remove the cursor; one that is gone is fine."""
    status, value = await brokers.ask("DELETE", _path(topic, cursor))
    if status != 404:
        good(status, value, f"cursor {cursor} of {topic}")


async def last_confirmed(brokers: BrokerHttp, topic: TopicName) -> Position:
    """The newest entry that the topic's owner has confirmed; it knows before its bookies do."""
    status, value = await brokers.ask("GET", topic_path(topic) + "/internalStats")
    ledger, _, entry = str(good(status, value, f"the state of {topic}")["lastConfirmedEntry"]).partition(":")
    return Position(int(ledger), int(entry))


def _path(topic: TopicName, cursor: str) -> str:
    return f"{topic_path(topic)}/subscription/{quote(cursor, safe='')}"
