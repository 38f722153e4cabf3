"""Properties of topics and subscriptions, and the replicated flag of subscriptions, at Pulsar's paths.

GET, PUT, DELETE?key=  .../{topic}/properties
GET, PUT               .../subscription/{s}/properties
GET, POST              .../subscription/{s}/replicatedSubscriptionStatus

Properties of a plain topic are those of its managed ledger, of a partitioned one those of its record: its partitions
have none of their own. Names that begin with `quire.` or `pulsar.` belong to brokers: they are neither shown nor set.
`index`, in which brokers keep the index of messages of a plain topic, is shown, as by Pulsar, and not set.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from aiohttp import web

from quire_broker.admin.answers import answer, body_of, done, object_of
from quire_broker.admin.context import broker_of, owned_topic, subscription_of, topic_here, topic_name_of
from quire_broker.admin.descriptions import BOOLEAN, TEXT, TEXTS, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.spreading import MISSING, at_owners
from quire_broker.errors import NotAllowedError, SubscriptionNotFoundError
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.names import TopicName
from quire_broker.topic.client_names import check_size
from quire_broker.topic.entry_metadata import INDEX_PROPERTY
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic

_OF_BROKERS: Final = ("quire.", "pulsar.")


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
    one = topic + "/subscription/{subscription}"
    yield Route("GET", topic + "/properties", of_topic, Need.NAMESPACE)
    yield Route("PUT", topic + "/properties", set_of_topic, Need.NAMESPACE)
    yield Route("DELETE", topic + "/properties", remove_of_topic, Need.NAMESPACE)
    yield Route("GET", one + "/properties", of_subscription, Need.CONSUME)
    yield Route("PUT", one + "/properties", set_of_subscription, Need.CONSUME)
    yield Route("GET", one + "/replicatedSubscriptionStatus", replicated, Need.CONSUME)
    yield Route("POST", one + "/replicatedSubscriptionStatus", set_replicated, Need.CONSUME)


def properties_of(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a request. NotAllowedError for other values."""
    for name, text in value.items():
        if name.startswith(_OF_BROKERS):
            raise NotAllowedError(f"property {name[:100]!r}: names that begin with {_OF_BROKERS} belong to brokers")
        if not isinstance(text, str):
            raise NotAllowedError(f"property {name[:100]!r} is {str(text)[:100]}; it must be a text")
    check_size("topic or subscription", sum(len(name) + len(text) for name, text in value.items()))
    return dict(value)


def check_free(properties: Mapping[str, Any]) -> None:
    """Raise NotAllowedError for properties that are not set like others: the index of messages, the source."""
    if SOURCE_PROPERTY in properties:
        raise NotAllowedError(f"property {SOURCE_PROPERTY!r} is given when a topic is created, and stays")
    if INDEX_PROPERTY in properties:
        raise NotAllowedError(
            f"property {INDEX_PROPERTY!r}: brokers keep the index of messages in it; use another name"
        )


def shown_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that are not the brokers' own."""
    return {name: value for name, value in properties.items() if not name.startswith(_OF_BROKERS)}


@described(returns=TEXTS)
async def of_topic(request: web.Request) -> web.Response:
    """Return the properties of a topic."""
    name, policies = topic_name_of(request), broker_of(request).policies
    if await policies.partitions(name, fresh=True):
        return answer(shown_properties(await policies.partitioned_properties(name)))
    return answer(shown_properties((await owned_topic(request)).ledger.properties))


async def _change(request: web.Request, changes: Mapping[str, str | None]) -> web.Response:
    name, policies = topic_name_of(request), broker_of(request).policies
    if await policies.partitions(name, fresh=True):
        check_free({key: value for key, value in changes.items() if key != INDEX_PROPERTY})

        def change(properties: dict[str, str]) -> None:
            for key, value in changes.items():
                if value is None:
                    properties.pop(key, None)
                else:
                    properties[key] = value

        await policies.update_partitioned_properties(name, change)
        return done()
    check_free(changes)
    ledger = (await owned_topic(request)).ledger
    kept = {key: value for key, value in {**ledger.properties, **changes}.items() if value is not None}
    check_size("topic", sum(len(key) + len(value) for key, value in kept.items()))
    for key, value in changes.items():
        await ledger.set_property(key, value)
    return done()


@described(body=TEXTS)
async def set_of_topic(request: web.Request) -> web.Response:
    """Add properties, or change them."""
    return await _change(request, properties_of(await object_of(request)))


@described(Query("key", TEXT, "name of the property"))
async def remove_of_topic(request: web.Request) -> web.Response:
    """Remove the property `key`."""
    key = request.query.get("key", "")
    if not key or key.startswith(_OF_BROKERS):
        raise NotAllowedError(f"key={key[:100]!r}: name a property that `GET .../properties` shows")
    return await _change(request, {key: None})


def _durable(request: web.Request, topic: Topic) -> Subscription:
    found = subscription_of(request, topic)
    if not found.durable:
        raise SubscriptionNotFoundError("Subscription not found")
    return found


@described(returns=TEXTS)
async def of_subscription(request: web.Request) -> web.Response:
    """Return the properties of a subscription: of all partitions those of the first one win."""

    async def one(name: TopicName) -> dict[str, str]:
        topic = await topic_here(broker_of(request), name)
        return dict(_durable(request, topic).cursor.cursor_properties)

    found = await at_owners(request, one, fine=(MISSING,))
    return answer({key: value for each in reversed(list(found.values())) for key, value in each.items()})


@described(body=TEXTS)
async def set_of_subscription(request: web.Request) -> web.Response:
    """Replace the properties of a subscription."""
    properties = properties_of(await object_of(request))

    async def one(name: TopicName) -> None:
        topic = await topic_here(broker_of(request), name)
        await _durable(request, topic).cursor.set_cursor_properties(properties)

    await at_owners(request, one, fine=(MISSING,))
    return done()


@described(returns={"type": "object", "additionalProperties": BOOLEAN})
async def replicated(request: web.Request) -> web.Response:
    """Return `{topic: flag}`, for each partition of a partitioned topic."""

    async def one(name: TopicName) -> bool:
        topic = await topic_here(broker_of(request), name)
        return _durable(request, topic).replicated

    found = await at_owners(request, one, fine=(MISSING,))
    return answer({str(name): value for name, value in found.items()})


@described(body=BOOLEAN)
async def set_replicated(request: web.Request) -> web.Response:
    """Set the flag, which this broker keeps for clusters that replicate the topic."""
    value = await body_of(request)
    if not isinstance(value, bool):
        raise NotAllowedError(f"the body is {str(value)[:100]!r}; it must be true or false")

    async def one(name: TopicName) -> None:
        topic = await topic_here(broker_of(request), name)
        await _durable(request, topic).set_replicated(value)

    await at_owners(request, one, fine=(MISSING,))
    return done()
