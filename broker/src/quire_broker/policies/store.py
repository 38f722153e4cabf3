"""Stores clusters, tenants, namespaces and partitioned topics as nodes of the metadata store, in Pulsar's JSON.

    /admin/clusters/<c>                                  ClusterData
    /admin/policies/<t>                                  TenantInfo
    /admin/policies/<t>/<ns>                             Policies; keys that we do not know are kept unchanged
    /admin/local-policies/<t>/<ns>                       the bundles in force; written when a namespace is first used
    /admin/partitioned-topics/<t>/<ns>/<domain>/<topic>  {"partitions": n, "properties": {FIRST_ADDED: first added one}}

Reads of policies and bundles are cached until a change is noticed, at most for a few seconds, and while the store is
unreachable: the last known values apply during an outage. It must never invent policies for a namespace that it could
not read.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    BadVersionError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.metadata.retrying import watch_with_retries
from quire_bookie.metadata.store import ABSENT, Check, EventKind, Get, MetadataStore, Put
from quire_broker.errors import ConflictError, NotAllowedError, NotFoundError
from quire_broker.limits import NAMESPACE_BUNDLES, NAMESPACE_BUNDLES_MAX, POLICIES_CACHE_S, POLICIES_REFRESH_S
from quire_broker.names import NamespaceName, TopicName, decode_name, topic_of
from quire_broker.policies.affinity import BOOKIE_AFFINITY, affinity_names
from quire_broker.policies.bundles import Bundles
from quire_broker.policies.fields import flaws_of, usable

Json: TypeAlias = dict[str, Any]
_log = logging.getLogger("quire.broker.policies")

ADMIN = "/admin"
CLUSTERS = "/admin/clusters"
CONFIGURATION = "/admin/configuration"
"""Settings that are changed while brokers run; see `server.dynamic_settings`."""
POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
RESOURCE_GROUPS = "/admin/resourcegroups"
ANTI_AFFINITY = "namespaceAntiAffinityGroup"
"""Field of a namespace's local policies."""
_HOLD_POLICIES = f"{POLICIES}/", f"{LOCAL_POLICIES}/", f"{PARTITIONED_TOPICS}/"
_POLICIES_DEPTH = 4
"""Slashes in the key of a namespace's policies."""
FIRST_ADDED = "quire.first-added-partition"
"""Property of a grown partitioned topic: the first partition that was added to the original ones."""


def encode_json(value: object) -> bytes:
    """Encode JSON in Pulsar's form: no spaces, UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_json(key: str, value: bytes) -> Json:
    """Decode a JSON object; otherwise MetadataFormatError names the node."""
    try:
        decoded = json.loads(value)
    except ValueError as error:
        raise MetadataFormatError(f"{key}: not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise MetadataFormatError(f"{key}: expected a JSON object")
    return decoded


async def change_json(
    metadata: MetadataStore, key: str, change: Callable[[Json], None], *, missing: str | None = None
) -> Json:
    """Change the JSON of a node by compare-and-set, and return it. `change` may be called repeatedly.

    `missing`: the text of a NotFoundError if there is no node; without it the node is created.
    """
    while True:
        node = await metadata.get(key)
        if node is None and missing is not None:
            raise NotFoundError(missing)
        value = {} if node is None else decode_json(key, node.value)
        change(value)
        try:
            await metadata.put(key, encode_json(value), expected=ABSENT if node is None else node.version)
        except BadVersionError:
            continue
        return value


def new_policies(cluster: str, bundles: Bundles) -> Json:
    """Return the policies that a stock broker writes for a new namespace."""
    return {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": bundles.to_json(),
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }


def _wanted_bundles(asked: object) -> Bundles:
    """Return the requested bundles, or the default number. NotAllowedError."""
    wanted = asked if isinstance(asked, dict) else {}
    boundaries, count = wanted.get("boundaries"), wanted.get("numBundles") or NAMESPACE_BUNDLES
    if boundaries:
        count = len(boundaries) - 1 if isinstance(boundaries, list) else None
    if type(count) is not int or not 0 < count <= NAMESPACE_BUNDLES_MAX:
        raise NotAllowedError(
            f"Invalid number of bundles. Number of bundles has to be in (0, {NAMESPACE_BUNDLES_MAX}]."
        )
    try:
        return Bundles.from_json(wanted) if boundaries else Bundles.even(count)
    except MetadataFormatError as error:
        raise NotAllowedError(str(error)) from error


def _node(parent: str, name: str) -> str:
    """Return the node of a tenant or a cluster. NotFoundError for a name that would lead to another node."""
    if not name or "/" in name:
        raise NotFoundError(f"{name[:100]!r} does not exist: a name must not contain '/'")
    return f"{parent}/{name}"


def nodes_of(topic: TopicName) -> tuple[str, ...]:
    """Return the nodes that may hold policies of a topic; see `PolicyStore.on_change`."""
    nodes = f"{POLICIES}/{topic.namespace}", f"{LOCAL_POLICIES}/{topic.namespace}"
    return (*nodes, _partitioned_key(topic.partitioned)) if topic.partition >= 0 else nodes


def _partitioned_key(topic: TopicName) -> str:
    return f"{PARTITIONED_TOPICS}/{topic.namespace}/{topic.domain}/{topic.encoded_local}"


def _count_in(partitioned: Json | None) -> int:
    return 0 if partitioned is None or partitioned.get("deleted") else int(partitioned.get("partitions", 0))


@dataclass(slots=True)
class _Cached:
    value: Any
    until: float
    flaws: tuple[str, ...] = ()
    """Of policies: the errors of the fields that were omitted."""


class PolicyStore:
    """Reads and writes these nodes. Errors of the metadata store are passed on unchanged."""

    def __init__(self, metadata: MetadataStore, cluster: str) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._cache: dict[str, _Cached] = {}
        self._rings: dict[NamespaceName, tuple[Json, Bundles]] = {}
        """Bundles of the namespaces in the cache, with the local policies from which they were decoded."""
        self.on_change: Callable[[str], None] = lambda key: None
        """Called by `follow` with the node of a namespace or partitioned topic that changed; empty: maybe any did."""
        self.on_settings: Callable[[], None] = lambda: None
        """Called by `follow` when it begins, and when the node of settings may have changed."""
        self.on_groups: Callable[[], None] = lambda: None
        """Called by `follow` when a resource group may have changed."""
        self.changes = 0
        """Grows when `follow` notices a change of local policies or failure domains, by any broker.

        From these a leader reads its rules, which takes a scan of all namespaces: no other change may cause one.
        """

    @property
    def cluster(self) -> str:
        """The name of our own cluster."""
        return self._cluster

    async def _read(self, key: str) -> Json | None:
        """Return the JSON of a node, from the cache while that is fresh or the store is unreachable."""
        now = asyncio.get_running_loop().time()
        cached = self._cache.get(key)
        if cached is not None and now < cached.until:
            return cached.value  # type: ignore[no-any-return]
        try:
            async with asyncio.timeout(POLICIES_REFRESH_S if cached is not None else None):
                node = await self._metadata.get(key)
        except (MetadataUnavailableError, MetadataUnknownError, TimeoutError):
            if cached is None:
                raise
            cached.until = asyncio.get_running_loop().time() + POLICIES_CACHE_S
            return cached.value  # type: ignore[no-any-return]
        if node is None:
            self._cache.pop(key, None)
            return None
        value = decode_json(key, node.value)
        flaws: tuple[str, ...] = ()
        if key.count("/") == _POLICIES_DEPTH and key.startswith(POLICIES):
            value, flaws = usable(value)
            if flaws and (cached is None or cached.flaws != flaws):
                _log.warning("%s: fields are not used; correct them: %s", key, "; ".join(flaws))
        self._cache[key] = _Cached(value, now + POLICIES_CACHE_S, flaws)
        return value

    async def follow(self) -> None:
        """Read nodes again that another broker has changed, at their next use, until cancelled.

        The last known values still apply while the store is unreachable.
        """
        watch = await watch_with_retries(self._metadata, f"{ADMIN}/", _log.info)
        try:
            self.on_settings()
            async for event in watch:
                lost_events = event.kind is EventKind.RESYNC
                if lost_events or event.key == CONFIGURATION:
                    self.on_settings()
                if lost_events or event.key.startswith(f"{RESOURCE_GROUPS}/"):
                    self.on_groups()
                if lost_events or event.key.startswith((f"{LOCAL_POLICIES}/", self._domains_prefix)):
                    self.changes += 1
                for key in list(self._cache) if lost_events else [event.key]:
                    if key in self._cache:
                        self._cache[key].until = 0.0
                if lost_events or event.key.startswith(_HOLD_POLICIES):
                    self.on_change("" if lost_events else event.key)
        finally:
            await watch.close()

    async def _create(self, key: str, value: Json, what: str) -> None:
        try:
            await self._metadata.put(key, encode_json(value), expected=ABSENT)
        except BadVersionError as error:
            raise ConflictError(f"{what} already exists") from error
        self._cache.pop(key, None)

    async def _update(self, key: str, change: Callable[[Json], None], what: str) -> Json:
        value = await change_json(self._metadata, key, change, missing=f"{what} does not exist")
        self._cache.pop(key, None)
        return value

    async def _delete(self, key: str, what: str) -> None:
        try:
            await self._metadata.delete(key)
        except NodeMissingError as error:
            raise NotFoundError(f"{what} does not exist") from error
        finally:
            self._cache.pop(key, None)

    # clusters and tenants

    async def clusters(self) -> list[str]:
        """Return the names of the clusters, without the placeholder `global`."""
        return [name for name in await self._metadata.children(CLUSTERS) if name != "global"]

    async def read_cluster(self, name: str) -> Json:
        """Return ClusterData; NotFoundError."""
        found = await self._read(_node(CLUSTERS, name))
        if found is None:
            raise NotFoundError("Cluster does not exist")
        return found

    async def create_cluster(self, name: str, data: Json) -> None:
        """Create a cluster; ConflictError if it exists."""
        await self._create(f"{CLUSTERS}/{name}", data, f"Cluster {name}")

    async def update_cluster(self, name: str, data: Json) -> None:
        """Merge `data` into a cluster; NotFoundError."""
        await self._update(_node(CLUSTERS, name), lambda value: value.update(data), f"Cluster {name}")

    async def delete_cluster(self, name: str) -> None:
        """Delete a cluster; NotFoundError if it does not exist."""
        await self._delete(_node(CLUSTERS, name), f"Cluster {name}")
        if await self.cluster_migration(name) is not None:
            await self._delete(f"{CLUSTERS}/{name}/policies", f"Migration of cluster {name}")

    async def cluster_migration(self, name: str) -> Json | None:
        """Return whether and where a cluster has moved; None if it was never set."""
        return await self._read(f"{_node(CLUSTERS, name)}/policies")

    async def set_cluster_migration(self, name: str, value: Json) -> None:
        """Store whether and where a cluster has moved."""
        key = f"{_node(CLUSTERS, name)}/policies"
        await self._metadata.put(key, encode_json(value))
        self._cache.pop(key, None)

    @property
    def _isolation_key(self) -> str:
        return f"{CLUSTERS}/{self._cluster}/namespaceIsolationPolicies"

    @property
    def _domains_prefix(self) -> str:
        return f"{CLUSTERS}/{self._cluster}/failureDomain/"

    async def isolation(self) -> Json:
        """Return the current namespace isolation policies of our cluster by name: nothing is cached."""
        node = await self._metadata.get(self._isolation_key)
        return {} if node is None else decode_json(self._isolation_key, node.value)

    async def set_isolation(self, name: str, policy: Json | None) -> None:
        """Store one policy, or delete it with None; NotFoundError if there is none to delete."""

        def change(policies: Json) -> None:
            if policy is not None:
                policies[name] = policy
            elif policies.pop(name, None) is None:
                raise NotFoundError(f"Namespace isolation policy {name} does not exist")

        await change_json(self._metadata, self._isolation_key, change)

    async def tenants(self) -> list[str]:
        """Return the names of the tenants."""
        return await self._metadata.children(POLICIES)

    async def read_tenant(self, tenant: str) -> Json:
        """Return TenantInfo; NotFoundError."""
        found = await self._read(_node(POLICIES, tenant))
        if found is None:
            raise NotFoundError("Tenant does not exist")
        return found

    async def create_tenant(self, tenant: str, info: Json) -> None:
        """Create a tenant; ConflictError if it exists."""
        await self._create(f"{POLICIES}/{tenant}", info, f"Tenant {tenant}")

    async def update_tenant(self, tenant: str, info: Json) -> None:
        """Replace a tenant's info; NotFoundError."""
        await self._update(_node(POLICIES, tenant), lambda value: value.update(info), f"Tenant {tenant}")

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant; ConflictError while it has namespaces, NotFoundError if it does not exist."""
        if await self.namespaces(tenant):
            raise ConflictError("The tenant still has active namespaces")
        await self._delete(_node(POLICIES, tenant), f"Tenant {tenant}")

    # namespaces

    async def namespaces(self, tenant: str) -> list[str]:
        """Return the local names of a tenant's namespaces."""
        return await self._metadata.children(_node(POLICIES, tenant))

    async def policies(self, namespace: NamespaceName) -> Json | None:
        """Return the policies of a namespace, None if it does not exist. Do not change the result.

        A field of a wrong type is omitted and logged: other brokers also write these nodes.
        """
        return await self._read(f"{POLICIES}/{namespace}")

    async def with_placement(self, namespace: NamespaceName) -> Json | None:
        """Return the policies with the bookie affinity groups of the local policies. Do not change the result."""
        policies = await self.policies(namespace)
        groups = None if policies is None else await self.bookie_affinity(namespace)
        return policies if policies is None or groups is None else {**policies, BOOKIE_AFFINITY: groups}

    async def create_namespace(self, namespace: NamespaceName, policies: Json | None = None) -> None:
        """Create a namespace with 4 bundles unless `policies` has others.

        NotFoundError without its tenant, ConflictError, NotAllowedError.
        """
        await self.read_tenant(namespace.tenant)
        wanted = dict(policies or {})
        bundles = _wanted_bundles(wanted.pop("bundles", None))
        value = new_policies(self._cluster, bundles)
        value.update({key: item for key, item in wanted.items() if item is not None})
        if not value["replication_clusters"]:
            value["replication_clusters"] = [self._cluster]
        await self._create(f"{POLICIES}/{namespace}", value, f"Namespace {namespace}")

    async def create_tenant_with_namespace(self, namespace: NamespaceName, info: Json, bundles: Bundles) -> None:
        """Create a tenant and its first namespace in one transaction. ConflictError if either exists.

        A process killed between two separate writes would leave a tenant that looks as if a user had created it.
        """
        policies = new_policies(self._cluster, bundles)
        puts = [
            Put(f"{POLICIES}/{namespace.tenant}", encode_json(info)),
            Put(f"{POLICIES}/{namespace}", encode_json(policies)),
        ]
        try:
            await self._metadata.transact([Check(put.key, ABSENT) for put in puts], puts)
        except BadVersionError as error:
            raise ConflictError(f"tenant {namespace.tenant} or namespace {namespace} already exists") from error
        for put in puts:
            self._cache.pop(put.key, None)

    async def update_policies(self, namespace: NamespaceName, change: Callable[[Json], None]) -> Json:
        """Change the policies by compare-and-set. NotFoundError; NotAllowedError for invalid values.

        A field that was stored with an invalid value before may stay unchanged: it does not block changes of others.
        """

        def checked(policies: Json) -> None:
            before = flaws_of(policies)
            change(policies)
            flaw = next((flaw for name, flaw in flaws_of(policies).items() if before.get(name) != flaw), None)
            if flaw is not None:
                raise NotAllowedError(flaw)

        return await self._update(f"{POLICIES}/{namespace}", checked, f"Namespace {namespace}")

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        """Remove policies and bundles. The caller has made sure that no topic is left."""
        await self._delete(f"{POLICIES}/{namespace}", f"Namespace {namespace}")
        try:
            await self._delete(f"{LOCAL_POLICIES}/{namespace}", f"Namespace {namespace}")
        except NotFoundError:
            return  # it was never used

    async def bundles(self, namespace: NamespaceName) -> Bundles | None:
        """Return the bundles in force, None if the namespace does not exist. First use fixes them in local policies."""
        key = f"{LOCAL_POLICIES}/{namespace}"
        policies = await self.policies(namespace)
        if policies is None:
            self._rings.pop(namespace, None)
            return None
        local = await self._read(key)
        if local is None:
            stored = policies.get("bundles")
            bundles = Bundles.from_json(stored) if stored else Bundles.even(NAMESPACE_BUNDLES)
            try:
                value = {"bundles": bundles.to_json(), "migrated": False}
                await self._metadata.put(key, encode_json(value), expected=ABSENT)
            except BadVersionError:
                self._cache.pop(key, None)  # another broker was first: its bundles apply
                local = await self._read(key)
            else:
                return bundles
        known = self._rings.get(namespace)
        if known is None or known[0] is not local:
            known = self._rings[namespace] = local or {}, Bundles.from_json((local or {}).get("bundles"))
        return known[1]

    async def split_of(self, namespace: NamespaceName, name: str, at: int) -> tuple[Check, Put]:
        """Return what a transaction must check and write to divide a bundle at a hash. ConflictError.

        The caller calls `forget_bundles` after it.
        """
        key = f"{LOCAL_POLICIES}/{namespace}"
        node = await self._metadata.get(key)
        value = {} if node is None else decode_json(key, node.value)
        try:
            bundles = Bundles.from_json(value.get("bundles")).split(name, at)
        except (ValueError, MetadataFormatError) as error:
            raise ConflictError(f"{namespace}/{name} is not divided: {error}") from error
        version = ABSENT if node is None else node.version
        return Check(key, version), Put(key, encode_json(value | {"bundles": bundles.to_json()}))

    async def bookie_affinity(self, namespace: NamespaceName) -> Json | None:
        """Return the bookie affinity groups of a namespace, None if it has none. Unreadable ones count as none."""
        found = (await self._read(f"{LOCAL_POLICIES}/{namespace}") or {}).get(BOOKIE_AFFINITY)
        return found if isinstance(found, dict) and affinity_names(found)[0] else None

    async def set_local(self, namespace: NamespaceName, field: str, value: object) -> None:
        """Set a field of a namespace's local policies, or remove it with None. NotFoundError."""
        if await self.bundles(namespace) is None:  # else the node exists, now that it has been read
            raise NotFoundError("Namespace does not exist")

        def change(local: Json) -> None:
            local.pop(field, None)
            if value is not None:
                local[field] = value

        await self._update(f"{LOCAL_POLICIES}/{namespace}", change, f"Namespace {namespace}")

    async def anti_affinity(self, namespace: NamespaceName) -> str | None:
        """Return the anti-affinity group of a namespace. NotFoundError if the namespace does not exist."""
        if await self.bundles(namespace) is None:
            raise NotFoundError("Namespace does not exist")
        group = (await self._read(f"{LOCAL_POLICIES}/{namespace}") or {}).get(ANTI_AFFINITY)
        return str(group) if group else None

    async def anti_affinity_groups(self) -> dict[str, str]:
        """Return the anti-affinity groups of all namespaces that have one."""
        found = {}
        async for page in self._metadata.scan(f"{LOCAL_POLICIES}/"):
            for node in page:
                if ANTI_AFFINITY.encode() in node.value:
                    group = decode_json(node.key, node.value).get(ANTI_AFFINITY)
                    if group:
                        found[node.key.removeprefix(f"{LOCAL_POLICIES}/")] = str(group)
        return found

    async def failure_domains(self) -> dict[str, list[str]]:
        """Return the brokers of each failure domain of our cluster."""
        prefix, found = self._domains_prefix, {}
        async for page in self._metadata.scan(prefix):
            for node in page:
                brokers = decode_json(node.key, node.value).get("brokers") or ()
                found[node.key.removeprefix(prefix)] = [str(broker) for broker in brokers]
        return found

    async def set_failure_domain(self, name: str, brokers: list[str] | None) -> None:
        """Store a failure domain, or delete it with None; NotFoundError if there is none to delete."""
        key = f"{self._domains_prefix}{name}"
        if brokers is None:
            await self._delete(key, f"Failure domain {name}")
        else:
            await self._metadata.put(key, encode_json({"brokers": brokers}))

    def forget_bundles(self, namespace: NamespaceName) -> None:
        """Read the bundles of a namespace again at their next use."""
        self._cache.pop(f"{LOCAL_POLICIES}/{namespace}", None)

    # partitioned topics

    async def partitions(self, topic: TopicName, *, fresh: bool = False) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned or does not exist.

        `fresh`: also if another broker changed it within the last seconds.
        """
        key = _partitioned_key(topic)
        if fresh and key in self._cache:
            self._cache[key].until = 0.0
        return _count_in(await self._read(key))

    async def partitions_beside(self, topic: TopicName, other: str) -> tuple[int, bool]:
        """Return what `partitions` does, and whether another node exists if that is 0. One request."""
        key, now = _partitioned_key(topic), asyncio.get_running_loop().time()
        if key in self._cache:
            count = await self.partitions(topic)
            return count, not count and await self._metadata.get(other) is not None
        found, beside = await self._metadata.read([Get(key), Get(other)])
        for node in found:
            self._cache[key] = _Cached(decode_json(key, node.value), now + POLICIES_CACHE_S)
        return _count_in(self._cache[key].value if found else None), bool(beside)

    async def was_added(self, partition: TopicName) -> bool:
        """Return whether a partition was added to an existing topic."""
        found = await self._read(_partitioned_key(partition.partitioned)) or {}
        first = str((found.get("properties") or {}).get(FIRST_ADDED, ""))
        return first.isdecimal() and partition.partition >= int(first)

    async def create_partitions(
        self, topic: TopicName, count: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Record a partitioned topic; ConflictError if it exists."""
        value: Json = {"partitions": count, "deleted": False}
        if properties:
            value["properties"] = dict(properties)
        await self._create(_partitioned_key(topic), value, "This topic")

    async def partitioned_properties(self, topic: TopicName) -> Mapping[str, str]:
        """Return all properties of a partitioned topic; empty if it is not partitioned."""
        found = await self._read(_partitioned_key(topic)) or {}
        return {str(name): str(value) for name, value in (found.get("properties") or {}).items()}

    async def update_partitioned_properties(
        self, topic: TopicName, on_properties: Callable[[dict[str, str]], None]
    ) -> None:
        """Change the properties of a partitioned topic by compare-and-set; NotFoundError."""

        def change(value: Json) -> None:
            properties = dict(value.get("properties") or {})
            on_properties(properties)
            value["properties"] = properties

        await self._update(_partitioned_key(topic), change, f"Partitioned topic {topic}")

    async def grow_partitions(self, topic: TopicName, count: int) -> None:
        """Add partitions; ConflictError if `count` is not larger, NotFoundError if the topic is not partitioned."""

        def change(value: Json) -> None:
            if count <= int(value.get("partitions", 0)):
                raise ConflictError(
                    f"the topic already has {value.get('partitions')} partitions; their number can only grow"
                )
            value["properties"] = {FIRST_ADDED: str(value.get("partitions", 0))} | (value.get("properties") or {})
            value["partitions"] = count

        await self._update(_partitioned_key(topic), change, f"Partitioned topic {topic}")

    async def delete_partitions(self, topic: TopicName) -> None:
        """Delete the record of a partitioned topic; NotFoundError if it is not partitioned."""
        await self._delete(_partitioned_key(topic), f"Partitioned Topic {topic}")

    async def partitioned_topics(self, namespace: NamespaceName, domain: str) -> AsyncIterator[TopicName]:
        """Yield all partitioned topics of a namespace."""
        for name in await self._metadata.children(f"{PARTITIONED_TOPICS}/{namespace}/{domain}"):
            yield topic_of(domain, namespace, decode_name(name))
