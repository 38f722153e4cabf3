"""Answers requests that precede producing or consuming: partitions, lookup, topics of a namespace."""

from quire_broker.errors import ServerError
from quire_broker.names import TopicName, parse_namespace, parse_topic
from quire_broker.security.authorization import Rights
from quire_broker.server.parts import BrokerParts
from quire_broker.server.topic_lists import topics_hash
from quire_broker.wire import commands
from quire_broker.wire.kinds import LookupType, TopicsMode
from quire_broker.wire.proto import pulsar_pb2 as pb


async def partitions(parts: BrokerParts, rights: Rights, request: pb.CommandPartitionedTopicMetadata) -> bytes:
    """Return the number of partitions of a topic."""
    name = parse_topic(request.topic)
    await rights.require_look_up(name)
    count = await parts.topics.partitions_for_client(name, auto_create=request.metadata_auto_creation_enabled)
    return commands.partitions(request.request_id, count)


async def lookup(parts: BrokerParts, rights: Rights, request: pb.CommandLookupTopic, listener: str) -> bytes:
    """Return the broker that serves a topic. `listener`: that of the port, for a client that names none."""
    parts.stats.lookups += 1
    name = parse_topic(request.topic)
    await rights.require_look_up(name)
    owner = await parts.lookups.find(name)
    if owner is None:
        return commands.lookup_failed(request.request_id, ServerError.SERVICE_NOT_READY, "no broker owns the topic")
    kind = LookupType.CONNECT if owner.ours else LookupType.REDIRECT
    urls = owner.urls.of_listener(request.advertised_listener_name or listener)
    return commands.lookup(request.request_id, kind, urls.native, url_tls=urls.native_tls, authoritative=True)


async def topics_of_namespace(parts: BrokerParts, rights: Rights, request: pb.CommandGetTopicsOfNamespace) -> bytes:
    """Return the topics of a namespace. Clients apply patterns themselves: `filtered` is false.

    So patterns work that RE2 does not accept, such as look-ahead (`topic_lists` evaluates the others).
    """
    found: list[TopicName] = []
    namespace = parse_namespace(request.namespace)
    await rights.require_list(namespace)
    if request.mode in (TopicsMode.PERSISTENT, TopicsMode.ALL):
        found += await parts.topics.list(namespace)
    if request.mode in (TopicsMode.NON_PERSISTENT, TopicsMode.ALL):
        found += await parts.topics.list_non_persistent(namespace)
    names = [str(name) for name in found if not name.is_system]
    current = topics_hash(names)
    changed = not request.topics_hash or request.topics_hash != current
    return commands.topics_of_namespace(
        request.request_id, names if changed else [], current, filtered=False, changed=changed
    )
