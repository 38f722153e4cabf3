"""The part of the brokers' admin REST that the operator uses: Pulsar's paths and codes, on a namespace in memory.

Replaces the HTTP session of `BrokerRest`, so that the operator runs only production code. The operator may be killed
around each request that changes something, by the count of `SimKube`. Creations are counted: a topic or cursor that is
created a second time is a different one, and the state of the first is lost.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp

from tests.sim.operator_api import SimKube

STORED_AS = {
    "persistence": "persistence",
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    "offloadPolicies": "offload_policies",
}
Handler = Callable[..., tuple[int, Any]]


@dataclass
class SimTopic:
    """A non-partitioned topic, or a partition."""

    entries: int = 0
    loaded: bool = True
    cursors: dict[str, int] = field(default_factory=dict)
    """The first unconsumed entry of each cursor."""


@dataclass
class SimNamespace:
    """A namespace with its topics and policies."""

    policies: dict[str, Any] = field(default_factory=dict)
    partitioned: dict[str, int] = field(default_factory=dict)
    topics: dict[str, SimTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimBody:
    """Replaces `aiohttp.StreamReader`."""

    value: Any

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the JSON in one part."""
        yield json.dumps(self.value).encode()


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """Replaces `aiohttp.ClientResponse`."""

    status: int
    body: Any

    @property
    def content(self) -> SimBody:
        """The body, to be read in parts."""
        return SimBody(self.body)


@dataclass
class SimBrokers:
    """Replaces `aiohttp.ClientSession`. Its state stands for the metadata store and outlives the brokers."""

    kube: SimKube
    serves: Callable[[str], bool]
    """Whether a broker listens at a host."""
    tenants: set[str] = field(default_factory=set)
    namespaces: dict[str, SimNamespace] = field(default_factory=dict)
    isolation: dict[str, Any] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    """How often each namespace, topic and cursor was created."""
    deleting: Callable[[], None] = lambda: None
    """Called before a namespace is deleted."""

    def request(self, method: str, url: str, *, json: Any, **_: Any) -> AbstractAsyncContextManager[SimAnswer]:
        """Send one request. aiohttp.ClientError if no broker listens at the host."""
        return self._exchange(method, url, json)

    @asynccontextmanager
    async def _exchange(self, method: str, url: str, body: Any) -> Any:
        place = urlsplit(url)
        if not self.serves(place.hostname or ""):
            raise aiohttp.ClientConnectionError(f"no broker listens at {place.hostname}")
        path = place.path + (f"?{place.query}" if place.query else "")
        if method == "GET":
            yield SimAnswer(*self._answer(method, path, body))
            return
        async with self.kube.write():
            said = SimAnswer(*self._answer(method, path, body))
        yield said

    def unload(self) -> None:
        """End every broker: topics are loaded again at their next request."""
        for namespace in self.namespaces.values():
            for topic in namespace.topics.values():
                topic.loaded = False

    def publish(self, count: int) -> None:
        """Append `count` entries to each topic."""
        for namespace in self.namespaces.values():
            for topic in namespace.topics.values():
                topic.entries += count

    def state(self) -> Any:
        """Return the whole state as values, except which topics are loaded."""
        found = {
            name: (
                dict(sorted(one.policies.items())),
                dict(sorted(one.partitioned.items())),
                {local: (topic.entries, topic.cursors) for local, topic in sorted(one.topics.items())},
            )
            for name, one in self.namespaces.items()
        }
        return found, self.isolation

    # ---- responses
    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        for verb, pattern, handler in _ROUTES:
            match = re.fullmatch(pattern, path)
            if verb == method and match is not None:
                parts = [unquote(part) for part in match.groups()]
                name = parts[0] if pattern.startswith(_OF_NAMESPACE) else None
                if name is not None and name not in self.namespaces:
                    return 404, {"reason": "Namespace does not exist"}
                return handler(self, body, *parts)
        return 404, {"reason": f"{method} {path} is not simulated"}

    def _make(self, what: str) -> None:
        self.made[what] += 1

    def _get_isolation(self, _: Any, name: str) -> tuple[int, Any]:
        found = self.isolation.get(name)
        return (404, {"reason": "Namespace isolation policy does not exist"}) if found is None else (200, found)

    def _set_isolation(self, body: Any, name: str) -> tuple[int, Any]:
        self.isolation[name] = body
        return 204, None

    def _forget_isolation(self, _: Any, name: str) -> tuple[int, Any]:
        return (204, None) if self.isolation.pop(name, None) is not None else (404, {"reason": "there is none"})

    def _put_tenant(self, _: Any, tenant: str) -> tuple[int, Any]:
        if tenant in self.tenants:
            return 409, {"reason": "Tenant already exists"}
        self.tenants.add(tenant)
        self._make(f"tenant {tenant}")
        return 204, None

    def _put_namespace(self, _: Any, name: str) -> tuple[int, Any]:
        if name.partition("/")[0] not in self.tenants:
            return 404, {"reason": "Tenant does not exist"}
        if name in self.namespaces:
            return 409, {"reason": "Namespace already exists"}
        self.namespaces[name] = SimNamespace()
        self._make(f"namespace {name}")
        return 204, None

    def _delete_namespace(self, _: Any, name: str) -> tuple[int, Any]:
        self.deleting()
        del self.namespaces[name]
        return 204, None

    def _overview(self, _: Any, name: str) -> tuple[int, Any]:
        """List all topics, including partitions that were never used."""
        there = self.namespaces[name]
        topics = {
            f"{topic}-partition-{index}": SimTopic(loaded=False)
            for topic, count in there.partitioned.items()
            for index in range(count)
        } | there.topics
        shown = {
            local: {
                "loaded": topic.loaded,
                "owner": "orders-broker-0.orders-brokers.ns.svc:8080",
                "position": f"1:{topic.entries - 1}" if topic.loaded else None,
                "entries": topic.entries,
                "size": topic.entries * 10,
                "cursors": {
                    cursor: topic.entries - at if topic.loaded else None for cursor, at in topic.cursors.items()
                },
            }
            for local, topic in topics.items()
        }
        policies, bookies = dict(there.policies), {"writable": 3}
        return 200, {"policies": policies, "bookies": bookies, "partitioned": there.partitioned, "topics": shown}

    def _set_policy(self, body: Any, name: str, path: str) -> tuple[int, Any]:
        self.namespaces[name].policies[STORED_AS[path]] = body
        return 204, None

    def _set_quota(self, body: Any, name: str, kind: str) -> tuple[int, Any]:
        self.namespaces[name].policies.setdefault("backlog_quota_map", {})[kind] = body
        return 204, None

    def _grant(self, body: Any, name: str, role: str) -> tuple[int, Any]:
        auth = self.namespaces[name].policies.setdefault("auth_policies", {})
        auth.setdefault("namespace_auth", {})[role] = body
        return 204, None

    def _revoke(self, _: Any, name: str, role: str) -> tuple[int, Any]:
        self.namespaces[name].policies.get("auth_policies", {}).get("namespace_auth", {}).pop(role, None)
        return 204, None

    def _set_admins(self, body: Any, name: str) -> tuple[int, Any]:
        self.namespaces[name].policies.setdefault("auth_policies", {})["quire_admin_roles"] = body
        return 204, None

    def _put_partitions(self, body: Any, name: str, topic: str) -> tuple[int, Any]:
        """Create a partitioned topic; partitions are created at their first use."""
        there = self.namespaces[name]
        if topic in there.topics or topic in there.partitioned:
            return 409, {"reason": "This topic already exists"}
        there.partitioned[topic] = body
        self._make(f"partitioned topic {topic}")
        return 204, None

    def _grow(self, body: Any, name: str, topic: str) -> tuple[int, Any]:
        there = self.namespaces[name]
        if body <= there.partitioned[topic]:
            return 409, {"reason": "they only grow"}
        there.partitioned[topic] = body
        return 204, None

    def _create_missed(self, _: Any, name: str, topic: str) -> tuple[int, Any]:
        for index in range(self.namespaces[name].partitioned.get(topic, 0)):
            self._open(name, f"{topic}-partition-{index}")
        return 204, None

    def _open(self, name: str, local: str) -> SimTopic:
        """Create a topic unless it exists, and load it. A new partition gets the subscriptions of the first one."""
        there = self.namespaces[name]
        if local not in there.topics:
            self._make(f"topic {local}")
            first = there.topics.get(re.sub(r"\d+$", "0", local)) if "-partition-" in local else None
            there.topics[local] = SimTopic(cursors={} if first is None else dict.fromkeys(first.cursors, 0))
        there.topics[local].loaded = True
        return there.topics[local]

    def _put_topic(self, _: Any, name: str, topic: str) -> tuple[int, Any]:
        there = self.namespaces[name]
        if topic in there.topics or topic in there.partitioned:
            return 409, {"reason": "This topic already exists"}
        self._open(name, topic)
        return 204, None

    def _put_cursor(self, body: Any, name: str, topic: str, cursor: str) -> tuple[int, Any]:
        there = self.namespaces[name]
        if topic not in there.topics and topic not in there.partitioned:
            return 404, {"reason": f"Topic {topic} not found"}
        count = there.partitioned.get(topic, 0)
        parts = [self._open(name, f"{topic}-partition-{index}") for index in range(count)] or [self._open(name, topic)]
        if all(cursor in part.cursors for part in parts):
            return 409, {"reason": "Subscription already exists for topic"}
        self._make(f"cursor {topic}/{cursor}")
        for part in parts:
            part.cursors.setdefault(cursor, 0 if body["ledgerId"] < 0 else part.entries)
        return 204, None

    def _stats(self, _: Any, name: str, topic: str) -> tuple[int, Any]:
        if topic not in self.namespaces[name].topics:
            return 404, {"reason": f"Topic {topic} not found"}
        self._open(name, topic)
        return 200, {}


_OF_NAMESPACE = r"/admin/(?:v2/namespaces|quire/namespaces|v2/persistent)/([^/?]+/[^/?]+)"
_ISOLATION = r"/admin/v2/clusters/[^/]+/namespaceIsolationPolicies/([^/]+)"
_TOPIC = rf"{_OF_NAMESPACE}/([^/]+)"
_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", _ISOLATION, SimBrokers._get_isolation),
    ("POST", _ISOLATION, SimBrokers._set_isolation),
    ("DELETE", _ISOLATION, SimBrokers._forget_isolation),
    ("PUT", r"/admin/v2/tenants/([^/]+)", SimBrokers._put_tenant),
    ("PUT", r"/admin/v2/namespaces/([^/]+/[^/]+)", SimBrokers._put_namespace),
    ("DELETE", rf"{_OF_NAMESPACE}\?force=true", SimBrokers._delete_namespace),
    ("GET", _OF_NAMESPACE, SimBrokers._overview),
    ("POST", rf"{_OF_NAMESPACE}/(persistence|retention|messageTTL|offloadPolicies)", SimBrokers._set_policy),
    ("POST", rf"{_OF_NAMESPACE}/backlogQuota\?backlogQuotaType=(\w+)", SimBrokers._set_quota),
    ("POST", rf"{_OF_NAMESPACE}/permissions/([^/]+)", SimBrokers._grant),
    ("DELETE", rf"{_OF_NAMESPACE}/permissions/([^/]+)", SimBrokers._revoke),
    ("POST", rf"{_OF_NAMESPACE}/admins", SimBrokers._set_admins),
    ("PUT", rf"{_TOPIC}/partitions", SimBrokers._put_partitions),
    ("POST", rf"{_TOPIC}/partitions", SimBrokers._grow),
    ("POST", rf"{_TOPIC}/createMissedPartitions", SimBrokers._create_missed),
    ("PUT", _TOPIC, SimBrokers._put_topic),
    ("PUT", rf"{_TOPIC}/subscription/([^/]+)", SimBrokers._put_cursor),
    ("GET", rf"{_TOPIC}/stats", SimBrokers._stats),
)
"""Method, path and handler. Paths of a missing namespace get a 404 before their handler is called."""
