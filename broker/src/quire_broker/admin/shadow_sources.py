"""Checks the source of a new shadow topic."""

from collections.abc import Mapping

from aiohttp import web

from quire_broker.admin.access import require_consume
from quire_broker.admin.context import broker_of, topic_name_of
from quire_broker.errors import NotAllowedError, NotFoundError
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.managed_ledger.stored_view import stored_view
from quire_broker.names import TopicName, parse_topic
from quire_broker.server.broker import RunningBroker


async def properties_of_topic(broker: RunningBroker, name: TopicName) -> tuple[int, Mapping[str, str]] | None:
    """Return the number of partitions, 0 for a plain topic, and the properties; None: there is no such topic."""
    count = await broker.policies.partitions(name, fresh=True)
    if count:
        return count, await broker.policies.partitioned_properties(name)
    stored = await stored_view(broker.metadata, name.ledger_name)
    return None if stored is None else (0, stored.properties)


async def checked_source(request: web.Request, text: str, partitions: int) -> TopicName:
    """Return the source of the shadow topic of the path, to be created. NotAllowedError, NotFoundError: it cannot be.

    AuthorizationError for a role that may not consume the source: it could read the source through its shadow.
    """
    broker, name, source = broker_of(request), topic_name_of(request), parse_topic(text)
    await require_consume(request, source)
    if not (source.persistent and name.persistent):
        raise NotAllowedError(f"{source} cannot be the source of {name}: shadow topics and sources are persistent")
    if source.partition >= 0 or name.partition >= 0:
        raise NotAllowedError(f"{source} as source of {name}: give the whole partitioned topics, not a partition")
    found = await properties_of_topic(broker, source)
    if found is None:
        raise NotFoundError(f"The source topic {source} does not exist: create it first")
    if SOURCE_PROPERTY in found[1]:
        raise NotAllowedError(f"{source} is a shadow topic itself: name its source {found[1][SOURCE_PROPERTY]}")
    if found[0] != partitions:
        raise NotAllowedError(
            f"{name} would have {partitions or 'no'} partitions, its source {found[0] or 'none'}: give it as many"
        )
    return source
