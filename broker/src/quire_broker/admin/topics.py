"""/admin/v2/persistent: plain and partitioned topics."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.answers import answer, answer_list, body_of, done, flag, object_of
from quire_broker.admin.context import (
    broker_of,
    namespace_of,
    owned_topic,
    policies_of,
    require_owner,
    topic_here,
    topic_name_of,
)
from quire_broker.admin.descriptions import (
    BOOLEAN,
    INTEGER,
    MESSAGE_ID,
    NAMES,
    OBJECT,
    TEXTS,
    Query,
    Schema,
    described,
    fields,
)
from quire_broker.admin.non_persistent import (
    BUNDLES,
    names_of,
    unstored_here,
    unstored_internal_stats,
    unstored_stats,
)
from quire_broker.admin.properties import check_free, properties_of, shown_properties
from quire_broker.admin.routes import BUNDLE, Need, Reach, Route
from quire_broker.admin.shadow_sources import checked_source
from quire_broker.admin.spreading import CONFLICT, MISSING, at_owners, on_topics
from quire_broker.admin.stats import internal_stats, merged_stats, topic_stats
from quire_broker.errors import ConflictError, NotAllowedError, NotFoundError, TopicNotFoundError
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.names import PERSISTENT, TopicName
from quire_broker.server.broker import RunningBroker
from quire_broker.server.handover import moved_to
from quire_broker.topic.topic import Topic

FORCE = Query("force", BOOLEAN, "also while it is used")
METADATA = Query("metadata", BOOLEAN, "also the metadata of the ledgers")
_PARTITIONS: Schema = {"oneOf": [INTEGER, fields(("partitions",), partitions=INTEGER, properties=TEXTS)]}


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
    topic = root + "/{topic}"
    yield Route("GET", root, list_topics, Need.LIST)
    yield Route("GET", BUNDLES + f"/{{tenant}}/{{namespace}}/{BUNDLE}", list_bundle, Need.LIST)
    yield Route("GET", root + "/partitioned", list_partitioned, Need.LIST)
    yield Route("PUT", topic, create, Need.NAMESPACE)
    yield Route("DELETE", topic, delete, Need.NAMESPACE)
    yield Route("GET", topic + "/partitions", get_partitions, Need.LOOK_UP, Reach.CLIENTS)
    yield Route("PUT", topic + "/partitions", create_partitioned, Need.NAMESPACE)
    yield Route("POST", topic + "/partitions", grow_partitioned, Need.NAMESPACE)
    yield Route("DELETE", topic + "/partitions", delete_partitioned, Need.NAMESPACE)
    yield Route("POST", topic + "/createMissedPartitions", create_missed, Need.NAMESPACE)
    yield Route("GET", topic + "/stats", stats, Need.LOOK_UP)
    yield Route("GET", topic + "/partitioned-stats", stats_of_partitions, Need.LOOK_UP)
    yield Route("GET", topic + "/internalStats", internals, Need.LOOK_UP)
    yield Route("GET", topic + "/partitioned-internalStats", internals_of_partitions, Need.LOOK_UP)
    yield Route("GET", topic + "/lastMessageId", last_message_id, Need.CONSUME)
    yield Route("PUT", topic + "/unload", unload, Need.NAMESPACE)
    yield Route("POST", topic + "/terminate", terminate, Need.NAMESPACE)
    yield Route("POST", topic + "/terminate/partitions", terminate_partitions, Need.NAMESPACE)
    yield Route("DELETE", topic + "/truncate", truncate, Need.NAMESPACE)


def _persistent(name: TopicName) -> TopicName:
    if not name.persistent:
        raise NotAllowedError(f"this needs stored messages, and {name} is non-persistent")
    return name


@described(Query("includeSystemTopic", BOOLEAN, "also topics whose names begin with __"), returns=NAMES)
async def list_topics(request: web.Request) -> web.StreamResponse:
    """List the full names of the topics, including partitions."""
    broker = broker_of(request)
    namespace = namespace_of(request)
    await policies_of(request)
    if request.match_info["domain"] != PERSISTENT:
        return answer(await names_of(request))
    found = await broker.topics.list(namespace)
    with_system = flag(request, "includeSystemTopic")
    return await answer_list(request, (str(name) for name in found if with_system or not name.is_system))


@described(returns=NAMES)
async def list_bundle(request: web.Request) -> web.Response:
    """List the full names of the non-persistent topics of one bundle."""
    return answer(await names_of(request))


@described(returns=NAMES)
async def list_partitioned(request: web.Request) -> web.Response:
    """List the full names of the partitioned topics."""
    broker = broker_of(request)
    names = broker.policies.partitioned_topics(namespace_of(request), request.match_info["domain"])
    return answer(sorted([str(name) async for name in names]))


@described(body=TEXTS)
async def create(request: web.Request) -> web.Response:
    """Create a plain topic; 409 if it exists, plain or partitioned."""
    broker = broker_of(request)
    name = topic_name_of(request)
    properties = properties_of(await object_of(request))
    shadow_source = properties.pop(SOURCE_PROPERTY, None)
    check_free(properties)
    if (properties or shadow_source) and not name.persistent:
        raise NotAllowedError(f"{name} is non-persistent and cannot store properties: create it without them")
    if await broker.policies.policies(name.namespace) is None:
        raise NotFoundError("Namespace not found")
    await require_owner(request, name)
    existing = broker.topics.non_persistent.find(name) is not None or await broker.topics.exists(name)
    if existing or await broker.policies.partitions(name):
        raise ConflictError("This topic already exists")
    if not name.persistent:
        await unstored_here(broker, name, create=True)
        return done()
    if shadow_source is None:
        topic = await broker.topics.create(name)
    else:
        topic = await broker.topics.create_shadow(name, await checked_source(request, shadow_source, 0))
    for key, value in properties.items():
        await topic.ledger.set_property(key, value)
    return done()


@described(FORCE)
async def delete(request: web.Request) -> web.Response:
    """Delete a plain topic; 412 while it is in use, unless forced."""
    broker = broker_of(request)
    name = topic_name_of(request)
    await require_owner(request, name)
    if await broker.policies.partitions(name):
        raise ConflictError(f"{name} is a partitioned topic, instead of calling delete topic, call delete-partitioned")
    await _delete(broker, name, force=flag(request, "force"))
    return done()


async def _delete(broker: RunningBroker, name: TopicName, *, force: bool) -> None:
    try:
        if name.persistent:
            await broker.topics.delete(name, force=force)
        else:
            broker.topics.non_persistent.delete(name, force=force)
    except ConflictError as error:
        raise RefusedError(412, str(error)) from error


@described(Query("checkAllowAutoCreation", BOOLEAN, "create the topic if clients may"), returns=OBJECT)
async def get_partitions(request: web.Request) -> web.Response:
    """Return `{"partitions": n, "deleted": false}` and the properties, if there are any; 0 for a plain topic."""
    broker = broker_of(request)
    name = topic_name_of(request)
    count = await broker.topics.partitions_for_client(name, auto_create=flag(request, "checkAllowAutoCreation"))
    return answer(await _metadata(request, count) if count else {"partitions": 0, "deleted": False})


async def _count_of(request: web.Request) -> int:
    value = await body_of(request)
    if isinstance(value, dict):
        value = value.get("partitions")
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotAllowedError("the body must be the number of partitions")
    return value


@described(body=_PARTITIONS)
async def create_partitioned(request: web.Request) -> web.Response:
    """Create a partitioned topic. Its partitions are created when they are first used."""
    body = await body_of(request)
    properties = properties_of(body.get("properties") or {}) if isinstance(body, dict) else {}
    name, count = topic_name_of(request), await _count_of(request)
    if SOURCE_PROPERTY in properties:
        source = await checked_source(request, properties[SOURCE_PROPERTY], count)
        properties[SOURCE_PROPERTY] = str(source)
    await broker_of(request).topics.create_partitioned(name, count, properties)
    return done()


@described(body=_PARTITIONS)
async def grow_partitioned(request: web.Request) -> web.Response:
    """Add partitions. Each has the subscriptions of the first one from its first message on."""
    broker = broker_of(request)
    name = topic_name_of(request)
    await broker.topics.grow_partitioned(name, await _count_of(request))
    return done()


@described(FORCE)
async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a partitioned topic and its partitions."""
    await delete_partitions(request, topic_name_of(request))
    return done()


async def delete_partitions(request: web.Request, name: TopicName, *, force: bool | None = None) -> None:
    """Delete every partition at its owner, then the record of the partitioned topic. RefusedError names partitions.

    The query of the request says whether by force, unless `force` does.
    """
    broker = broker_of(request)
    count = await broker.policies.partitions(name, fresh=True)
    if not count:
        raise NotFoundError(f"Partitioned Topic not found: {name}")
    await delete_topics(request, name.partitions(count), force=force)
    await broker.policies.delete_partitions(name)


async def delete_topics(request: web.Request, names: list[TopicName], *, force: bool | None = None) -> None:
    """Delete topics, each at its owner; those that do not exist are skipped."""
    by_force = flag(request, "force") if force is None else force

    async def one(name: TopicName) -> None:
        await _delete(broker_of(request), name, force=by_force)

    query = {"force": "true"} if by_force else {}
    await on_topics(request, names, one, method="DELETE", suffix="", query=query, fine=(MISSING,))


async def create_missed(request: web.Request) -> web.Response:
    """Create the partitions that have not been used yet, each at its owner."""
    await _create_partitions(request, _persistent(topic_name_of(request)))
    return done()


async def _create_partitions(request: web.Request, name: TopicName) -> None:
    broker = broker_of(request)

    async def one(partition: TopicName) -> None:
        if not await broker.topics.exists(partition):
            await broker.topics.create(partition)

    count = await broker.policies.partitions(name, fresh=True)
    await on_topics(request, name.partitions(count), one, method="PUT", suffix="", query={}, fine=(CONFLICT,))


@described(returns=OBJECT)
async def stats(request: web.Request) -> web.Response:
    """Return TopicStats."""
    name = topic_name_of(request)
    await require_owner(request, name)
    return answer(await _stats_here(broker_of(request), name))


async def _stats_here(broker: RunningBroker, name: TopicName) -> Any:
    if name.persistent:
        return topic_stats(await topic_here(broker, name), broker)
    return unstored_stats(await unstored_here(broker, name), broker)


@described(Query("perPartition", BOOLEAN, "false: only the sums"), returns=OBJECT)
async def stats_of_partitions(request: web.Request) -> web.Response:
    """Aggregate the stats of all partitions, each from its owner. `perPartition=false` omits the single ones."""
    broker = broker_of(request)

    async def one(name: TopicName) -> Any:
        return await _stats_here(broker, name)

    count, found = await _of_partitions(request, one, "/stats")
    each = {str(name): value for name, value in found.items()}
    by_partition = request.query.get("perPartition", "true") != "false"
    return answer(merged_stats(each, await _metadata(request, count), per_partition=by_partition))


@described(METADATA, returns=OBJECT)
async def internals_of_partitions(request: web.Request) -> web.Response:
    """Return the internal stats of every partition, each from its owner. Creates those that were not used yet."""

    async def one(name: TopicName) -> Any:
        return await _internals(request, await topic_here(broker_of(request), name))

    count, found = await _of_partitions(request, one, "/internalStats")
    if len(found) < count:
        await _create_partitions(request, topic_name_of(request))
        count, found = await _of_partitions(request, one, "/internalStats")
    each = {str(name): value for name, value in found.items()}
    return answer({"metadata": await _metadata(request, count), "partitions": each})


async def _metadata(request: web.Request, count: int) -> dict[str, Any]:
    """Return the record of a partitioned topic, with its properties if there are any."""
    properties = shown_properties(await broker_of(request).policies.partitioned_properties(topic_name_of(request)))
    return {"partitions": count, "deleted": False} | ({"properties": properties} if properties else {})


async def _of_partitions(
    request: web.Request, work: Callable[[TopicName], Awaitable[Any]], suffix: str
) -> tuple[int, dict[TopicName, Any]]:
    """Return the number of partitions, and the result of each that has been used."""
    name = topic_name_of(request)
    count = await broker_of(request).policies.partitions(name, fresh=True)
    if not count:
        raise TopicNotFoundError(f"Partitioned Topic {name} not found")
    found, _ = await on_topics(request, name.partitions(count), work, suffix=suffix, fine=(MISSING,))
    return count, found


@described(METADATA, returns=OBJECT)
async def internals(request: web.Request) -> web.Response:
    """Return PersistentTopicInternalStats; of a non-persistent topic only its counters and subscriptions."""
    name = topic_name_of(request)
    if not name.persistent:
        await require_owner(request, name)
        return answer(unstored_internal_stats(await unstored_here(broker_of(request), name)))
    return answer(await _internals(request, await owned_topic(request)))


async def _internals(request: web.Request, topic: Topic) -> Any:
    return await internal_stats(topic, broker_of(request).ledger_client, metadata=flag(request, "metadata"))


@described(returns=MESSAGE_ID)
async def last_message_id(request: web.Request) -> web.Response:
    """Return the id of the last message."""
    topic = await owned_topic(request)
    position, batch_index = await topic.last_message()
    value = {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": topic.name.partition,
    }
    if batch_index >= 0:
        value["batchIndex"] = batch_index
    return answer(value)


async def unload(request: web.Request) -> web.Response:
    """Close the topic at its owner; clients look it up again. For a partitioned topic: all its partitions."""
    broker = broker_of(request)
    topics, here = broker.topics, moved_to(broker.urls)

    async def one(name: TopicName) -> None:
        unstored = topics.non_persistent.find(name)
        if unstored is not None:
            topics.non_persistent.let_go(unstored, here)
            return
        if not await topics.exists(name):
            raise TopicNotFoundError(f"Topic {name} not found")
        await topics.reload(name, here)

    await at_owners(request, one, fine=(MISSING,))
    return done()


@described(returns=MESSAGE_ID)
async def terminate(request: web.Request) -> web.Response:
    """Refuse further messages and return the last message id."""
    return answer(await _terminate(await owned_topic(request)))


@described(returns=OBJECT)
async def terminate_partitions(request: web.Request) -> web.Response:
    """Do the same for every partition: `{"<partition>": <last message id>}`. One that was not used yet is created."""
    await _create_partitions(request, _persistent(topic_name_of(request)))

    async def one(name: TopicName) -> Any:
        return await _terminate(await topic_here(broker_of(request), name))

    _, found = await _of_partitions(request, one, "/terminate")
    return answer({str(name.partition): value for name, value in found.items()})


async def _terminate(topic: Topic) -> Any:
    position = await topic.terminate()
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": topic.name.partition}


async def truncate(request: web.Request) -> web.Response:
    """Skip the backlog of every subscription and delete the consumed ledgers."""

    async def one(name: TopicName) -> None:
        topic = await topic_here(broker_of(request), name)
        for subscription in list(topic.subscriptions.values()):
            await subscription.skip_all()
        await topic.ledger.roll()
        await topic.ledger.trim()

    await at_owners(request, one, fine=(MISSING,))
    return done()
