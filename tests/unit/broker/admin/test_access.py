"""The permission of each route. Paths without a route are for super users: see `tests/security`."""

import pytest
from aiohttp import web

from quire_bookie.admin.routes import register
from quire_broker.admin.routes import ROUTES, Need, Reach
from quire_broker.admin.web import all_routes

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"


@pytest.fixture(scope="module")
def app() -> web.Application:
    found = web.Application()
    register(found, ROUTES, all_routes())
    return found


def resource_of(route: web.AbstractRoute) -> str:
    assert route.resource is not None
    return route.resource.canonical


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
        ("PUT", f"{NAMESPACE}/{{policy}}", Need.NAMESPACE),
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
        ("GET", "/console/", Need.NOTHING),
        ("GET", "/admin/quire/live", Need.SUPER_USER),
        ("GET", "/admin/quire/live/{tenant}/{namespace}", Need.NAMESPACE),
        ("GET", "/admin/quire/policies/{tenant}/{namespace}", Need.NAMESPACE),
        ("GET", "/admin/quire/policies/{domain}/{tenant}/{namespace}/{topic}", Need.NAMESPACE),
        ("GET", "/admin/quire/rates", Need.SUPER_USER),
        ("GET", "/admin/quire/rates/{tenant}/{namespace}", Need.NAMESPACE),
        ("GET", "/admin/quire/rates/{domain}/{tenant}/{namespace}/{topic}", Need.LOOK_UP),
        ("GET", "/admin/quire/topics/{domain}/{tenant}/{namespace}/{topic}/messages", Need.CONSUME),
        ("POST", "/admin/quire/topics/{domain}/{tenant}/{namespace}/{topic}/messages", Need.PRODUCE),
    ],
)
def test_a_route_requires_a_right(method: str, path: str, need: Need, app: web.Application) -> None:
    found = {(known.method, resource_of(known)): route.need for known, route in app[ROUTES].items()}
    assert found[method, path] is need


def test_every_route_whose_right_is_for_a_name_has_it_in_its_path(app: web.Application) -> None:
    names = {
        Need.TENANT: ("tenant",),
        Need.NAMESPACE: ("tenant", "namespace"),
        Need.LIST: ("tenant", "namespace"),
        Need.LOOK_UP: ("tenant", "namespace", "topic"),
        Need.CONSUME: ("tenant", "namespace", "topic"),
        Need.PRODUCE: ("tenant", "namespace", "topic"),
    }
    assert set(app.router.routes()) == app[ROUTES].keys()
    for route in app[ROUTES].values():
        assert all(f"{{{name}" in route.path for name in names.get(route.need, ())), route
    assert {route.need for route in app[ROUTES].values()} == set(Need)


def test_head_requires_what_get_requires(app: web.Application) -> None:
    of_get = {resource_of(known): route for known, route in app[ROUTES].items() if known.method == "GET"}
    of_head = {resource_of(known): route for known, route in app[ROUTES].items() if known.method == "HEAD"}
    assert of_get == of_head


def test_only_reads_reach_a_broker_without_authentication_from_other_machines(app: web.Application) -> None:
    assert {route.method for route in app[ROUTES].values() if route.reach is not Reach.LOCAL} == {"GET"}
