"""Every route of a broker's HTTP port, asked as each kind of client.

A new route fails here until it stands in one of the lists.
"""

import random
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from quire_bookie.env.clock import SystemClock
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.tokens.checks import SignedTokens, secret_algorithms, secret_of
from quire_broker.admin.access import authorized
from quire_broker.admin.answers import errors_as_json
from quire_broker.admin.cluster_paths import cluster_routes
from quire_broker.admin.web import make_app
from quire_broker.names import NamespaceName
from quire_broker.policies.store import PolicyStore
from quire_broker.security.authentication import Authentication
from quire_broker.security.authorization import Authorization
from quire_broker.security.settings import AccessSettings, AuthenticationSettings
from quire_broker.security.token_provider import TokenProvider
from quire_broker.settings.console import ConsoleSettings
from quire_broker.settings.websocket import WebSocketSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore

OPEN = (
    "GET /console",
    "GET /console/",
    "GET /console/{file}",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /metrics/",
)
"""Routes open without a token, from any address."""
PROBES = (
    "GET /admin/brokers/health",
    "GET /admin/brokers/ready",
    "GET /admin/v2/brokers/health",
    "GET /admin/v2/brokers/ready",
)
"""Pulsar's routes for super users, if authentication is on; as in Pulsar."""
CLIENT_READS = (
    "GET /admin/v2/namespaces/{tenant}/{namespace}/topics",
    "GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
    "GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}",
    "GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions",
    "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
    "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle",
)
"""Routes that stock clients with an http:// service URL use."""
READS = (
    "GET /",
    "GET /admin/broker-stats/allocator-stats/{allocator}",
    "GET /admin/broker-stats/load-report",
    "GET /admin/broker-stats/mbeans",
    "GET /admin/broker-stats/metrics",
    "GET /admin/broker-stats/topics",
    "GET /admin/brokers",
    "GET /admin/brokers/backlog-quota-check",
    "GET /admin/brokers/configuration",
    "GET /admin/brokers/configuration/runtime",
    "GET /admin/brokers/configuration/values",
    "GET /admin/brokers/internal-configuration",
    "GET /admin/brokers/leaderBroker",
    "GET /admin/brokers/version",
    "GET /admin/brokers/{cluster}",
    "GET /admin/brokers/{cluster}/{broker}/ownedNamespaces",
    "GET /admin/namespaces/{tenant}/{cluster}",
    "GET /admin/openapi.json",
    "GET /admin/quire/balancing",
    "GET /admin/quire/drain",
    "GET /admin/quire/ledgers",
    "GET /admin/quire/ledgers/{ledger}",
    "GET /admin/quire/ledgers/{ledger}/check",
    "GET /admin/quire/ledgers/{ledger}/entries",
    "GET /admin/quire/live",
    "GET /admin/quire/live/{tenant}/{namespace}",
    "GET /admin/quire/metadata/children",
    "GET /admin/quire/metadata/nodes",
    "GET /admin/quire/metadata/scan",
    "GET /admin/quire/namespaces/{tenant}/{namespace}",
    "GET /admin/quire/namespaces/{tenant}/{namespace}/admins",
    "GET /admin/quire/policies/{domain}/{tenant}/{namespace}/{topic}",
    "GET /admin/quire/policies/{tenant}/{namespace}",
    "GET /admin/quire/rates",
    "GET /admin/quire/rates/{domain}/{tenant}/{namespace}/{topic}",
    "GET /admin/quire/rates/{tenant}/{namespace}",
    "GET /admin/quire/stats",
    "GET /admin/quire/topics",
    "GET /admin/quire/topics/{domain}/{tenant}/{namespace}/{topic}/messages",
    "GET /admin/quire/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/peek",
    "GET /admin/v2/bookies/all",
    "GET /admin/v2/bookies/racks-info",
    "GET /admin/v2/bookies/racks-info/{bookie}",
    "GET /admin/v2/broker-stats/allocator-stats/{allocator}",
    "GET /admin/v2/broker-stats/load-report",
    "GET /admin/v2/broker-stats/mbeans",
    "GET /admin/v2/broker-stats/metrics",
    "GET /admin/v2/broker-stats/topics",
    "GET /admin/v2/brokers",
    "GET /admin/v2/brokers/backlog-quota-check",
    "GET /admin/v2/brokers/configuration",
    "GET /admin/v2/brokers/configuration/runtime",
    "GET /admin/v2/brokers/configuration/values",
    "GET /admin/v2/brokers/internal-configuration",
    "GET /admin/v2/brokers/leaderBroker",
    "GET /admin/v2/brokers/version",
    "GET /admin/v2/brokers/{cluster}",
    "GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
    "GET /admin/v2/clusters",
    "GET /admin/v2/clusters/{cluster}",
    "GET /admin/v2/clusters/{cluster}/failureDomains",
    "GET /admin/v2/clusters/{cluster}/failureDomains/{domain}",
    "GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies",
    "GET /admin/v2/clusters/{cluster}/migrate",
    "GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers",
    "GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}",
    "GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}",
    "GET /admin/v2/clusters/{cluster}/peers",
    "GET /admin/namespaces/{cluster}/antiAffinity/{group}",
    "GET /admin/v2/namespaces/{cluster}/antiAffinity/{group}",
    "GET /admin/v2/namespaces/{tenant}",
    "GET /admin/v2/namespaces/{tenant}/{namespace}",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/antiAffinity",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/backlogQuotaMap",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/bundles",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/offloadPolicies",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/permissions",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/property/{key}",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/{policy}",
    "GET /admin/v2/non-persistent/{tenant}/{namespace}/{bundle}",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/persistence/bookieAffinity",
    "GET /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup",
    "GET /admin/v2/resource-quotas",
    "GET /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}",
    "GET /admin/v2/resourcegroups",
    "GET /admin/v2/resourcegroups/{group}",
    "GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/metadata",
    "GET /admin/v2/tenants",
    "GET /admin/v2/tenants/{tenant}",
    "GET /admin/v2/{domain}/{tenant}/{namespace}",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogQuotaMap",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/compaction",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/examinemessage",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/getMessageIdByIndex",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/internal-info",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/internalStats",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/lastMessageId",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/ledger/{ledger}/entry/{entry}",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/messageid/{time_ms}",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offload",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitioned-internalStats",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitioned-stats",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/properties",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/shadowTopics",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/position/{count}",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/properties",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscriptions",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{policy}",
    "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{subscription}/dispatchRate",
    "GET /api/v1/autorecovery/list_under_replicated_ledger",
    "GET /api/v1/autorecovery/lost_bookie_recovery_delay",
    "GET /api/v1/autorecovery/status",
    "GET /api/v1/autorecovery/who_is_auditor",
    "GET /api/v1/bookie/cluster_info",
    "GET /api/v1/bookie/list_bookie_info",
    "GET /api/v1/bookie/list_bookies",
    "GET /api/v1/quire/drains",
    "GET /api/v1/quire/drains/{bookie}",
    "GET /api/v1/quire/narrow-ledgers",
    "GET /api/v1/quire/places",
    "GET /api/v1/quire/under-replication",
    "GET /api/v1/quire/unrecoverable",
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility",
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/version",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/analyzeBacklog",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogSize",
)
CHANGES = (
    "DELETE /admin/brokers/configuration/{name}",
    "DELETE /admin/quire/ledgers/{ledger}",
    "DELETE /admin/v2/bookies/racks-info/{bookie}",
    "DELETE /admin/v2/brokers/configuration/{name}",
    "DELETE /admin/v2/clusters/{cluster}",
    "DELETE /admin/v2/clusters/{cluster}/failureDomains/{domain}",
    "DELETE /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/antiAffinity",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/backlogQuota",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription/{subscription}/{role}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/permissions/{subscription}/{role}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/properties",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/property/{key}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/removeOffloadPolicies",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/{policy}",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/persistence/bookieAffinity",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup",
    "DELETE /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}",
    "DELETE /admin/v2/resourcegroups/{group}",
    "DELETE /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
    "DELETE /admin/v2/tenants/{tenant}",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogQuota",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offloadPolicies",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions/{role}",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/policies",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/properties",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/shadowTopics",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/truncate",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{policy}",
    "DELETE /api/v1/quire/drains/{bookie}",
    "POST /admin/brokers/configuration/{name}/{value}",
    "POST /admin/quire/balancing",
    "POST /admin/quire/namespaces/{tenant}/{namespace}/admins",
    "POST /admin/v2/bookies/racks-info/{bookie}",
    "POST /admin/v2/brokers/configuration/{name}/{value}",
    "POST /admin/v2/clusters/{cluster}",
    "POST /admin/v2/clusters/{cluster}/failureDomains/{domain}",
    "POST /admin/v2/clusters/{cluster}/migrate",
    "POST /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}",
    "POST /admin/v2/clusters/{cluster}/peers",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/antiAffinity",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/backlogQuota",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/clearBacklog",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/clearBacklog/{subscription}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/migration",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/offloadPolicies",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/permissions/subscription/{subscription}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/unsubscribe/{subscription}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog/{subscription}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unsubscribe/{subscription}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/{policy}",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/persistence/bookieAffinity",
    "POST /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup/{group}",
    "POST /admin/v2/resource-quotas",
    "POST /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}",
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
    "POST /admin/v2/tenants/{tenant}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/all_subscription/expireMessages/{seconds}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/backlogQuota",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/createMissedPartitions",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/compaction/ledger",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offload/abort",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offload/begin",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offload/complete",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offloadPolicies",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/permissions/{role}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/terminate",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/terminate/partitions",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/trim",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{policy}",
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{subscription}/dispatchRate",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{subscription}/dispatchRate",
    "PUT /admin/quire/drain",
    "PUT /admin/quire/ledgers/{ledger}/recover",
    "PUT /admin/v2/clusters/{cluster}",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/property/{key}/{value}",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/unload",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/{policy}",
    "PUT /admin/v2/resourcegroups/{group}",
    "PUT /admin/v2/tenants/{tenant}",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/compaction",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offload",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/offloadPolicies",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/properties",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/shadowTopics",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/unload",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/{policy}",
    "PUT /api/v1/autorecovery/decommission",
    "PUT /api/v1/autorecovery/lost_bookie_recovery_delay",
    "PUT /api/v1/autorecovery/status",
    "PUT /api/v1/autorecovery/trigger_audit",
    "PUT /api/v1/quire/drains/{bookie}",
    "PUT /api/v1/quire/unrecoverable/accept",
)
CONSUMER_CHANGES = (
    "DELETE /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/expireMessages/{seconds}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/replicatedSubscriptionStatus",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor/{time_ms}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip/{count}",
    "POST /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}",
    "PUT /admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/properties",
)
"""A role that consumes changes its own subscriptions."""
PRODUCER_CHANGES = ("POST /admin/quire/topics/{domain}/{tenant}/{namespace}/{topic}/messages",)
"""A role that produces publishes messages; one that consumes does not."""
UNSERVED = tuple(
    f"{method} /admin/{{api}}/{{part}}{rest}" for method in ("DELETE", "GET", "POST", "PUT") for rest in ("", "/{rest}")
)
"""Parts of Pulsar that are not part of Quire: every role gets the reason."""
SOCKETS = (
    "GET /ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}",
    "GET /ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}",
    "GET /ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}",
    "GET /ws/v3/consumer/{subscription}",
    "GET /ws/{rest}",
)
"""WebSockets, which any machine may open, as it may connect to the port of the Pulsar protocol."""
ANY_ROLE = (
    "GET /ws/v3/consumer/{subscription}",  # the brokers check the permission for each of its topics
    "GET /ws/{rest}",
    "GET /admin/openapi.json",
    "GET /admin/brokers/version",
    "GET /admin/v2/brokers/version",
    "GET /admin/v2/clusters",
    *UNSERVED,
)
SECRET = b"s" * 32
LOCAL, MAPPED, REMOTE = "127.0.0.1", "::ffff:127.0.0.1", "192.0.2.7"
NAMES = {
    "domain": "persistent",
    "api": "v3",
    "part": "sinks",
    "tenant": "acme",
    "namespace": "orders",
    "topic": "one",
    "bundle": "0x00000000_0xffffffff",
    "policy": "retention",
    "ledger": "7",
    "time_ms": "0",
    "count": "1",
    "seconds": "1",
    "version": "0",
}
"""Values for the parts of a pattern; `x` for others."""


def token(role: str, secret: bytes = SECRET) -> str:
    """Return a signed token of the role."""
    return jwt.encode({"sub": role}, secret, "HS256")


class Asked:
    """The routes of a broker and of a standalone, behind the rules of `access`."""

    def __init__(self, *, authentication: bool, remote: bool = False, hosts: tuple[str, ...] = ()) -> None:
        nothing: Any = None
        wanted = AuthenticationSettings() if authentication else None
        settings = AccessSettings(authentication=wanted, admin_remote=remote, allowed_hosts=hosts)
        check = SignedTokens(secret_of(SECRET), secret_algorithms(), SystemClock(), "sub", "aud", "")
        self.policies = PolicyStore(SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0))), "c1")
        broker = SimpleNamespace(
            access=SimpleNamespace(
                settings=settings,
                authentication=Authentication(AuthenticationSettings(), [TokenProvider(check)], SystemClock())
                if authentication
                else None,
            ),
            authorization=Authorization(self.policies, frozenset({"root", "gate"}), frozenset({"gate", "weak"}))
            if authentication
            else None,
            parts=SimpleNamespace(stats=SimpleNamespace(authentications_failed=0), slow=SlowLog()),
            settings=SimpleNamespace(console=ConsoleSettings(), websocket=WebSocketSettings()),
            topics=SimpleNamespace(changed=set),
            more_routes=lambda: cluster_routes(nothing, nothing, nothing),
        )
        self.app = make_app(cast(Any, broker))

    async def prepare(self) -> None:
        """A tenant and a namespace with an admin each, a reader and a writer, and a tenant with an admin of its own."""
        await self.policies.create_tenant("acme", {"adminRoles": ["boss"], "allowedClusters": ["c1"]})
        await self.policies.create_tenant("other", {"adminRoles": ["foreign"], "allowedClusters": ["c1"]})
        grants = {"namespace_auth": {"reader": ["consume"], "writer": ["produce"]}, "quire_admin_roles": ["keeper"]}
        await self.policies.create_namespace(NamespaceName("acme", "orders"), {"auth_policies": grants})

    def routes(self) -> list[str]:
        """Return method and pattern of each route."""
        found = set()
        for route in self.app.router.routes():
            assert route.resource is not None
            if route.method != "HEAD":
                found.add(f"{route.method} {route.resource.canonical}")
        return sorted(found)

    async def ask(
        self,
        route: str,
        shown: str | None = None,
        peer: str = REMOTE,
        method: str = "",
        host: str = "localhost",
        original: str = "",
        origin: str = "",
    ) -> web.StreamResponse:
        """Return the answer of the rules; 200 stands for the route's own answer."""
        own_method, _, pattern = route.partition(" ")
        path = "/".join(NAMES.get(part[1:-1], "x") if part.startswith("{") else part for part in pattern.split("/"))
        headers = {"Host": host} | ({} if shown is None else {"Authorization": f"Bearer {shown}"})
        if original:
            headers["X-Original-Principal"] = original
        if origin:
            headers["Origin"] = origin
        transport = mock.Mock()
        transport.get_extra_info = {"peername": (peer, 1)}.get
        request = make_mocked_request(method or own_method, path, headers=headers, transport=transport, app=self.app)
        found = await self.app.router.resolve(request)
        found.add_app(self.app)
        request._match_info = found
        if not method:
            assert found.route.resource is not None
            assert found.route.resource.canonical == pattern, "the path leads to this route"

        async def handler(_: web.Request) -> web.StreamResponse:
            return web.Response()

        async def checked(one: web.Request) -> web.StreamResponse:
            return await authorized(one, handler)

        return await errors_as_json(request, checked)

    async def status(self, route: str, shown: str | None = None, peer: str = REMOTE, method: str = "") -> int:
        """Return only the status."""
        return (await self.ask(route, shown, peer, method)).status


ROUTES = Asked(authentication=False).routes()


def test_each_route_is_in_one_list() -> None:
    assert (
        sorted(
            [*OPEN, *PROBES, *CLIENT_READS, *READS, *CHANGES, *CONSUMER_CHANGES, *PRODUCER_CHANGES, *UNSERVED, *SOCKETS]
        )
        == ROUTES
    )


@pytest.mark.parametrize("route", ROUTES)
async def test_without_authentication_other_machines_get_probes_metrics_and_what_clients_look_up(route: str) -> None:
    asked = Asked(authentication=False)
    expected = 200 if route in (*OPEN, *PROBES, *CLIENT_READS, *SOCKETS) else 403
    assert await asked.status(route, peer=REMOTE) == expected
    assert await asked.status(route, peer="fe80::1%eth0") == expected
    if route.startswith("GET "):
        assert await asked.status(route, peer=REMOTE, method="HEAD") == expected
    for peer in (LOCAL, MAPPED, "::1"):
        assert await asked.status(route, peer=peer) == 200
    assert await Asked(authentication=False, remote=True).status(route, peer=REMOTE) == 200


async def test_the_refusal_names_the_setting() -> None:
    asked = Asked(authentication=False)
    refused = await asked.ask("DELETE /admin/v2/tenants/{tenant}")
    assert isinstance(refused, web.Response) and refused.text is not None
    assert "httpServerAdminRemote=true" in refused.text and "token authentication" in refused.text


@pytest.mark.parametrize("route", ROUTES)
async def test_with_authentication_a_route_needs_a_token_of_a_role_that_may(route: str) -> None:
    asked = Asked(authentication=True)
    await asked.prepare()
    if route in OPEN:
        assert await asked.status(route) == 200
        return
    for peer in (LOCAL, REMOTE):
        assert await asked.status(route, peer=peer) == 401
        assert await asked.status(route, token("root", b"x" * 32), peer) == 401
        assert await asked.status(route, token("root"), peer) == 200
        stranger = await asked.status(route, token("stranger"), peer)
        assert stranger == (200 if route in ANY_ROLE else 403)
        if route in (*CHANGES, *CONSUMER_CHANGES, *PRODUCER_CHANGES):
            reader = await asked.status(route, token("reader"), peer)
            assert reader == (200 if route in CONSUMER_CHANGES else 403)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_proxy_gets_what_it_and_its_client_may_both_do(route: str) -> None:
    asked = Asked(authentication=True)
    await asked.prepare()
    if route in OPEN:
        return
    for role in ("stranger", "reader", "keeper", "root"):
        own = await asked.status(route, token(role))
        assert (await asked.ask(route, token("gate"), original=role)).status == own
        weak = (await asked.ask(route, token("weak"), original=role)).status
        assert weak == await asked.status(route, token("stranger"))
        assert (await asked.ask(route, token(role), original=role)).status == own, "as stock proxies repeat the name"
    for shown, original in (("gate", ""), ("gate", "weak"), ("boss", "root"), ("stranger", "root")):
        assert (await asked.ask(route, token(shown), original=original)).status == 403


@pytest.mark.parametrize("route", ROUTES)
async def test_no_role_gets_more_of_a_route_than_its_place_allows(route: str) -> None:
    asked = Asked(authentication=True)
    await asked.prepare()
    roles = ("stranger", "foreign", "writer", "reader", "keeper", "boss", "root")
    may = {role: await asked.status(route, token(role)) == 200 for role in roles}
    assert may["root"]
    assert may["foreign"] == may["stranger"], "an admin of another tenant has no rights here"
    assert may["stranger"] <= may["writer"] <= may["keeper"] <= may["boss"]
    assert may["reader"] <= may["keeper"]
    if route in PRODUCER_CHANGES:
        assert may["writer"] and not may["reader"]
    if "{namespace}" not in route:
        assert may["keeper"] == may["stranger"], "an admin of a namespace has none of its tenant or cluster"
    if "{tenant}" not in route:
        assert may["boss"] == may["stranger"], "an admin of a tenant has none of the cluster"
    if route in (*CHANGES, *CONSUMER_CHANGES):
        assert not may["writer"]


async def test_the_setting_opens_nothing_where_roles_are_asked_for() -> None:
    asked = Asked(authentication=True, remote=True)
    await asked.prepare()
    assert await asked.status("GET /admin/v2/tenants") == 401
    assert await asked.status("DELETE /admin/v2/tenants/{tenant}", token("stranger"), LOCAL) == 403


@pytest.mark.parametrize("route", ROUTES)
async def test_without_authentication_a_route_is_not_asked_by_the_name_of_another_site(route: str) -> None:
    asked, host = Asked(authentication=False, remote=True), "evil.example"
    here = (await asked.ask(route, peer=LOCAL, host=host)).status
    assert here == (200 if route in (*OPEN, *PROBES) else 403)
    away = (await asked.ask(route, peer=REMOTE, host=host)).status
    assert away == (200 if route in (*OPEN, *PROBES, *CLIENT_READS, *SOCKETS) else 403)
    if route in SOCKETS:
        page = await asked.ask(route, peer=REMOTE, host=host, origin=f"http://{host}")
        assert page.status == 403, "a browser sends the origin of its page"
    named = Asked(authentication=False, hosts=("evil.example",))
    assert (await named.ask(route, peer=LOCAL, host=host)).status == 200
    secured = Asked(authentication=True)
    await secured.prepare()
    assert (await secured.ask(route, token("root"), host=host)).status == 200
