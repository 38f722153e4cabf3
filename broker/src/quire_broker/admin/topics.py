"""/admin/v2/persistent: plain and partitioned topics."""

from collections.abc import Iterator

from aiohttp import web

from quire_broker.admin.answers import answer, body_of, done, failure, flag
from quire_broker.admin.context import broker_of, namespace_of, owned_topic, require_owner, topic_name_of
from quire_broker.admin.routes import Need, Reach, Route
from quire_broker.admin.stats import internal_stats, partitioned_stats, topic_stats
from quire_broker.errors import ConflictError, NotAllowedError, NotFoundError, TopicNotFoundError
from quire_broker.names import PERSISTENT, TopicName


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
    topic = root + "/{topic}"
    yield Route("GET", root, list_topics, Need.LIST)
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
    yield Route("GET", topic + "/lastMessageId", last_message_id, Need.CONSUME)
    yield Route("PUT", topic + "/unload", unload, Need.NAMESPACE)
    yield Route("POST", topic + "/terminate", terminate, Need.NAMESPACE)
    yield Route("DELETE", topic + "/truncate", truncate, Need.NAMESPACE)


def _persistent(name: TopicName) -> TopicName:
    if not name.persistent:
        raise NotAllowedError("non-persistent topics are not supported yet")
    return name


async def list_topics(request: web.Request) -> web.Response:
    """List the full names of the topics, including partitions."""
    broker = broker_of(request)
    namespace = namespace_of(request)
    if await broker.policies.policies(namespace) is None:
        raise NotFoundError("Namespace does not exist")
    if request.match_info["domain"] != PERSISTENT:
        return answer([])
    found = await broker.topics.list(namespace)
    return answer([str(name) for name in found if not name.is_system or flag(request, "includeSystemTopic")])


async def list_partitioned(request: web.Request) -> web.Response:
    """List the full names of the partitioned topics."""
    broker = broker_of(request)
    names = broker.policies.partitioned_topics(namespace_of(request), request.match_info["domain"])
    return answer(sorted([str(name) async for name in names]))


async def create(request: web.Request) -> web.Response:
    """Create a plain topic; 409 if it exists, plain or partitioned."""
    broker = broker_of(request)
    name = _persistent(topic_name_of(request))
    if await broker.policies.policies(name.namespace) is None:
        raise NotFoundError("Namespace not found")
    await require_owner(request, name)
    if await broker.topics.exists(name) or await broker.policies.partitions(name):
        raise ConflictError("This topic already exists")
    await broker.topics.create(name)
    return done()


async def delete(request: web.Request) -> web.Response:
    """Delete a plain topic; 412 while it is in use, unless forced."""
    broker = broker_of(request)
    name = _persistent(topic_name_of(request))
    await require_owner(request, name)
    if await broker.policies.partitions(name):
        raise ConflictError(f"{name} is a partitioned topic, instead of calling delete topic, call delete-partitioned")
    return await _delete(request, name)


async def _delete(request: web.Request, name: TopicName) -> web.Response:
    try:
        await broker_of(request).topics.delete(name, force=flag(request, "force"))
    except ConflictError as error:
        return failure(412, str(error))
    return done()


async def get_partitions(request: web.Request) -> web.Response:
    """Return `{"partitions": n, "deleted": false}`; 0 for a plain topic."""
    broker = broker_of(request)
    name = topic_name_of(request)
    count = await broker.topics.partitions_for_client(name, auto_create=flag(request, "checkAllowAutoCreation"))
    return answer({"partitions": count, "deleted": False})


async def _count_of(request: web.Request) -> int:
    value = await body_of(request)
    if isinstance(value, dict):
        value = value.get("partitions")
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotAllowedError("the body must be the number of partitions")
    return value


async def create_partitioned(request: web.Request) -> web.Response:
    """Create a partitioned topic. Its partitions are created when they are first used."""
    await broker_of(request).topics.create_partitioned(_persistent(topic_name_of(request)), await _count_of(request))
    return done()


async def grow_partitioned(request: web.Request) -> web.Response:
    """Add partitions. Each has the subscriptions of the first one from its first message on."""
    broker = broker_of(request)
    name = _persistent(topic_name_of(request))
    await broker.topics.grow_partitioned(name, await _count_of(request))
    return done()


async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a partitioned topic and its partitions."""
    try:
        await broker_of(request).topics.delete_partitioned(
            _persistent(topic_name_of(request)), force=flag(request, "force")
        )
    except ConflictError as error:
        return failure(412, str(error))
    return done()


async def create_missed(request: web.Request) -> web.Response:
    """Create the partitions that have not been used yet, if this broker owns them."""
    broker = broker_of(request)
    name = _persistent(topic_name_of(request))
    for index in range(await broker.policies.partitions(name)):
        partition = name.partition_of(index)
        owner = await broker.parts.lookups.find(partition)
        if owner is not None and owner.ours and not await broker.topics.exists(partition):
            await broker.topics.create(partition)
    return done()


async def stats(request: web.Request) -> web.Response:
    """Return TopicStats."""
    return answer(topic_stats(await owned_topic(request), broker_of(request)))


async def stats_of_partitions(request: web.Request) -> web.Response:
    """Aggregate the stats of this broker's partitions; each is included with `perPartition`."""
    broker = broker_of(request)
    name = _persistent(topic_name_of(request))
    count = await broker.policies.partitions(name)
    if not count:
        raise TopicNotFoundError(f"Partitioned Topic {name} not found")
    loaded = [broker.topics.find(name.partition_of(index)) for index in range(count)]
    found = [topic for topic in loaded if topic is not None]
    return answer(partitioned_stats(found, count, broker))


async def internals(request: web.Request) -> web.Response:
    """Return PersistentTopicInternalStats."""
    topic = await owned_topic(request)
    return answer(await internal_stats(topic, broker_of(request).ledger_client, metadata=flag(request, "metadata")))


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
    """Close the topic here; clients look it up again. For a partitioned topic: all its partitions here."""
    broker = broker_of(request)
    name = _persistent(topic_name_of(request))
    count = await broker.policies.partitions(name)
    if count:
        for index in range(count):
            await broker.topics.unload(name.partition_of(index))
        return done()
    await require_owner(request, name)
    if not await broker.topics.exists(name):
        raise TopicNotFoundError(f"Topic {name} not found")
    await broker.topics.unload(name)
    return done()


async def terminate(request: web.Request) -> web.Response:
    """Refuse further messages and return the last message id."""
    topic = await owned_topic(request)
    position = await topic.terminate()
    return answer(
        {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": topic.name.partition}
    )


async def truncate(request: web.Request) -> web.Response:
    """Skip the backlog of every subscription and delete the consumed ledgers."""
    topic = await owned_topic(request)
    for subscription in list(topic.subscriptions.values()):
        await subscription.skip_all()
    await topic.ledger.roll()
    await topic.ledger.trim()
    return done()
