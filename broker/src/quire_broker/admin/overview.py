"""GET /admin/quire/namespaces/{tenant}/{namespace}: a namespace in one response, for the operator. Loads no topic.

    {"policies": {...}, "broker": "host:port", "bookies": {"writable": n}, "partitioned": {"local": n},
     "topics": {"local": {"loaded", "owner", "position", "entries", "size", "producers",
                          "cursors": {name: backlog or null}}}}

A topic that is not loaded here has the counts of its closed ledgers, no position, and null as producers and backlogs.
`?loaded=true` answers only `topics`, those that are loaded here, without their owner: every other broker has the rest.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_broker.admin.answers import answer, flag
from quire_broker.admin.context import broker_of, namespace_of, policies_of
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import ServiceNotReadyError
from quire_broker.managed_ledger.stored_view import StoredView, stored_view
from quire_broker.names import PERSISTENT, TopicName
from quire_broker.ownership.owners import Bundle
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.topic import Topic

READS_AT_ONCE = 16


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    yield Route("GET", "/admin/quire/namespaces/{tenant}/{namespace}", overview, Need.NAMESPACE)


async def overview(request: web.Request) -> web.Response:
    """Return the overview; 404 if there is no such namespace."""
    broker, namespace = broker_of(request), namespace_of(request)
    policies = await policies_of(request)
    if flag(request, "loaded"):
        here = [one for one in broker.topics.loaded if one.name.namespace == namespace and one.name.persistent]
        shown = [one for one in here if not one.closing and not one.name.is_system]
        return answer({"topics": {one.name.local: _loaded(one) for one in shown}})
    partitioned = {}
    async for name in broker.policies.partitioned_topics(namespace, PERSISTENT):
        partitioned[name.local] = await broker.policies.partitions(name)
    names = [name for name in await broker.topics.list(namespace) if not name.is_system]
    owners = await _owners(broker, names)
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def one(name: TopicName) -> dict[str, Any]:
        topic = broker.topics.find(name)
        if topic is not None:
            return _loaded(topic)
        async with gate:
            return _stored(await stored_view(broker.metadata, name.ledger_name))

    found = await asyncio.gather(*(one(name) for name in names))
    topics = {name.local: {**each, "owner": owners[name]} for name, each in zip(names, found, strict=True)}
    return answer(
        {
            "policies": policies,
            "broker": broker.broker_id,
            "bookies": {"writable": len(broker.ledger_client.writable_bookies)},
            "partitioned": partitioned,
            "topics": topics,
        }
    )


async def _owners(broker: RunningBroker, names: list[TopicName]) -> dict[TopicName, str | None]:
    """Return host:port of the broker that owns each topic's bundle; None for a free bundle. Takes none."""
    bundles = {name: await broker.owners.bundle_of(name) for name in names}
    by_bundle = {bundle: await _owner(broker, bundle) for bundle in set(bundles.values())}
    return {name: by_bundle[bundle] for name, bundle in bundles.items()}


async def _owner(broker: RunningBroker, bundle: Bundle) -> str | None:
    try:
        owner = await broker.owners.owner_of(bundle, take=False)
    except ServiceNotReadyError:
        return None  # its owner is changing
    return None if owner is None else owner.urls.broker_id


def _loaded(topic: Topic) -> dict[str, Any]:
    last = topic.ledger.last_confirmed
    return {
        "loaded": True,
        "position": f"{last.ledger_id}:{last.entry_id}",
        "entries": topic.ledger.entries,
        "size": topic.ledger.size_bytes,
        "producers": len(topic.producers.connected),
        "cursors": {found.name: found.cursor.backlog for found in topic.durable_subscriptions},
    }


def _stored(view: StoredView | None) -> dict[str, Any]:
    """Describe a stored topic. None: an unused partition."""
    view = view or StoredView()
    return {
        "loaded": False,
        "position": None,
        "entries": view.entries,
        "size": view.size_bytes,
        "producers": None,
        "cursors": dict.fromkeys(view.cursors),
    }
