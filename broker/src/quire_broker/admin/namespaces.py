"""/admin/v2/namespaces: namespaces, their bundles, and their stored policies.

Each policy that is stored is enforced, also for loaded topics: brokers apply changes as soon as they notice them,
messageTTL within a minute. Policies that no broker would enforce are refused. Backlog quotas, offloading and
permissions have their own modules.
"""

from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Any
from urllib.parse import quote

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.access import is_super_user
from quire_broker.admin.answers import answer, answer_list, body_of, done, failure, flag, object_of
from quire_broker.admin.cluster_links import MOVED
from quire_broker.admin.context import broker_of, bundles_of, namespace_of, policies_of, topic_here
from quire_broker.admin.descriptions import (
    BOOLEAN,
    NAMES,
    OBJECT,
    TEXT,
    Description,
    Query,
    Schema,
    described,
    described_by,
)
from quire_broker.admin.non_persistent import names_of
from quire_broker.admin.routes import BUNDLE, Need, Reach, Route
from quire_broker.admin.spreading import MISSING, on_bundles, on_topics
from quire_broker.admin.topics import delete_partitions, delete_topics
from quire_broker.balancing.history import forget_averages
from quire_broker.dispatch.entry_filters import flaw_of_names
from quire_broker.errors import AuthorizationError, ConflictError, NotAllowedError, NotFoundError
from quire_broker.names import NON_PERSISTENT, TopicName, parse_topic
from quire_broker.ownership.owners import Bundle
from quire_broker.ownership.registration import BROKERS
from quire_broker.policies.bundles import hash_of
from quire_broker.policies.defaults import OLD_STRATEGY
from quire_broker.policies.fields import ENTRY_FILTERS, FIELDS, OFFLOAD, PAUSE_ON_ACKS, flaw_of
from quire_broker.policies.inactivity import SUBSCRIPTIONS, TOPICS, flaw_of_inactivity
from quire_broker.policies.rates import (
    BY_CLUSTER,
    DISPATCH,
    PUBLISH,
    SUBSCRIBE,
    SUBSCRIPTION_DISPATCH,
    flaw_of_rate,
    read_field,
    schema_of,
    write_field,
)
from quire_broker.policies.store import Json
from quire_broker.policies.unserved import UNSERVED
from quire_broker.schemas.compatibility import OLD_STRATEGIES
from quire_broker.security.authorization import AUTH_MODE, AUTH_MODES
from quire_broker.server.broker import RunningBroker
from quire_broker.server.handover import NO_BROKER
from quire_broker.topic.topic import Topic
from quire_broker.wire.kinds import TYPE_NAMES

STORED_POLICIES = {
    "persistence": "persistence",
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    "compactionThreshold": "compaction_threshold",
    "deduplication": "deduplicationEnabled",
    "autoTopicCreation": "autoTopicCreationOverride",
    "autoSubscriptionCreation": "autoSubscriptionCreationOverride",
    "delayedDelivery": "delayed_delivery_policies",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
    "subscriptionTypesEnabled": "subscription_types_enabled",
    "deduplicationSnapshotInterval": "deduplicationSnapshotIntervalSeconds",
    "maxUnackedMessagesPerConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesPerSubscription": "max_unacked_messages_per_subscription",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "schemaValidationEnforced": "schema_validation_enforced",
    "isAllowAutoUpdateSchema": "is_allow_auto_update_schema",
    "properties": "properties",
    "replication": "replication_clusters",
    "allowedClusters": "allowed_clusters",
    "encryptionRequired": "encryption_required",
    "subscriptionAuthMode": AUTH_MODE,
    "schemaAutoUpdateCompatibilityStrategy": OLD_STRATEGY,
    "inactiveTopicPolicies": TOPICS,
    "dispatcherPauseOnAckStatePersistent": PAUSE_ON_ACKS,
    "subscriptionExpirationTime": SUBSCRIPTIONS,
    "publishRate": PUBLISH,
    "dispatchRate": DISPATCH,
    "subscriptionDispatchRate": SUBSCRIPTION_DISPATCH,
    "subscribeRate": SUBSCRIBE,
    "entryFilters": ENTRY_FILTERS,
}
"""Maps the path of a policy to its key in the namespace's node."""


UNSET = {
    "is_allow_auto_update_schema": True,
    "max_topics_per_namespace": 0,
    "subscription_types_enabled": [],
    "allowed_clusters": [],
    "encryption_required": False,
    AUTH_MODE: "None",
    PAUSE_ON_ACKS: False,
}
"""What stock brokers return for a policy that is not set, if it is not nothing."""
_POLICIES: Schema = {"type": "object", "properties": {name: check.schema for name, check in FIELDS.items()}}
_TYPES = set(TYPE_NAMES.values())
_DESTINATION = "destinationBroker"


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/namespaces/{tenant}"
    yield Route("GET", root, list_namespaces, Need.TENANT)
    yield Route("GET", "/admin/namespaces/{tenant}/{cluster}", list_of_cluster, Need.TENANT)
    yield Route("POST", f"{root}/{{namespace}}/migration", set_migration, Need.NAMESPACE)
    yield Route("GET", f"{root}/{{namespace}}", get_policies, Need.NAMESPACE)
    yield Route("PUT", f"{root}/{{namespace}}", create, Need.TENANT)
    yield Route("DELETE", f"{root}/{{namespace}}", delete, Need.TENANT)
    yield Route("GET", f"{root}/{{namespace}}/topics", list_topics, Need.LIST, Reach.CLIENTS)
    yield Route("GET", f"{root}/{{namespace}}/bundles", bundles, Need.NAMESPACE)
    yield Route("GET", f"{root}/{{namespace}}/{BUNDLE}/topicHashPositions", hash_positions, Need.NAMESPACE)
    yield Route("PUT", f"{root}/{{namespace}}/unload", unload, Need.NAMESPACE)
    yield Route("PUT", f"{root}/{{namespace}}/{BUNDLE}/unload", unload, Need.NAMESPACE)
    for scope in (f"{root}/{{namespace}}", f"{root}/{{namespace}}/{BUNDLE}"):
        yield Route("POST", f"{scope}/clearBacklog", clear_backlog, Need.NAMESPACE)
        yield Route("POST", f"{scope}/clearBacklog/{{subscription}}", clear_backlog, Need.NAMESPACE)
        yield Route("POST", f"{scope}/unsubscribe/{{subscription}}", unsubscribe, Need.NAMESPACE)
    names = "|".join(STORED_POLICIES)
    policy = f"{root}/{{namespace}}/{{policy:{names}}}"
    yield Route("GET", policy, get_policy, Need.NAMESPACE)
    yield Route("POST", policy, set_policy, Need.NAMESPACE)
    yield Route("PUT", policy, set_policy, Need.NAMESPACE)
    yield Route("DELETE", policy, remove_policy, Need.NAMESPACE)
    refused = f"{root}/{{namespace}}/{{policy:{'|'.join(UNSERVED)}}}"
    yield Route("GET", refused, unserved_policy, Need.NAMESPACE)
    yield Route("DELETE", refused, unserved_policy, Need.NAMESPACE)
    yield Route("POST", refused, refuse_policy, Need.NAMESPACE)
    yield Route("PUT", refused, refuse_policy, Need.NAMESPACE)


@described(returns=NAMES)
async def list_namespaces(request: web.Request) -> web.Response:
    """Return `["tenant/namespace"]`."""
    policies = broker_of(request).policies
    tenant = request.match_info["tenant"]
    await policies.read_tenant(tenant)
    return answer([f"{tenant}/{name}" for name in await policies.namespaces(tenant)])


@described(returns=NAMES)
async def list_of_cluster(request: web.Request) -> web.Response:
    """Return the namespaces that belong to one cluster, in the old form `tenant/cluster/namespace`: there are none."""
    policies = broker_of(request).policies
    await policies.read_tenant(request.match_info["tenant"])
    await policies.read_cluster(request.match_info["cluster"])
    return answer([])


@described(Query("migrated", BOOLEAN, "only false is served"), body=BOOLEAN)
async def set_migration(request: web.Request) -> web.Response:
    """Accept that a namespace has not moved to another cluster; 501 for the opposite."""
    await policies_of(request)
    if await body_of(request) is True or flag(request, "migrated"):
        raise RefusedError(501, f"migration is not supported by this broker: {MOVED}")
    return done()


@described(returns=_POLICIES)
async def get_policies(request: web.Request) -> web.Response:
    """Return all policies."""
    policies, field = await policies_of(request), "is_allow_auto_update_schema"
    return answer(policies if policies.get(field) is not None else {**policies, field: UNSET[field]})


@described(body=_POLICIES)
async def create(request: web.Request) -> web.Response:
    """Create a namespace. Only super users may set its offload target."""
    policies = await object_of(request)
    for name, value in policies.items():
        wrong = flaw_of(name, value) or flaw_of_filters(name, value, broker_of(request))
        if wrong:
            return failure(412, wrong)
    if policies.get(OFFLOAD) is not None and not is_super_user(request):
        raise AuthorizationError(f"only a super user may create a namespace with {OFFLOAD}")
    await broker_of(request).policies.create_namespace(namespace_of(request), policies)
    return done()


@described(Query("force", BOOLEAN, "delete its topics first"))
async def delete(request: web.Request) -> web.Response:
    """Delete a namespace; with `force` its topics are deleted first."""
    broker = broker_of(request)
    namespace = namespace_of(request)
    await policies_of(request)
    topics = await broker.topics.list(namespace)
    unstored = [parse_topic(name) for name in await names_of(request)]
    recorded = [name async for name in broker.policies.partitioned_topics(namespace, NON_PERSISTENT)]
    if (topics or unstored or recorded) and not flag(request, "force"):
        raise ConflictError("Cannot delete non empty namespace")
    for name in recorded:
        await delete_partitions(request, name, force=True)
    await delete_topics(request, unstored, force=True)
    for partitioned in {name.partitioned for name in topics if name.partition >= 0}:
        if await broker.policies.partitions(partitioned, fresh=True):
            await delete_partitions(request, partitioned, force=True)
    await delete_topics(request, topics, force=True)
    await _unload(request, await bundles_of(request), NO_BROKER)
    await forget_averages(broker.metadata, namespace)
    await broker.policies.delete_namespace(namespace)
    return done()


@described(
    Query("mode", {"type": "string", "enum": ["PERSISTENT", "NON_PERSISTENT", "ALL"]}, "which topics"),
    Query("includeSystemTopic", BOOLEAN, "also topics whose names begin with __"),
    returns=NAMES,
)
async def list_topics(request: web.Request) -> web.StreamResponse:
    """Return full names, including partitions, in order."""
    await policies_of(request)
    mode = request.query.get("mode", "PERSISTENT").upper()
    unstored = sorted(await names_of(request)) if mode in ("NON_PERSISTENT", "ALL") else []
    stored = [] if mode == "NON_PERSISTENT" else await broker_of(request).topics.list(namespace_of(request))
    with_system = flag(request, "includeSystemTopic")
    names = (str(name) for name in stored if with_system or not name.is_system)
    return await answer_list(request, chain(unstored, names))  # "non-persistent" comes before "persistent"


@described(returns=FIELDS["bundles"].schema)
async def bundles(request: web.Request) -> web.Response:
    """Return the bundles in force."""
    found = await broker_of(request).policies.bundles(namespace_of(request))
    if found is None:
        raise NotFoundError("Namespace does not exist")
    return answer(found.to_json())


@described(Query("topics", TEXT, "full names, joined by commas"), returns=OBJECT)
async def hash_positions(request: web.Request) -> web.Response:
    """Return the hashes of topics in a bundle, of those in the query `topics` or of all that are stored."""
    (bundle,) = await bundles_of(request)
    owners, broker = broker_of(request).owners, broker_of(request)
    wanted = [text for text in ",".join(request.query.getall("topics", [])).split(",") if text]
    names = [parse_topic(text) for text in wanted] or await broker.topics.list(bundle.namespace)
    inside = [name for name in names if name.namespace == bundle.namespace and await owners.bundle_of(name) == bundle]
    positions = {str(name): hash_of(str(name)) for name in inside}
    return answer({"namespace": str(bundle.namespace), "bundle": bundle.range, "topicHashPositions": positions})


async def _unload(request: web.Request, bundles: list[Bundle], to: str | None = None) -> None:
    broker = broker_of(request)
    query = {} if to is None else {_DESTINATION: to}
    await on_bundles(
        request, bundles, lambda bundle: broker.unload_bundle(bundle, to), method="PUT", suffix="/unload", query=query
    )


@described(Query(_DESTINATION, TEXT, "broker that takes them, host:port; empty: they are released"))
async def unload(request: web.Request) -> web.Response:
    """Hand the namespace's bundles, or one, to other brokers: to `destinationBroker` (host:port), or any other.

    An empty `destinationBroker` releases them.
    """
    await policies_of(request)
    broker, to = broker_of(request), request.query.get(_DESTINATION)
    if to and to not in await broker.metadata.children(BROKERS):
        raise NotFoundError(f"destinationBroker {to} is not an available broker; GET /admin/v2/brokers lists them")
    if to and not await broker.isolation.permits(namespace_of(request), to):
        raise NotAllowedError(f"destinationBroker {to} is not allowed by the isolation policy of the namespace")
    await _unload(request, await bundles_of(request), to)
    return done()


async def clear_backlog(request: web.Request) -> web.Response:
    """Skip the backlog of one or all subscriptions of the namespace, or of one bundle."""
    await _on_subscriptions(request, "POST", "/skip_all", lambda topic, name: topic.subscriptions[name].skip_all())
    return done()


async def unsubscribe(request: web.Request) -> web.Response:
    """Delete a subscription from all topics of the namespace, or of one bundle."""
    await _on_subscriptions(request, "DELETE", "", lambda topic, name: topic.drop_subscription(name))
    return done()


async def _on_subscriptions(
    request: web.Request, method: str, suffix: str, do: Callable[[Topic, str], Awaitable[None]]
) -> None:
    """Do it to the subscription of the path, or to each one, on all topics at their owners."""
    broker, wanted = broker_of(request), request.match_info.get("subscription")
    bundles = set(await bundles_of(request))
    names = await broker.topics.list(namespace_of(request))
    names = [name for name in names if await broker.owners.bundle_of(name) in bundles]

    async def listed(name: TopicName) -> list[str]:
        return [found.name for found in (await topic_here(broker, name)).durable_subscriptions]

    found, _ = await on_topics(request, names, listed, method="GET", suffix="/subscriptions", query={}, fine=(MISSING,))
    for subscription in sorted({one for each in found.values() for one in each}):
        if wanted not in (None, subscription):
            continue

        async def one(name: TopicName, subscription: str = subscription) -> None:
            topic = await topic_here(broker, name)
            if subscription in topic.subscriptions:
                await do(topic, subscription)

        having = [name for name, each in found.items() if subscription in each]
        path = f"/subscription/{quote(subscription, safe='')}{suffix}"
        await on_topics(request, having, one, method=method, suffix=path, query={}, fine=(MISSING,))


def _of_set_policy(policy: str) -> Description:
    field = STORED_POLICIES[policy]
    return Description() if field == PAUSE_ON_ACKS else Description(body=schema_of(field))


@described_by(lambda policy: Description(returns=schema_of(STORED_POLICIES[policy])))
async def get_policy(request: web.Request) -> web.Response:
    """Return one policy; if it is not set, the value in force of a few, of others no content."""
    field, cluster = STORED_POLICIES[request.match_info["policy"]], broker_of(request).settings.cluster
    value = read_field(await policies_of(request), field, cluster)
    value = UNSET.get(field) if value is None else value
    return done() if value is None else answer(value)


@described(refuses=True)
async def refuse_policy(request: web.Request) -> web.Response:
    """Answer 501: the policy would be stored but not enforced."""
    await policies_of(request)
    policy = request.match_info["policy"]
    return failure(501, f"{policy} is not supported by this broker: {UNSERVED[policy]}")


async def unserved_policy(request: web.Request) -> web.Response:
    """Return no content: a policy that is not served is never set."""
    await policies_of(request)
    return done()


def flaw_of_policy(field: str, value: Any, cluster: str) -> str | None:
    """Return why a value may not be stored in a field of a namespace's or a topic's policies, or None. Pure."""
    if field == "message_ttl_in_seconds" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        return "messageTTL must be a number of seconds; 0 for none"
    if field == "deduplicationEnabled" and not isinstance(value, bool):
        return "deduplication must be true or false"
    if field == "replication_clusters" and value != [cluster]:
        return f"replication_clusters is {str(value)[:100]}; only [{cluster}] is served: topics are not replicated"
    if field == "allowed_clusters" and (not isinstance(value, list) or not {*map(str, value)} <= {cluster}):
        return f"allowed_clusters is {str(value)[:100]}; only [{cluster}] is served: topics are not replicated"
    if field == AUTH_MODE and value not in AUTH_MODES:
        return f"{AUTH_MODE} is {str(value)[:100]}; use one of {', '.join(AUTH_MODES)}"
    if field == OLD_STRATEGY and value not in OLD_STRATEGIES:
        return f"{OLD_STRATEGY} is {str(value)[:100]}; use one of {', '.join(OLD_STRATEGIES)}"
    if field == "subscription_types_enabled" and not (isinstance(value, list) and set(map(str, value)) <= _TYPES):
        return f"subscription_types_enabled is {str(value)[:100]}; use a list of {', '.join(sorted(_TYPES))}"
    if field == "delayed_delivery_policies" and isinstance(value, dict) and value.get("maxDeliveryDelayInMillis"):
        return "maxDeliveryDelayInMillis is not supported by this broker: delays are not limited; use 0"
    if field == "persistence":
        names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
        sizes = [size for size in map(value.get, names) if isinstance(size, int)] if isinstance(value, dict) else []
        if len(sizes) != 3:
            return f"persistence needs {', '.join(names)}"
        if not sizes[0] >= sizes[1] >= sizes[2] > 0:
            return f"Bookkeeper Ensemble ({sizes[0]}) >= WriteQuorum ({sizes[1]}) >= AckQuorum ({sizes[2]}) must hold"
    if field == "retention_policies":
        limits = ("retentionTimeInMinutes", "retentionSizeInMB")
        if not isinstance(value, dict) or not all(isinstance(value.get(name), int) for name in limits):
            return f"retention needs {' and '.join(limits)}"
    if field == TOPICS and (flaw := flaw_of_inactivity(value)):
        return flaw
    return flaw_of_rate(field, value) if field in BY_CLUSTER else flaw_of(field, value)


def flaw_of_filters(field: str, value: Any, broker: RunningBroker) -> str | None:
    """Return why a valid value of a policy cannot be in force at this broker: it lacks an entry filter."""
    if field != ENTRY_FILTERS or value is None:
        return None
    return flaw_of_names(value.get("entryFilterNames") or "", broker.topics.filters)


@described_by(_of_set_policy)
async def set_policy(request: web.Request) -> web.Response:
    """Store one policy."""
    key, cluster = STORED_POLICIES[request.match_info["policy"]], broker_of(request).settings.cluster
    value = True if key == PAUSE_ON_ACKS else await body_of(request)  # a request to set it has no body
    wrong = flaw_of_policy(key, value, cluster) or flaw_of_filters(key, value, broker_of(request))
    if wrong:
        return failure(412, wrong)

    return await change_policies(request, lambda policies: write_field(policies, key, cluster, value))


async def change_policies(request: web.Request, change: Callable[[Json], Any]) -> web.Response:
    """Change the policies, and apply them to the topics that are loaded here; other brokers notice the change."""
    broker, namespace = broker_of(request), namespace_of(request)
    await broker.policies.update_policies(namespace, change)
    await broker.apply_policies(lambda name: name.namespace == namespace)
    return done()


async def remove_policy(request: web.Request) -> web.Response:
    """Restore the broker's setting."""
    key, cluster = STORED_POLICIES[request.match_info["policy"]], broker_of(request).settings.cluster
    return await change_policies(request, lambda policies: write_field(policies, key, cluster, None))
