"""What each path asks of a role: the table, and that what nobody thought of is for super users."""

import pytest
from aiohttp import web

from quire_broker.admin import (
    backlog_quotas,
    brokers,
    clusters,
    ledgers,
    namespaces,
    offload,
    overview,
    permissions,
    schemas,
    status,
    subscriptions,
    topics,
)
from quire_broker.admin.access import Need, needed

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/healthz", Need.NOTHING),
        ("GET", "/readyz", Need.NOTHING),
        ("GET", "/metrics", Need.NOTHING),
        ("GET", "/", Need.SUPER_USER),
        ("GET", "/admin/v2/clusters", Need.A_ROLE),
        ("PUT", "/admin/v2/clusters/{cluster}", Need.SUPER_USER),
        ("GET", "/admin/v2/tenants", Need.SUPER_USER),
        ("PUT", "/admin/v2/tenants/{tenant}", Need.SUPER_USER),
        ("GET", "/admin/v2/namespaces/{tenant}", Need.TENANT),
        ("PUT", NAMESPACE, Need.TENANT),
        ("GET", f"{NAMESPACE}/topics", Need.LIST),
        ("DELETE", NAMESPACE, Need.TENANT),
        ("GET", NAMESPACE, Need.NAMESPACE),
        ("POST", f"{NAMESPACE}/permissions/{{role}}", Need.NAMESPACE),
        ("GET", f"{NAMESPACE}/permissions", Need.NAMESPACE),
        ("POST", f"{NAMESPACE}/backlogQuota", Need.NAMESPACE),
        ("GET", f"{NAMESPACE}/offloadPolicies", Need.NAMESPACE),
        ("POST", f"{NAMESPACE}/offloadPolicies", Need.SUPER_USER),
        ("DELETE", f"{NAMESPACE}/removeOffloadPolicies", Need.SUPER_USER),
        ("PUT", f"{NAMESPACE}/offloadThreshold", Need.NAMESPACE),
        ("POST", f"{TOPIC}/offload/begin", Need.NAMESPACE),
        ("GET", "/admin/quire/namespaces/{tenant}/{namespace}", Need.NAMESPACE),
        ("GET", "/admin/quire/namespaces/{tenant}/{namespace}/admins", Need.NAMESPACE),
        ("POST", "/admin/quire/namespaces/{tenant}/{namespace}/admins", Need.TENANT),
        ("GET", "/admin/v2/{domain}/{tenant}/{namespace}", Need.LIST),
        ("PUT", TOPIC, Need.NAMESPACE),
        ("DELETE", TOPIC, Need.NAMESPACE),
        ("GET", f"{TOPIC}/partitions", Need.LOOK_UP),
        ("PUT", f"{TOPIC}/partitions", Need.NAMESPACE),
        ("GET", f"{TOPIC}/stats", Need.LOOK_UP),
        ("GET", f"{TOPIC}/lastMessageId", Need.CONSUME),
        ("POST", f"{TOPIC}/permissions/{{role}}", Need.NAMESPACE),
        ("PUT", f"{TOPIC}/subscription/{{subscription}}", Need.CONSUME),
        ("POST", f"{TOPIC}/subscription/{{subscription}}/skip_all", Need.CONSUME),
        ("POST", f"{TOPIC}/terminate", Need.NAMESPACE),
        ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", Need.LOOK_UP),
        ("GET", "/admin/quire/ledgers/{ledger}", Need.SUPER_USER),
        ("PUT", "/api/v1/quire/drains/{bookie}", Need.SUPER_USER),
        ("GET", "/api/v1/bookie/list_bookies", Need.SUPER_USER),
        ("DELETE", "/admin/quire/ledgers/{ledger}", Need.SUPER_USER),
        ("GET", "/something/new", Need.SUPER_USER),
    ],
)
def test_a_path_asks_of_a_role(method: str, path: str, need: Need) -> None:
    assert needed(method, path) is need


def test_every_route_that_asks_for_a_name_has_it_in_its_path() -> None:
    app = web.Application()
    of_namespaces = (permissions, backlog_quotas, offload, namespaces, overview)
    for part in (brokers, clusters, *of_namespaces, topics, subscriptions, schemas, ledgers, status):
        part.add_routes(app.router)
    names = {
        Need.TENANT: ("tenant",),
        Need.NAMESPACE: ("tenant", "namespace"),
        Need.LIST: ("tenant", "namespace"),
        Need.LOOK_UP: ("tenant", "namespace", "topic"),
        Need.CONSUME: ("tenant", "namespace", "topic"),
    }
    seen = set()
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        need = needed("GET" if route.method == "HEAD" else route.method, path)
        seen.add(need)
        assert all(f"{{{name}}}" in path for name in names.get(need, ())), (route.method, path, need)
    assert seen == set(Need)
