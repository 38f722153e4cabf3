"""Every route of a bookie's, of auto-recovery's and of the operator's HTTP port, asked as each kind of client.

A new route fails here until it stands in one of the lists.
"""

from typing import Any
from unittest import mock

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from quire_bookie.admin.access import AdminAccess
from quire_bookie.admin.origin import AllowedHosts
from quire_bookie.admin.recovery_web import RecoveryWeb
from quire_bookie.admin.web import BookieWeb
from quire_bookie.env.clock import SystemClock
from quire_bookie.server.security.roles import CertificateRoles
from quire_bookie.server.security.tokens import TokenAuthentication
from quire_bookie.tokens.checks import SignedTokens, secret_algorithms, secret_of
from quire_operator.monitoring.web import application

OPEN = (
    "GET /api/v1/bookie/is_ready",
    "GET /healthz",
    "GET /heartbeat",
    "GET /metrics",
    "GET /readyz",
)
READS = (
    "GET /admin/quire/ledgers",
    "GET /admin/quire/ledgers/{ledger}",
    "GET /admin/quire/ledgers/{ledger}/check",
    "GET /admin/quire/ledgers/{ledger}/entries",
    "GET /api/v1/autorecovery/list_under_replicated_ledger",
    "GET /api/v1/autorecovery/lost_bookie_recovery_delay",
    "GET /api/v1/autorecovery/status",
    "GET /api/v1/autorecovery/who_is_auditor",
    "GET /api/v1/bookie/cluster_info",
    "GET /api/v1/bookie/gc",
    "GET /api/v1/bookie/gc/fuse",
    "GET /api/v1/bookie/gc/hold",
    "GET /api/v1/bookie/gc/metadata",
    "GET /api/v1/bookie/gc/quarantine",
    "GET /api/v1/bookie/gc/resume_compaction",
    "GET /api/v1/bookie/gc/suspend_compaction",
    "GET /api/v1/bookie/gc_details",
    "GET /api/v1/bookie/info",
    "GET /api/v1/bookie/last_log_mark",
    "GET /api/v1/bookie/list_bookie_info",
    "GET /api/v1/bookie/list_bookies",
    "GET /api/v1/bookie/list_disk_file",
    "GET /api/v1/bookie/load",
    "GET /api/v1/bookie/quarantine",
    "GET /api/v1/bookie/scrub",
    "GET /api/v1/bookie/state",
    "GET /api/v1/bookie/state/readonly",
    "GET /api/v1/config/server_config",
    "GET /api/v1/ledger/list",
    "GET /api/v1/ledger/metadata",
    "GET /api/v1/ledger/read",
    "GET /api/v1/quire/cookie",
    "GET /api/v1/quire/drains",
    "GET /api/v1/quire/drains/{bookie}",
    "GET /api/v1/quire/holdings",
    "GET /api/v1/quire/holdings/{ledger}",
    "GET /api/v1/quire/narrow-ledgers",
    "GET /api/v1/quire/places",
    "GET /api/v1/quire/under-replication",
    "GET /api/v1/quire/unrecoverable",
)
CHANGES = (
    "DELETE /admin/quire/ledgers/{ledger}",
    "PUT /admin/quire/ledgers/{ledger}/recover",
    "PUT /api/v1/autorecovery/decommission",
    "PUT /api/v1/autorecovery/lost_bookie_recovery_delay",
    "PUT /api/v1/autorecovery/status",
    "PUT /api/v1/autorecovery/trigger_audit",
    "PUT /api/v1/bookie/expand_storage",
    "PUT /api/v1/bookie/gc",
    "PUT /api/v1/bookie/gc/fuse",
    "PUT /api/v1/bookie/gc/hold",
    "PUT /api/v1/bookie/gc/resume_compaction",
    "PUT /api/v1/bookie/gc/suspend_compaction",
    "PUT /api/v1/bookie/gc/undelete",
    "GET /api/v1/bookie/sanity",
    "PUT /api/v1/bookie/state/readonly",
    "PUT /api/v1/config/server_config",
    "DELETE /api/v1/ledger/delete",
    "DELETE /api/v1/quire/drains/{bookie}",
    "PUT /api/v1/quire/drains/{bookie}",
    "PUT /api/v1/quire/limbo/end",
    "PUT /api/v1/quire/unrecoverable/accept",
)
OF_THE_OPERATOR = ("GET /healthz", "GET /metrics", "GET /readyz")
"""Routes open to all clients: they reveal no secret and change nothing."""
SECRET = b"s" * 32
LOCAL, MAPPED, REMOTE = "127.0.0.1", "::ffff:127.0.0.1", "192.0.2.7"


def routes_of(app: web.Application) -> list[str]:
    """Return method and pattern of each route."""
    found = []
    for route in app.router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            found.append(f"{route.method} {route.resource.canonical}")
    return found


NOTHING: Any = None
APPS = (
    BookieWeb(NOTHING, NOTHING, {}, clock=NOTHING, chance=NOTHING).app,
    RecoveryWeb(NOTHING, NOTHING, NOTHING).app,
)


def all_routes() -> list[str]:
    """Return the routes of both processes."""
    return sorted({route for app in APPS for route in routes_of(app)})


async def asked(route: str, headers: dict[str, str], transport: mock.Mock) -> web.Request:
    """Return a request for a route, as the application that serves it passes it on."""
    method, _, pattern = route.partition(" ")
    path = pattern.replace("{ledger}", "1").replace("{bookie}", "b")
    for app in APPS:
        request = make_mocked_request(method, path, headers=headers, transport=transport, app=app)
        found = await app.router.resolve(request)
        found.add_app(app)
        request._match_info = found
        if found.route.resource is not None:
            assert found.route.resource.canonical == pattern, "the path leads to this route"
            break
    return request


def token(role: str, secret: bytes = SECRET) -> str:
    """Return a signed token of the role."""
    return jwt.encode({"sub": role}, secret, "HS256")


def with_tokens(**changes: Any) -> AdminAccess:
    """Return rules with which `reader` and `admin` may connect, and only `admin` may change state."""
    check = SignedTokens(secret_of(SECRET), secret_algorithms(), SystemClock(), "sub", "aud", "")
    return AdminAccess(TokenAuthentication(check, ("reader", "admin")), admins=("admin",), **changes)


def certificate(role: str) -> dict[str, Any]:
    """Return a client's certificate in the form of the ssl module."""
    return {"subject": ((("organizationalUnitName", f"0:{role}"),),)}


async def status(
    access: AdminAccess,
    route: str,
    shown: str | None = None,
    peer: str = REMOTE,
    header: str = "Authorization",
    host: str = "localhost",
    peercert: dict[str, Any] | None = None,
) -> int:
    """Return the status from the rules; 200 stands for the route's own response."""
    headers = {"Host": host} | ({} if shown is None else {header: f"Bearer {shown}"})
    transport = mock.Mock()
    transport.get_extra_info = {"peername": (peer, 1), "peercert": peercert}.get
    request = await asked(route, headers, transport)

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response()

    middleware: Any = access.middleware()
    answer: web.StreamResponse = await middleware(request, handler)
    return answer.status


def test_each_route_says_whether_it_is_open_reads_or_changes() -> None:
    assert all_routes() == sorted([*OPEN, *READS, *CHANGES])


@pytest.mark.parametrize("route", all_routes())
async def test_with_tokens_a_route_needs_one_and_a_change_needs_an_admin(route: str) -> None:
    access = with_tokens()
    if route in OPEN:
        assert await status(access, route) == 200
        return
    for peer in (LOCAL, REMOTE):
        assert await status(access, route, peer=peer) == 401
        assert await status(access, route, token("admin", b"x" * 32), peer) == 401
        assert await status(access, route, token("stranger"), peer) == 401
        assert await status(access, route, token("reader"), peer) == (403 if route in CHANGES else 200)
        assert await status(access, route, token("admin"), peer) == 200


@pytest.mark.parametrize("route", all_routes())
async def test_without_authentication_other_machines_get_probes_and_metrics(route: str) -> None:
    assert await status(AdminAccess(), route, peer=REMOTE) == (200 if route in OPEN else 403)
    assert await status(AdminAccess(), route, peer="fe80::1%eth0") == (200 if route in OPEN else 403)
    for peer in (LOCAL, MAPPED, "::1"):
        assert await status(AdminAccess(), route, peer=peer) == 200
    assert await status(AdminAccess(remote=True), route, peer=REMOTE) == 200


@pytest.mark.parametrize("route", all_routes())
async def test_with_roles_of_certificates_a_change_needs_an_admin(route: str) -> None:
    access = AdminAccess(CertificateRoles(("reader", "admin")), admins=("admin",))
    for peer in (LOCAL, REMOTE):
        shown = {
            role: await status(access, route, peer=peer, peercert=certificate(role)) for role in ("reader", "admin")
        }
        assert shown == {"reader": 403 if route in CHANGES else 200, "admin": 200}
    for unproved in (None, certificate("stranger")):
        assert await status(access, route, peercert=unproved) == (200 if route in OPEN else 403)
        assert await status(access, route, token("admin"), peercert=unproved) == (200 if route in OPEN else 403)


async def test_head_needs_what_get_needs() -> None:
    assert await status(with_tokens(), "HEAD /healthz") == 200
    assert await status(with_tokens(), "HEAD /api/v1/bookie/state") == 401
    assert await status(with_tokens(), "HEAD /api/v1/bookie/sanity", token("reader")) == 403


async def test_a_path_without_a_route_is_refused_to_clients_without_a_role() -> None:
    assert await status(with_tokens(), "GET /api/v1/nothing") == 401
    assert await status(AdminAccess(), "GET /api/v1/nothing", peer=REMOTE) == 403


def test_the_operator_serves_only_probes_and_metrics() -> None:
    health: Any = mock.Mock()
    assert sorted(routes_of(application(health))) == sorted(OF_THE_OPERATOR)


async def test_metrics_may_need_a_token_and_probes_never_do() -> None:
    access = with_tokens(metrics_need_role=True)
    assert await status(access, "GET /metrics") == 401
    assert await status(access, "GET /metrics", token("reader")) == 200
    assert await status(access, "GET /healthz") == 200


@pytest.mark.parametrize("route", CHANGES)
async def test_without_roles_that_may_change_anything_no_token_does(route: str) -> None:
    rules = with_tokens()
    access = AdminAccess(rules.provider, admins=())
    for role in ("reader", "admin"):
        assert await status(access, route, token(role), LOCAL) == 403


async def test_a_token_behind_the_proxy_of_an_api_server_comes_in_a_header_of_its_own() -> None:
    access, route = with_tokens(), "PUT /api/v1/bookie/gc"
    assert await status(access, route, token("admin"), header="Quire-Authorization") == 200
    assert await status(access, route, token("reader"), header="Quire-Authorization") == 403
    assert await status(access, route, token("admin"), header="Other") == 401


@pytest.mark.parametrize("route", all_routes())
async def test_without_tokens_a_route_is_not_asked_by_the_name_of_another_site(route: str) -> None:
    for access in (AdminAccess(), AdminAccess(remote=True), AdminAccess(CertificateRoles(("admin",)))):
        assert await status(access, route, peer=LOCAL, host="evil.example") == (200 if route in OPEN else 403)
    named = AdminAccess(hosts=AllowedHosts(("evil.example",)))
    assert await status(named, route, peer=LOCAL, host="evil.example") == 200
    assert await status(with_tokens(), route, token("admin"), host="any.example") == 200
