"""Creates, moves and removes durable cursors of jobs and streams, through the topic's broker. Keeps no state.

While a cursor exists, nothing from its position on is trimmed. A cursor that remains keeps data forever: `release`
removes it. Its name contains the job's id, so that an administrator recognizes it among a topic's subscriptions.
"""

from typing import Any
from urllib.parse import quote

from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_broker.names import TopicName
from quire_jobs.source.broker_http import BrokerHttp, require_success, topic_path

JOB_CURSOR = "quire.job."


def job_cursor(job_id: str) -> str:
    """Return the name of a job's cursor."""
    return JOB_CURSOR + job_id


def _json(position: Position) -> Any:
    if position == EARLIEST or position.ledger_id < 0:
        return "earliest"
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": -1}


async def hold(brokers: BrokerHttp, topic: TopicName, cursor: str, position: Position) -> bool:
    """Make a cursor whose next entry is `position`; an existing one keeps its position. Return whether it was made."""
    status, value = await brokers.ask("PUT", _path(topic, cursor), _json(position))
    if status == 409:
        return False
    require_success(status, value, f"cursor {cursor} of {topic}")
    return True


async def move(brokers: BrokerHttp, topic: TopicName, cursor: str, position: Position) -> bool:
    """Move the cursor to `position`; earlier entries may then be trimmed. Return False if the cursor was removed."""
    status, value = await brokers.ask("POST", _path(topic, cursor) + "/resetcursor", _json(position))
    if status == 404:
        return False
    require_success(status, value, f"cursor {cursor} of {topic}")
    return True


async def release(brokers: BrokerHttp, topic: TopicName, cursor: str) -> None:
    """Remove the cursor; a missing one is not an error."""
    status, value = await brokers.ask("DELETE", _path(topic, cursor))
    if status != 404:
        require_success(status, value, f"cursor {cursor} of {topic}")


async def last_confirmed(brokers: BrokerHttp, topic: TopicName) -> Position:
    """Return the newest entry that the topic's owner has confirmed; its bookies know of it later."""
    ledger, _, entry = str((await internal_stats(brokers, topic))["lastConfirmedEntry"]).partition(":")
    return Position(int(ledger), int(entry))


async def internal_stats(brokers: BrokerHttp, topic: TopicName) -> Any:
    """Return the ledgers and cursors of the topic, as its owner describes them."""
    status, value = await brokers.ask("GET", topic_path(topic) + "/internalStats")
    return require_success(status, value, f"the state of {topic}")


def _path(topic: TopicName, cursor: str) -> str:
    return f"{topic_path(topic)}/subscription/{quote(cursor, safe='')}"
