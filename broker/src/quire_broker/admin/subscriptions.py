"""/admin/v2/persistent/T/subscription: subscriptions of a topic, or of all partitions of a partitioned one."""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeGuard

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, whole_number
from quire_bookie.errors import QuireError
from quire_broker.admin.answers import answer, body_of, done, flag
from quire_broker.admin.context import broker_of, topic_here, topic_name_of
from quire_broker.admin.descriptions import BOOLEAN, NAMES, POSITION, Query, described
from quire_broker.admin.non_persistent import unstored_here
from quire_broker.admin.properties import properties_of
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.spreading import CONFLICT, MISSING, at_owners
from quire_broker.errors import ConflictError, NotAllowedError, SubscriptionNotFoundError, TopicNotFoundError
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.names import TopicName
from quire_broker.policies.fields import INT_MAX, LONG_MAX
from quire_broker.topic.client_names import check_name
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.policy_limits import require_subscription
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic

_NAMES = {"earliest": EARLIEST, "latest": LATEST}


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    any_topic = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
    yield Route("GET", any_topic + "/subscriptions", list_subscriptions, Need.CONSUME)
    yield Route("DELETE", any_topic + "/subscription/{subscription}", delete, Need.CONSUME)
    topic = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
    one = topic + "/subscription/{subscription}"
    yield Route("PUT", one, create, Need.CONSUME)
    yield Route("POST", one + "/skip_all", skip_all, Need.CONSUME)
    yield Route("POST", one + "/skip/{count}", skip, Need.CONSUME)
    yield Route("POST", one + "/expireMessages/{seconds}", expire, Need.CONSUME)
    yield Route("POST", topic + "/all_subscription/expireMessages/{seconds}", expire_all, Need.NAMESPACE)
    yield Route("POST", one + "/resetcursor/{time_ms}", reset_to_time, Need.CONSUME)
    yield Route("POST", one + "/resetcursor", reset_to_position, Need.CONSUME)


async def _topic(request: web.Request, name: TopicName) -> Topic:
    """Return a topic that this broker owns. A partition of a partitioned topic is created if it was not used yet."""
    broker = broker_of(request)
    recorded = name.partition >= 0 and name.partition < await broker.policies.partitions(name.partitioned)
    return await topic_here(broker, name, create=recorded)


async def _each(request: web.Request, do: Callable[[Subscription], Awaitable[None]]) -> web.Response:
    """Do it to the subscription of the topic, or of each partition that has it."""
    subscription_name = request.match_info["subscription"]

    async def one(name: TopicName) -> None:
        subscription = (await _topic(request, name)).subscriptions.get(subscription_name)
        if subscription is None:
            raise SubscriptionNotFoundError("Subscription not found")
        await do(subscription)

    await at_owners(request, one, fine=(MISSING,))
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


@described(returns=NAMES)
async def list_subscriptions(request: web.Request) -> web.Response:
    """List the names of the durable subscriptions, or of all those of a non-persistent topic."""

    async def one(name: TopicName) -> list[str]:
        if not name.persistent:
            return list((await unstored_here(broker_of(request), name)).subscriptions)
        return [found.name for found in (await _topic(request, name)).durable_subscriptions]

    found = await at_owners(request, one)
    return answer(sorted({name for names in found.values() for name in names}))


@described(Query("replicated", BOOLEAN, "its replicated flag"), body=POSITION)
async def create(request: web.Request) -> web.Response:
    """Create a subscription at a position; 409 if it exists, on all partitions of a partitioned topic."""
    subscription_name = request.match_info["subscription"]
    check_name("subscription", subscription_name, broker_of(request).parts.settings.name_characters_max, required=True)
    body = await body_of(request)
    properties = properties_of(body.get("properties") or {}) if isinstance(body, dict) else {}
    position = position_of(body)

    async def one(name: TopicName) -> None:
        topic = await _topic(request, name)
        if subscription_name in topic.subscriptions:
            raise ConflictError("Subscription already exists for topic")
        policies = await broker_of(request).topics.rules(topic)
        require_subscription(policies, topic, subscription_name, by_client=False)
        subscription = await topic.subscription(subscription_name, create=True, initial=position, properties=properties)
        if flag(request, "replicated"):
            await subscription.set_replicated(True)
        if position not in (EARLIEST, LATEST):
            await subscription.seek_position(position)

    await at_owners(request, one, fine=(CONFLICT,))
    return done()


@described(Query("force", BOOLEAN, "also while it has consumers"))
async def delete(request: web.Request) -> web.Response:
    """Delete a subscription; 412 while it has consumers, unless forced."""
    subscription_name = request.match_info["subscription"]

    async def one(name: TopicName) -> None:
        topic: Topic | NonPersistentTopic
        topic = await (_topic(request, name) if name.persistent else unstored_here(broker_of(request), name))
        try:
            await topic.drop_subscription(subscription_name, force=flag(request, "force"))
        except ConflictError as error:
            raise RefusedError(412, str(error)) from error

    await at_owners(request, one, fine=(MISSING,))
    return done()


async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge the whole backlog."""
    return await _each(request, lambda subscription: subscription.skip_all())


async def _require_plain(request: web.Request, error: QuireError) -> None:
    if await broker_of(request).policies.partitions(topic_name_of(request), fresh=True):
        raise error


async def skip(request: web.Request) -> web.Response:
    """Acknowledge the next n entries."""
    count = whole_number("count", request.match_info["count"], 0, INT_MAX)
    await _require_plain(request, NotAllowedError("Skip messages on a partitioned topic is not allowed"))
    return await _each(request, lambda subscription: subscription.skip(count))


def _published_before(request: web.Request) -> int:
    seconds = whole_number("seconds", request.match_info["seconds"], 0, INT_MAX)
    return broker_of(request).clock.now_ms() - seconds * 1000


async def expire(request: web.Request) -> web.Response:
    """Acknowledge the messages published more than `seconds` ago."""
    before_ms = _published_before(request)
    return await _each(request, lambda subscription: subscription.expire(before_ms))


async def expire_all(request: web.Request) -> web.Response:
    """Do the same for all durable subscriptions."""
    before_ms = _published_before(request)

    async def one(name: TopicName) -> None:
        for subscription in (await _topic(request, name)).durable_subscriptions:
            await subscription.expire(before_ms)

    await at_owners(request, one)
    return done()


async def reset_to_time(request: web.Request) -> web.Response:
    """Move a subscription to the first message published at that time (ms) or later."""
    time_ms = whole_number("time_ms", request.match_info["time_ms"])
    return await _each(request, lambda subscription: subscription.seek_time(time_ms))


@described(body=POSITION)
async def reset_to_position(request: web.Request) -> web.Response:
    """Move a subscription to a position."""
    position = position_of(await body_of(request))
    refusal = TopicNotFoundError("Reset-cursor at position is not allowed for partitioned-topic")
    await _require_plain(request, refusal)
    return await _each(request, lambda subscription: subscription.seek_position(position))
