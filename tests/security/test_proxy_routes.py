"""Every route of a proxy, as each kind of client: brokers answer a proxy as they answer no remote client."""

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from quire_bookie.env.clock import SystemClock
from quire_bookie.tokens.checks import SignedTokens, secret_algorithms
from quire_broker.admin.answers import errors_as_json
from quire_broker.proxy.web import admitted, make_app
from quire_broker.security.authentication import Authentication
from quire_broker.security.settings import AccessSettings, AuthenticationSettings
from quire_broker.security.token_provider import TokenProvider
from quire_broker.settings.proxy import ProxyLimits

SECRET = b"s" * 32
LOCAL, REMOTE = "127.0.0.1", "192.0.2.7"
PROBES = {"GET /healthz", "GET /status.html", "GET /readyz", "GET /metrics", "GET /metrics/"}
FORWARDED = {
    f"{method} /{root}/{{path}}" for method in ("GET", "POST", "PUT", "DELETE") for root in ("admin", "lookup")
}


def scene(*, authentication: bool, remote: bool = False) -> web.Application:
    """Return the routes of a proxy with these rules."""
    check = SignedTokens(SECRET, secret_algorithms(), SystemClock())
    wanted = AuthenticationSettings() if authentication else None
    found = Authentication(AuthenticationSettings(), [TokenProvider(check)], SystemClock()) if authentication else None
    proxy: Any = SimpleNamespace(
        access=SimpleNamespace(authentication=found),
        settings=SimpleNamespace(
            access=AccessSettings(authentication=wanted, admin_remote=remote), limits=ProxyLimits()
        ),
        parts=SimpleNamespace(stats=SimpleNamespace(authentications_failed=0)),
    )
    return make_app(cast(Any, proxy))


def routes() -> list[str]:
    """Return method and pattern of each route."""
    found = set()
    for route in scene(authentication=False).router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            found.add(f"{route.method} {route.resource.canonical}")
    return sorted(found)


NAMES = {"{domain}": "persistent", "{version}": "1", "{path}": "v2/any/thing"}
"""Values for the parts of a pattern; `x` for others."""
ROUTES = routes()
CLIENT_READS = {route for route in ROUTES if route not in PROBES | FORWARDED}
"""What stock clients look up: the same paths as at a broker."""


async def status(app: web.Application, route: str, peer: str, token: str | None = None, host: str = "localhost") -> int:
    """Return the status that the rules give; 200 stands for the route's own answer."""
    method, _, pattern = route.partition(" ")
    path = "/".join(NAMES.get(part, "x") if part.startswith("{") else part for part in pattern.split("/"))
    headers = {"Host": host} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    transport = mock.Mock()
    transport.get_extra_info = {"peername": (peer, 1)}.get
    request = make_mocked_request(method, path, headers=headers, transport=transport, app=app)
    found = await app.router.resolve(request)
    found.add_app(app)
    request._match_info = found

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response()

    async def checked(one: web.Request) -> web.StreamResponse:
        return await admitted(one, handler)

    return (await errors_as_json(request, checked)).status


def test_only_reads_of_clients_are_open_besides_probes() -> None:
    assert set(ROUTES) > PROBES | FORWARDED
    assert all(route.startswith("GET /") for route in CLIENT_READS)


@pytest.mark.parametrize("route", ROUTES)
async def test_without_authentication_other_machines_get_probes_and_what_clients_look_up(route: str) -> None:
    app = scene(authentication=False)
    open_to_all = route in PROBES | CLIENT_READS
    assert await status(app, route, REMOTE) == (200 if open_to_all else 403)
    assert await status(app, route, LOCAL) == 200
    assert await status(app, route, LOCAL, host="evil.example") == (200 if route in PROBES else 403)
    assert await status(scene(authentication=False, remote=True), route, REMOTE) == 200


@pytest.mark.parametrize("route", ROUTES)
async def test_with_authentication_every_request_for_a_broker_needs_a_token(route: str) -> None:
    app = scene(authentication=True)
    for peer in (LOCAL, REMOTE):
        refused = 200 if route in PROBES else 401
        assert await status(app, route, peer) == refused
        assert await status(app, route, peer, jwt.encode({"sub": "a"}, b"x" * 32, "HS256")) == refused
        assert await status(app, route, peer, jwt.encode({"sub": "a"}, SECRET, "HS256")) == 200
