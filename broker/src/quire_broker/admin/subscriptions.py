"""/admin/v2/persistent/T/subscription: subscriptions of a topic, or of all partitions of a partitioned one."""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeGuard

from aiohttp import web

from quire_bookie.admin.answers import whole_number
from quire_broker.admin.answers import answer, body_of, done, failure, flag
from quire_broker.admin.context import broker_of, owned_topic, require_owner, topic_name_of
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import ConflictError, NotAllowedError, SubscriptionNotFoundError, TopicNotFoundError
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.policies.fields import INT_MAX, LONG_MAX
from quire_broker.topic.client_names import check_name
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic

_NAMES = {"earliest": EARLIEST, "latest": LATEST}


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
    one = topic + "/subscription/{subscription}"
    yield Route("GET", topic + "/subscriptions", list_subscriptions, Need.CONSUME)
    yield Route("PUT", one, create, Need.CONSUME)
    yield Route("DELETE", one, delete, Need.CONSUME)
    yield Route("POST", one + "/skip_all", skip_all, Need.CONSUME)
    yield Route("POST", one + "/skip/{count}", skip, Need.CONSUME)
    yield Route("POST", one + "/resetcursor/{time_ms}", reset_to_time, Need.CONSUME)
    yield Route("POST", one + "/resetcursor", reset_to_position, Need.CONSUME)


async def _topics(request: web.Request) -> list[Topic]:
    """Return the topic of the path, or its partitions; this broker must own them."""
    broker = broker_of(request)
    name = topic_name_of(request)
    count = await broker.policies.partitions(name)
    if not count:
        return [await owned_topic(request)]
    found = []
    for index in range(count):
        partition = name.partition_of(index)
        await require_owner(request, partition)
        found.append(await broker.topics.get(partition, create=True))
    return found


async def _each(request: web.Request, do: Callable[[Subscription], Awaitable[None]]) -> web.Response:
    name = request.match_info["subscription"]
    found = [topic.subscriptions.get(name) for topic in await _topics(request)]
    if not any(found):
        raise SubscriptionNotFoundError("Subscription not found")
    for subscription in found:
        if subscription is not None:
            await do(subscription)
    return done()


def position_of(value: object) -> Position:
    """Parse a position of JSON: `{"ledgerId", "entryId"}`, or "earliest", "latest"; None: latest."""
    if value is None:
        return LATEST
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    if isinstance(value, dict):
        ledger_id, entry_id = value.get("ledgerId"), value.get("entryId")
        if _is_id(ledger_id) and _is_id(entry_id):
            return EARLIEST if ledger_id < 0 else Position(ledger_id, entry_id)
    raise NotAllowedError(
        'a position must be {"ledgerId": n, "entryId": n}, "earliest" or "latest", '
        f"with integers from -1 to {LONG_MAX}; got {str(value)[:100]}"
    )


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and -1 <= value <= LONG_MAX


async def list_subscriptions(request: web.Request) -> web.Response:
    """List the names of the durable subscriptions."""
    names = {
        name
        for topic in await _topics(request)
        for name, subscription in topic.subscriptions.items()
        if subscription.durable
    }
    return answer(sorted(names))


async def create(request: web.Request) -> web.Response:
    """Create a subscription at a position; 409 if it exists."""
    name = request.match_info["subscription"]
    check_name("subscription", name, broker_of(request).parts.settings.name_characters_max, required=True)
    position = position_of(await body_of(request))
    topics = await _topics(request)
    if all(name in topic.subscriptions for topic in topics):
        raise ConflictError("Subscription already exists for topic")
    for topic in topics:
        subscription = await topic.subscription(name, create=True, initial=position)
        if position not in (EARLIEST, LATEST):
            await subscription.seek_position(position)
    return done()


async def delete(request: web.Request) -> web.Response:
    """Delete a subscription; 412 while it has consumers, unless forced."""
    name = request.match_info["subscription"]
    topics = [topic for topic in await _topics(request) if name in topic.subscriptions]
    if not topics:
        raise SubscriptionNotFoundError("Subscription not found")
    try:
        for topic in topics:
            await topic.drop_subscription(name, force=flag(request, "force"))
    except ConflictError as error:
        return failure(412, str(error))
    return done()


async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge the whole backlog."""
    return await _each(request, lambda subscription: subscription.skip_all())


async def skip(request: web.Request) -> web.Response:
    """Acknowledge the next n entries."""
    count = whole_number("count", request.match_info["count"], 0, INT_MAX)
    if len(await _topics(request)) != 1:
        raise NotAllowedError("Skip messages on a partitioned topic is not allowed")
    return await _each(request, lambda subscription: subscription.skip(count))


async def reset_to_time(request: web.Request) -> web.Response:
    """Move a subscription to the first message published at that time (ms) or later."""
    time_ms = whole_number("time_ms", request.match_info["time_ms"])
    return await _each(request, lambda subscription: subscription.seek_time(time_ms))


async def reset_to_position(request: web.Request) -> web.Response:
    """Move a subscription to a position."""
    position = position_of(await body_of(request))
    if len(await _topics(request)) != 1:
        raise TopicNotFoundError("Reset-cursor at position is not allowed for partitioned-topic")
    return await _each(request, lambda subscription: subscription.seek_position(position))
