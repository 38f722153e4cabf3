"""GET /admin/quire/namespaces/{tenant}/{namespace}: a namespace in one response, for the operator. Loads no topic.

    {"policies": {...}, "broker": "host:port", "bookies": {"writable": n}, "partitioned": {"local": n},
     "topics": {"local": {"loaded", "owner", "position", "entries", "size", "producers",
                          "cursors": {name: backlog or null}}}}

A topic that is not loaded here has the counts of its closed ledgers, no position, and null as producers and backlogs.
`?loaded=true` answers only `topics`, those that are loaded here, without their owner: every other broker has the rest.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Any

from aiohttp import web

from quire_bookie.dataclass import dataclass
from quire_broker.admin.answers import answer_in_pieces, flag, object_pieces
from quire_broker.admin.context import broker_of, namespace_of, policies_of
from quire_broker.admin.descriptions import BOOLEAN, OBJECT, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import ServiceNotReadyError
from quire_broker.managed_ledger.stored_view import StoredView, stored_view
from quire_broker.names import PERSISTENT, TopicName
from quire_broker.ownership.owners import Bundle
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.topic import Topic
from quire_broker.topic_steps import in_steps

READS_AT_ONCE = 16


@dataclass(slots=True)
class _Place:
    """A topic, its bundle, and its state at this broker."""

    name: TopicName
    bundle: Bundle
    loaded: Topic | None
    stored: StoredView | None = None

    def describe(self) -> dict[str, Any]:
        return _stored(self.stored) if self.loaded is None else _loaded(self.loaded)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    yield Route("GET", "/admin/quire/namespaces/{tenant}/{namespace}", overview, Need.NAMESPACE)


@described(Query("loaded", BOOLEAN, "only topics that this broker has loaded"), returns=OBJECT)
async def overview(request: web.Request) -> web.StreamResponse:
    """Return the overview; 404 if there is no such namespace."""
    broker, namespace = broker_of(request), namespace_of(request)
    policies = await policies_of(request)
    if flag(request, "loaded"):
        here = [one for one in broker.topics.loaded if one.name.namespace == namespace and one.name.persistent]
        shown = [one for one in here if not one.closing and not one.name.is_system]
        return await answer_in_pieces(request, _pieces({}, ((one.name.local, _loaded(one)) for one in shown)))
    partitioned = {}
    async for name in broker.policies.partitioned_topics(namespace, PERSISTENT):
        partitioned[name.local] = await broker.policies.partitions(name)
    places: list[_Place] = []
    async for name in in_steps(await broker.topics.list(namespace)):
        if not name.is_system:
            places.append(_Place(name, await broker.owners.bundle_of(name), broker.topics.find(name)))
    owners = {bundle: await _owner(broker, bundle) for bundle in {place.bundle for place in places}}
    left = iter([place for place in places if place.loaded is None])

    async def read() -> None:
        for place in left:
            place.stored = await stored_view(broker.metadata, place.name.ledger_name)

    await asyncio.gather(*(read() for _ in range(READS_AT_ONCE)))
    topics = ((place.name.local, place.describe() | {"owner": owners[place.bundle]}) for place in places)
    head = {
        "policies": policies,
        "broker": broker.broker_id,
        "bookies": {"writable": len(broker.ledger_client.writable_bookies)},
        "partitioned": partitioned,
    }
    return await answer_in_pieces(request, _pieces(head, topics))


def _pieces(head: dict[str, Any], topics: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield the JSON text of `head` with the topics."""
    text = json.dumps(head)[:-1]
    yield f'{text}{", " if head else ""}"topics": '
    yield from object_pieces(topics)
    yield "}"


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
        "position": str(last),
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
