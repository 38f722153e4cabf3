"""The brokers' admin REST: what a namespace has, and namespace, policies, topics and cursors made there.

Pulsar's paths and bodies but for one: a whole namespace is read in one answer (`/admin/quire/namespaces/...`). Each
wish may be repeated: what is there already is no error. A redirect to another broker is not followed, since names of
pods may not resolve where the operator runs; the one who is asked may own the topic a moment later.
"""

import ssl
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import aiohttp

from quire_operator.builders.settings import BROKER_HTTP_PORT, BROKER_HTTPS_PORT, CLUSTER_NAME
from quire_operator.errors import RefusedError, UnreachableError
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_seen import NamespaceState, TopicSeen
from quire_operator.plan.namespace import BACKLOG_KINDS, backlog_quota_path, isolation_name

ASK_TIMEOUT_S = 10.0
WISH_TIMEOUT_S = 60.0
"""A partitioned topic is loaded partition by partition, a namespace is deleted topic by topic."""
_LAST = 2**63 - 1
_EARLIEST, _LATEST = {"ledgerId": -1, "entryId": -1}, {"ledgerId": _LAST, "entryId": _LAST}
_ISOLATION = f"/admin/v2/clusters/{CLUSTER_NAME}/namespaceIsolationPolicies"
POLICY_KEYS = {
    "persistence": "persistence",
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    "offloadPolicies": "offload_policies",
}
"""Key in a namespace's stored policies by the path that sets it."""


@dataclass(frozen=True, slots=True)
class BrokerDoor:
    """How a broker is reached. `tls`: what its certificate is judged by; None: in clear."""

    host: str
    tls: ssl.SSLContext | None = None
    token: str | None = field(default=None, repr=False)
    name: str | None = None
    """What its certificate must be for."""


@dataclass(frozen=True, slots=True)
class _Said:
    status: int
    body: Any

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", "")) if isinstance(self.body, dict) else str(self.body or "")


class BrokerRest:
    """Asks by IP."""

    def __init__(
        self, session: aiohttp.ClientSession, port: int = BROKER_HTTP_PORT, port_tls: int = BROKER_HTTPS_PORT
    ) -> None:
        self._session = session
        self._port = port
        self._port_tls = port_tls

    async def namespace(self, door: BrokerDoor, namespace: str) -> NamespaceState:
        """What is there. UnreachableError; RefusedError."""
        policy = await self._isolation(door, namespace)
        said = await self._ask(door, "GET", f"/admin/quire/namespaces/{namespace}")
        if said.status == 404:
            # Not the broker's word for a path that it does not serve: that one has no such reason.
            if "Namespace" not in said.reason:
                raise UnreachableError(f"{door.host} does not know /admin/quire/namespaces: another version?")
            return NamespaceState(exists=False, isolation=policy)
        if said.status != 200:
            raise _failure(said, "GET", namespace)
        return replace(namespace_state(said.body), isolation=policy)

    async def _isolation(self, door: BrokerDoor, namespace: str) -> dict[str, Any] | None:
        path = f"{_ISOLATION}/{quote(isolation_name(namespace), safe='')}"
        said = await self._ask(door, "GET", path)
        if said.status not in (200, 404):
            raise _failure(said, "GET", path)
        return said.body if said.status == 200 else None

    async def perform(self, door: BrokerDoor, action: act.NamespaceAction) -> None:
        """A wish. UnreachableError: perhaps done; RefusedError: the broker says why not."""
        match action:
            case act.CreateNamespace(namespace):
                tenant, _, _ = namespace.partition("/")
                info = {"adminRoles": [], "allowedClusters": [CLUSTER_NAME]}
                await self._wish(door, "PUT", f"/admin/v2/tenants/{tenant}", info, there=409)
                await self._wish(door, "PUT", f"/admin/v2/namespaces/{namespace}", None, there=409)
            case act.DeleteNamespace(namespace):
                await self._wish(door, "DELETE", f"/admin/v2/namespaces/{namespace}?force=true", None, there=404)
            case act.SetPolicy(namespace, path, value):
                await self._wish(door, "POST", f"/admin/v2/namespaces/{namespace}/{path}", value)
            case act.SetIsolation(name, policy):
                await self._wish(door, "POST", f"{_ISOLATION}/{quote(name, safe='')}", policy)
            case act.ForgetIsolation(name):
                await self._wish(door, "DELETE", f"{_ISOLATION}/{quote(name, safe='')}", None, there=404)
            case act.Grant(namespace, role, actions):
                path = f"/admin/v2/namespaces/{namespace}/permissions/{quote(role, safe='')}"
                await self._wish(door, "POST" if actions else "DELETE", path, list(actions) if actions else None)
            case act.SetAdmins(namespace, roles):
                await self._wish(door, "POST", f"/admin/quire/namespaces/{namespace}/admins", list(roles))
            case act.CreateTopic(namespace, topic, partitions):
                await self._create_topic(door, _topic(namespace, topic), partitions)
            case act.GrowTopic(namespace, topic, partitions):
                path = _topic(namespace, topic)
                await self._wish(door, "POST", f"{path}/partitions", partitions, there=409)
                await self._wish(door, "POST", f"{path}/createMissedPartitions", None)
            case act.CreateCursor(namespace, topic, cursor, earliest):
                path = f"{_topic(namespace, topic)}/subscription/{quote(cursor, safe='')}"
                await self._wish(door, "PUT", path, _EARLIEST if earliest else _LATEST, there=409)
            case act.LoadTopic(namespace, topic, partitions):
                if partitions:  # whoever recorded the topic may have ended before its partitions were made
                    await self._wish(door, "POST", f"{_topic(namespace, topic)}/createMissedPartitions", None)
                names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
                for name in names:
                    await self._wish(door, "GET", f"{_topic(namespace, name)}/stats", None)

    async def _create_topic(self, door: BrokerDoor, path: str, partitions: int) -> None:
        if partitions:
            await self._wish(door, "PUT", f"{path}/partitions", partitions, there=409)
            await self._wish(door, "POST", f"{path}/createMissedPartitions", None)
        else:
            await self._wish(door, "PUT", path, None, there=409)

    async def _wish(self, door: BrokerDoor, method: str, path: str, body: object, *, there: int = 0) -> None:
        """`there`: the code that says that it is so already."""
        said = await self._ask(door, method, path, body, WISH_TIMEOUT_S)
        if said.status >= 300 and said.status != there:
            raise _failure(said, method, path)

    async def _ask(
        self, door: BrokerDoor, method: str, path: str, body: object = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> _Said:
        scheme = "http" if door.tls is None else "https"
        url = f"{scheme}://{door.host}:{self._port if door.tls is None else self._port_tls}{path}"
        headers = {} if door.token is None else {"Authorization": f"Bearer {door.token}"}
        try:
            async with self._session.request(
                method,
                url,
                json=body,
                headers=headers,
                ssl=door.tls or True,
                server_hostname=None if door.tls is None else door.name,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                return _Said(answer.status, await answer.json(content_type=None))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(f"{method} {url}: {error or 'no answer in time'}") from error


def _failure(said: _Said, method: str, what: str) -> UnreachableError | RefusedError:
    """Codes from 500 on and redirects pass by themselves; others do not."""
    if 400 <= said.status < 500 and said.status not in (408, 409, 429):
        return RefusedError(f"{method} {what}: the broker refused ({said.status}): {said.reason}")
    return UnreachableError(f"{method} {what}: not now ({said.status}): {said.reason}")


def _topic(namespace: str, topic: str) -> str:
    return f"/admin/v2/persistent/{namespace}/{quote(topic, safe='')}"


def namespace_state(body: dict[str, Any]) -> NamespaceState:
    """The broker's answer as values: partitions summed up under the name of their topic."""
    stored = body["policies"]
    policies = {path: stored[key] for path, key in POLICY_KEYS.items() if stored.get(key) is not None}
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
        admins=tuple(auth.get("quire_admin_roles") or ()),
        topics=topics,
        writable_bookies=int(body["bookies"]["writable"]),
    )


def _summed(partitions: int, parts: list[dict[str, Any]]) -> TopicSeen:
    """A cursor is there when each partition has it; its backlog is known when each one's is."""
    names = set.intersection(*(set(part["cursors"]) for part in parts)) if parts else set()
    cursors = {}
    for name in sorted(names):
        backlogs = [part["cursors"][name] for part in parts]
        cursors[name] = None if None in backlogs else sum(backlogs)
    owners = [part["owner"] for part in parts if part["owner"]]
    return TopicSeen(
        partitions,
        cursors,
        sum(part["entries"] for part in parts),
        sum(part["size"] for part in parts),
        # Positions of partitions cannot be compared: that of a single one only.
        parts[0]["position"] if len(parts) == 1 else None,
        owners[0].partition(".")[0] if owners else None,
        loaded=all(part["loaded"] for part in parts),
    )
