"""Client of the brokers' admin REST API: reads tenants and namespaces, changes them, their policies and topics.

Uses Pulsar's paths and bodies with two exceptions: a whole namespace is read in one response of each broker
(`/admin/quire/namespaces/...`), and a broker is drained (`/admin/quire/drain`). Requests are idempotent: an existing
object is no error. A redirect to another broker of the same ManagedLedger is followed to its pod, because
names of pods may not resolve where the operator runs.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from quire_operator.api.topic import TopicSchema
from quire_operator.builders.settings import BROKER_HTTP_PORT, BROKER_HTTPS_PORT, CLUSTER_NAME
from quire_operator.cluster.bounded_body import IDENTITY, read_json
from quire_operator.errors import RefusedError, UnreachableError
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import (
    NamespaceState,
    ObservedBrokerDrain,
    ObservedSchema,
    ObservedTopic,
    TenantState,
)
from quire_operator.plan.namespace import BACKLOG_KINDS, backlog_quota_path, isolation_name

ASK_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
"""A partitioned topic is loaded partition by partition, a namespace is deleted topic by topic."""
REDIRECTS_MAX = 3
_REDIRECT = 307
_OWNERS_AT_ONCE = 8
_LAST = 2**63 - 1
_EARLIEST, _LATEST = {"ledgerId": -1, "entryId": -1}, {"ledgerId": _LAST, "entryId": _LAST}
_ISOLATION = f"/admin/v2/clusters/{CLUSTER_NAME}/namespaceIsolationPolicies"
_DRAIN = "/admin/quire/drain"
_DOMAINS = f"/admin/v2/clusters/{CLUSTER_NAME}/failureDomains"
POLICY_KEYS = {
    "persistence": "persistence",
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    "offloadPolicies": "offload_policies",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "deduplication": "deduplicationEnabled",
    "autoTopicCreation": "autoTopicCreationOverride",
}
"""Key in a namespace's stored policies by the path that sets it."""
_UNSET = "UNDEFINED"
"""The schema compatibility strategy of a new namespace: that of the broker applies."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Address and credentials of a broker. `tls`: verifies its certificate; None for plaintext."""

    host: str
    tls: ssl.SSLContext | None = None
    token: str | None = field(default=None, repr=False)
    name: str | None = None
    """The host name that it advertises, also expected in its certificate."""
    peers: Mapping[str, str] = field(default_factory=dict)
    """The addresses of all brokers of the ManagedLedger, by the host name that each advertises."""

    def peer(self, name: str) -> "BrokerEndpoint | None":
        """Return the broker that advertises a host name."""
        host = self.peers.get(name)
        return None if host is None else replace(self, host=host, name=name)


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: Any
    location: str = ""

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", "")) if isinstance(self.body, dict) else str(self.body or "")


class BrokerRest:
    """Connects by IP."""

    def __init__(
        self, session: aiohttp.ClientSession, port: int = BROKER_HTTP_PORT, port_tls: int = BROKER_HTTPS_PORT
    ) -> None:
        self._session = session
        self._port = port
        self._port_tls = port_tls

    async def namespace(self, endpoint: BrokerEndpoint, namespace: str) -> NamespaceState:
        """Return the state of a namespace. Raises UnreachableError and RefusedError."""
        policy = await self._isolation(endpoint, namespace)
        response = await self._ask(endpoint, "GET", f"/admin/quire/namespaces/{namespace}")
        if response.status == 404:
            # A 404 for a path that the broker does not serve has no such reason.
            if "Namespace" not in response.reason:
                raise UnreachableError(f"{endpoint.host} does not serve /admin/quire/namespaces: another version?")
            return NamespaceState(exists=False, isolation=policy)
        if response.status != 200:
            raise _failure(response, "GET", namespace)
        others = await self._loaded_elsewhere(endpoint, namespace, response.body["topics"])
        return replace(namespace_state(response.body | {"topics": others}), isolation=policy)

    async def _loaded_elsewhere(
        self, endpoint: BrokerEndpoint, namespace: str, topics: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the topics with what their owners report: a broker counts only what it has loaded itself."""
        away = {name: peer for name, one in topics.items() if not one["loaded"] and (peer := _owner(endpoint, one))}
        gate = asyncio.Semaphore(_OWNERS_AT_ONCE)

        async def ask(owner: BrokerEndpoint) -> dict[str, Any] | None:
            async with gate:
                said = await self._said(owner, f"/admin/quire/namespaces/{namespace}?loaded=true")
            return None if said is None else said["topics"]

        owners = {peer.host: peer for peer in away.values()}
        found = dict(zip(owners, await asyncio.gather(*(ask(owner) for owner in owners.values())), strict=True))
        merged = dict(topics)
        for name, peer in away.items():
            there = found[peer.host]
            if there is None:
                merged[name] = topics[name] | {"silent": True}
            elif name in there:
                merged[name] = there[name] | {"owner": topics[name]["owner"]}
        return merged

    async def failure_domains(self, endpoint: BrokerEndpoint) -> dict[str, tuple[str, ...]] | None:
        """Return the ids of the brokers of each failure domain; None if the broker does not respond."""
        said = await self._said(endpoint, _DOMAINS)
        return None if said is None else {name: tuple(one["brokers"]) for name, one in said.items()}

    async def drain_of(self, endpoint: BrokerEndpoint) -> ObservedBrokerDrain | None:
        """Return how far the drain of a broker is; None if it does not respond."""
        said = await self._said(endpoint, _DRAIN)
        if said is None:
            return None
        return ObservedBrokerDrain(said["draining"], int(said["moved"]), int(said["bundles"]), said["others"])

    async def _isolation(self, endpoint: BrokerEndpoint, namespace: str) -> dict[str, Any] | None:
        path = f"{_ISOLATION}/{quote(isolation_name(namespace), safe='')}"
        response = await self._ask(endpoint, "GET", path)
        if response.status not in (200, 404):
            raise _failure(response, "GET", path)
        return response.body if response.status == 200 else None

    async def usage(self, endpoint: BrokerEndpoint) -> float | None:
        """Return the share of its CPU or network that a broker uses. None: not reported, or it does not respond."""
        return busiest(await self._said(endpoint, "/admin/v2/broker-stats/load-report"))

    async def tenant(self, endpoint: BrokerEndpoint, tenant: str) -> TenantState:
        """Return the state of a tenant. Raises UnreachableError and RefusedError."""
        path = f"/admin/v2/tenants/{tenant}"
        response = await self._ask(endpoint, "GET", path)
        if response.status == 404:
            if "Tenant" not in response.reason:
                raise UnreachableError(f"{endpoint.host} does not serve {path}: another version?")
            return TenantState(exists=False)
        if response.status != 200:
            raise _failure(response, "GET", path)
        listed = await self._ask(endpoint, "GET", f"/admin/v2/namespaces/{tenant}")
        if listed.status != 200:
            raise _failure(listed, "GET", f"/admin/v2/namespaces/{tenant}")
        info = response.body
        roles, clusters = info.get("adminRoles") or (), info.get("allowedClusters") or ()
        return TenantState(True, tuple(roles), tuple(clusters), len(listed.body))

    async def schema(self, endpoint: BrokerEndpoint, namespace: str, topic: str, schema: TopicSchema) -> ObservedSchema:
        """Return whether a schema of a topic is registered. Raises UnreachableError and RefusedError."""
        path = _schemas(namespace, topic)
        response = await self._ask(endpoint, "POST", f"{path}/version", _schema_body(schema))
        if response.status != 200:
            raise _failure(response, "POST", f"{path}/version")
        version = int(response.body["version"])
        if version >= 0:
            return ObservedSchema(version)
        newest = await self._ask(endpoint, "GET", f"{path}/schema")
        if newest.status not in (200, 404):
            raise _failure(newest, "GET", f"{path}/schema")
        return ObservedSchema(None, int(newest.body["version"]) if newest.status == 200 else None)

    async def perform(self, endpoint: BrokerEndpoint, action: act.NamespaceAction) -> None:
        """Perform an action. Raises UnreachableError (it may have happened), or RefusedError with the reason."""
        match action:
            case act.DrainBroker(host):
                leaving = endpoint.peer(host)
                if leaving is None:
                    raise UnreachableError(f"{host} has no address")
                await self._request(leaving, "PUT", f"{_DRAIN}?wait=false", None)
            case act.SetFailureDomain(name, brokers):
                body = {"brokers": list(brokers)}
                await self._request(endpoint, "POST", f"{_DOMAINS}/{quote(name, safe='')}", body)
            case act.CreateNamespace(namespace):
                await self._set_tenant(endpoint, namespace.partition("/")[0], (), ())
                await self._request(endpoint, "PUT", f"/admin/v2/namespaces/{namespace}", None, there=409)
            case act.DeleteNamespace(namespace):
                await self._request(endpoint, "DELETE", f"/admin/v2/namespaces/{namespace}?force=true", None, there=404)
            case act.SetPolicy(namespace, path, value):
                await self._request(endpoint, "POST", f"/admin/v2/namespaces/{namespace}/{path}", value)
            case act.SetIsolation(name, policy):
                await self._request(endpoint, "POST", f"{_ISOLATION}/{quote(name, safe='')}", policy)
            case act.ForgetIsolation(name):
                await self._request(endpoint, "DELETE", f"{_ISOLATION}/{quote(name, safe='')}", None, there=404)
            case act.Grant(namespace, role, actions):
                path = f"/admin/v2/namespaces/{namespace}/permissions/{quote(role, safe='')}"
                await self._request(endpoint, "POST" if actions else "DELETE", path, list(actions) if actions else None)
            case act.GrantTopic(namespace, topic, role, actions):
                path = f"{_topic(namespace, topic)}/permissions/{quote(role, safe='')}"
                await self._request(endpoint, "POST" if actions else "DELETE", path, list(actions) if actions else None)
            case act.SetAdmins(namespace, roles):
                await self._request(endpoint, "POST", f"/admin/quire/namespaces/{namespace}/admins", list(roles))
            case act.CreateTopic(namespace, topic, partitions):
                await self._create_topic(endpoint, _topic(namespace, topic), partitions)
            case act.GrowTopic(namespace, topic, partitions):
                path = _topic(namespace, topic)
                await self._request(endpoint, "POST", f"{path}/partitions", partitions, there=409)
                await self._request(endpoint, "POST", f"{path}/createMissedPartitions", None)
            case act.CreateCursor(namespace, topic, cursor, earliest):
                path = f"{_topic(namespace, topic)}/subscription/{quote(cursor, safe='')}"
                await self._request(endpoint, "PUT", path, _EARLIEST if earliest else _LATEST, there=409)
            case act.RegisterSchema(namespace, topic, schema):
                path = f"{_schemas(namespace, topic)}/schema"
                response = await self._ask(endpoint, "POST", path, _schema_body(schema), REQUEST_TIMEOUT_S)
                if response.status == 409:  # incompatible: a retry does not help
                    raise RefusedError(f"POST {path}: the broker refused the schema: {response.reason}")
                if response.status >= 300:
                    raise _failure(response, "POST", path)
            case act.SetTenant(tenant, roles, clusters):
                await self._set_tenant(endpoint, tenant, roles, clusters)
            case act.DeleteTenant(tenant):
                await self._request(endpoint, "DELETE", f"/admin/v2/tenants/{tenant}", None, there=404)
            case act.RemovePolicy(namespace, path):
                await self._request(endpoint, "DELETE", f"/admin/v2/namespaces/{namespace}/{path}", None)
            case act.DeleteEmptyNamespace(namespace):
                await self._request(endpoint, "DELETE", f"/admin/v2/namespaces/{namespace}", None, there=404)
            case act.DeleteTopic(namespace, topic, partitions):
                path = _topic(namespace, topic) + ("/partitions" if partitions else "")
                await self._request(endpoint, "DELETE", path, None, there=404)
            case act.LoadTopic(namespace, topic, partitions):
                if partitions:  # a broker may have recorded the topic and stopped before creating its partitions
                    await self._request(endpoint, "POST", f"{_topic(namespace, topic)}/createMissedPartitions", None)
                names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
                for name in names:
                    await self._request(endpoint, "GET", f"{_topic(namespace, name)}/stats", None)

    async def _create_topic(self, endpoint: BrokerEndpoint, path: str, partitions: int) -> None:
        if partitions:
            await self._request(endpoint, "PUT", f"{path}/partitions", partitions, there=409)
            await self._request(endpoint, "POST", f"{path}/createMissedPartitions", None)
        else:
            await self._request(endpoint, "PUT", path, None, there=409)

    async def _set_tenant(
        self, endpoint: BrokerEndpoint, tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...]
    ) -> None:
        """Replace a tenant with known clusters; without them create it, where one that exists now is no error."""
        info = {"adminRoles": list(roles), "allowedClusters": list(clusters or (CLUSTER_NAME,))}
        path = f"/admin/v2/tenants/{tenant}"
        if clusters:
            await self._request(endpoint, "POST", path, info)
        else:
            await self._request(endpoint, "PUT", path, info, there=409)

    async def _request(self, endpoint: BrokerEndpoint, method: str, path: str, body: object, *, there: int = 0) -> None:
        """Send a request. `there`: status code for an object that is already in the wanted state."""
        response = await self._ask(endpoint, method, path, body, REQUEST_TIMEOUT_S)
        if response.status >= 300 and response.status != there:
            raise _failure(response, method, path)

    async def _said(self, endpoint: BrokerEndpoint, path: str) -> dict[str, Any] | None:
        """Return the object that a broker reports; None if it does not respond, or not with one."""
        try:
            response = await self._ask(endpoint, "GET", path)
        except UnreachableError:
            return None
        return response.body if response.status == 200 and isinstance(response.body, dict) else None

    async def _ask(
        self, endpoint: BrokerEndpoint, method: str, path: str, body: object = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> _Response:
        """Send a request, and again to the broker that a redirect names. Raises UnreachableError."""
        response = await self._ask_one(endpoint, method, path, body, timeout_s)
        for _ in range(REDIRECTS_MAX):
            place = urlsplit(response.location)
            peer = endpoint.peer(place.hostname or "")
            if response.status != _REDIRECT or peer is None:
                break
            path = place.path + (f"?{place.query}" if place.query else "")
            response = await self._ask_one(peer, method, path, body, timeout_s)
        return response

    async def _ask_one(
        self, endpoint: BrokerEndpoint, method: str, path: str, body: object, timeout_s: float
    ) -> _Response:
        scheme = "http" if endpoint.tls is None else "https"
        port = self._port if endpoint.tls is None else self._port_tls
        url = f"{scheme}://{endpoint.host}:{port}{path}"
        headers = IDENTITY | ({} if endpoint.token is None else {"Authorization": f"Bearer {endpoint.token}"})
        try:
            async with self._session.request(
                method,
                url,
                json=body,
                headers=headers,
                ssl=endpoint.tls or True,
                server_hostname=None if endpoint.tls is None else endpoint.name,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                if answer.status == _REDIRECT:  # its body is no JSON
                    return _Response(answer.status, None, answer.headers.get("Location", ""))
                return _Response(answer.status, await read_json(answer))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(f"{method} {url}: {error or 'no response in time'}") from error


def busiest(report: Any) -> float | None:
    """Return the largest share of a limit in a load report; None without the CPU. Memory is cache, not load."""
    shares: dict[str, float] = {}
    for name in ("cpu", "bandwidthIn", "bandwidthOut"):
        found = report.get(name) if isinstance(report, dict) else None
        usage, limit = (found.get("usage"), found.get("limit")) if isinstance(found, dict) else (None, None)
        if isinstance(usage, int | float) and isinstance(limit, int | float) and limit > 0:
            shares[name] = max(0.0, usage / limit)
    return max(shares.values()) if "cpu" in shares else None


def _failure(response: _Response, method: str, what: str) -> UnreachableError | RefusedError:
    """Return UnreachableError for codes that are worth a retry (5xx, redirects and some others), else RefusedError."""
    if 400 <= response.status < 500 and response.status not in (408, 409, 429):
        return RefusedError(f"{method} {what}: the broker refused ({response.status}): {response.reason}")
    return UnreachableError(f"{method} {what}: the broker cannot serve it now ({response.status}): {response.reason}")


def _owner(endpoint: BrokerEndpoint, topic: dict[str, Any]) -> BrokerEndpoint | None:
    """Return the broker that owns a topic, if it is another one of the same ManagedLedger."""
    name = str(topic["owner"] or "").rpartition(":")[0]
    return None if name == endpoint.name else endpoint.peer(name)


def _topic(namespace: str, topic: str) -> str:
    return f"/admin/v2/persistent/{namespace}/{quote(topic, safe='')}"


def _schemas(namespace: str, topic: str) -> str:
    return f"/admin/v2/schemas/{namespace}/{quote(topic, safe='')}"


def _schema_body(schema: TopicSchema) -> dict[str, Any]:
    return {"type": schema.type.value, "schema": schema.definition, "properties": dict(schema.properties)}


def namespace_state(body: dict[str, Any]) -> NamespaceState:
    """Parse the broker's response; partitions are summed up under the name of their topic."""
    stored = body["policies"]
    policies = {path: stored[key] for path, key in POLICY_KEYS.items() if stored.get(key) not in (None, _UNSET)}
    found = dict(body["topics"])
    topics = {}
    for name, count in body["partitioned"].items():
        parts = [found.pop(f"{name}-partition-{index}", None) for index in range(count)]
        topics[name] = _summed(count, [part for part in parts if part is not None])
    topics |= {name: _summed(0, [each]) for name, each in found.items()}
    quotas = stored.get("backlog_quota_map") or {}
    policies |= {backlog_quota_path(kind): quotas[kind] for kind in BACKLOG_KINDS if kind in quotas}
    auth = stored.get("auth_policies") or {}
    return NamespaceState(
        exists=True,
        policies=policies,
        grants={role: tuple(actions) for role, actions in (auth.get("namespace_auth") or {}).items()},
        topic_grants={
            topic: {role: tuple(actions) for role, actions in roles.items()}
            for topic, roles in (auth.get("destination_auth") or {}).items()
        },
        admins=tuple(auth.get("quire_admin_roles") or ()),
        topics=topics,
        writable_bookies=int(body["bookies"]["writable"]),
    )


def _summed(partitions: int, parts: list[dict[str, Any]]) -> ObservedTopic:
    """Sum up partitions. A cursor exists if each partition has it; its backlog is known if that of each one is."""
    names = set.intersection(*(set(part["cursors"]) for part in parts)) if parts else set()
    cursors = {}
    for name in sorted(names):
        backlogs = [part["cursors"][name] for part in parts]
        cursors[name] = None if None in backlogs else sum(backlogs)
    producers = [int(part["producers"]) for part in parts if part.get("producers") is not None]
    owners = [part["owner"] for part in parts if part["owner"]]
    return ObservedTopic(
        partitions,
        cursors,
        sum(part["entries"] for part in parts),
        sum(part["size"] for part in parts),
        # Positions of different partitions cannot be compared.
        parts[0]["position"] if len(parts) == 1 else None,
        owners[0].partition(".")[0] if owners else None,
        loaded=all(part["loaded"] for part in parts),
        silent=any(part.get("silent") for part in parts),
        producers=sum(producers) if len(producers) == len(parts) else None,
    )
