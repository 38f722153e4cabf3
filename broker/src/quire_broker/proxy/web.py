"""Owns the HTTP server of a proxy: probes and metrics of its own, and requests for brokers, which it forwards.

/healthz and /status.html   the process serves
/readyz                     503 while no broker is known, and while the proxy is being stopped
/metrics                    metrics of the proxy
/admin/..., /lookup/...     forwarded to a broker, which checks the permissions of the client's role
/ws/...                     WebSockets, joined with one of a broker, which checks the same
"""

import logging
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web

from quire_bookie.admin.origin import (
    AllowedHosts,
    from_no_other_site,
    is_local,
    refusal_of_origin,
)
from quire_bookie.admin.routes import register, route_of
from quire_bookie.admin.scraping import measure_stalls, scraped
from quire_bookie.exposition.rendering import Exposition
from quire_broker.admin.access import CLIENT, client_of
from quire_broker.admin.answers import errors_as_json
from quire_broker.admin.routes import ROUTES, Need, Reach, Route
from quire_broker.admin.web import all_routes
from quire_broker.errors import AuthorizationError
from quire_broker.proxy.collector import ProxyCollector
from quire_broker.proxy.forwarding import BrokerHttp
from quire_broker.proxy.proxy import RunningProxy
from quire_broker.proxy.sockets import BrokerSockets

log = logging.getLogger("quire.proxy")
PROXY: web.AppKey[RunningProxy] = web.AppKey("proxy", RunningProxy)
BROKERS: web.AppKey[BrokerHttp] = web.AppKey("brokers", BrokerHttp)
SOCKETS: web.AppKey[BrokerSockets] = web.AppKey("sockets", BrokerSockets)
EXPOSITION: web.AppKey[Exposition] = web.AppKey("exposition", Exposition)
METHODS = ("GET", "POST", "PUT", "DELETE")


def routes() -> Iterator[Route]:
    """Yield the routes of a proxy. Of two that match a path, the first one serves it."""
    yield Route("GET", "/healthz", healthz, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/status.html", healthz, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/readyz", readyz, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/metrics", metrics, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/metrics/", metrics, Need.NOTHING, Reach.PROBE)
    for one in all_routes():
        if one.reach is Reach.CLIENTS:
            yield Route(one.method, one.path, forward, Need.A_ROLE, Reach.CLIENTS)
    for method in METHODS:
        yield Route(method, "/admin/{path:.*}", forward, Need.A_ROLE)
        yield Route(method, "/lookup/{path:.*}", forward, Need.A_ROLE)
    yield Route("GET", "/ws/{path:.*}", join, Need.A_ROLE, Reach.SOCKETS)


async def healthz(_: web.Request) -> web.Response:
    """Return 200: the process serves."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """Return 200, or 503 with the reason for which clients should use another proxy."""
    proxy = request.app[PROXY]
    down = proxy.parts.background.down
    reason = proxy.not_ready or (f"failed and started again: {', '.join(sorted(down))}; see the log" if down else "")
    return web.Response(status=503, text=f"{reason}\n") if reason else web.Response(text="ok\n")


async def metrics(request: web.Request) -> web.Response:
    """Return the metrics of this proxy."""
    return await scraped(request.app[EXPOSITION], request)


async def forward(request: web.Request) -> web.StreamResponse:
    """Forward a request to a broker."""
    return await request.app[BROKERS].forward(request, request.get(CLIENT))


async def join(request: web.Request) -> web.StreamResponse:
    """Join a WebSocket with one of a broker."""
    return await request.app[SOCKETS].join(request, request.get(CLIENT))


@web.middleware
async def admitted(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer 401 to a client without a role. Without authentication, see `quire_broker.admin.access`: brokers on the
    machine of the proxy would take its requests for those of a local client, so that it checks this itself.
    """
    proxy = request.app[PROXY]
    authentication, settings = proxy.access.authentication, proxy.settings.access
    route = route_of(request, ROUTES)
    reach = Reach.LOCAL if route is None else route.reach
    if route is None or route.need is Need.NOTHING:
        return await handler(request)
    by_a_page = reach is Reach.SOCKETS and "Origin" in request.headers
    if settings.browsers_come_in and (reach is Reach.LOCAL or by_a_page or is_local(request)):
        _refuse(AllowedHosts(settings.allowed_hosts).refusal(request))
    if authentication is None:
        if reach is Reach.LOCAL:
            open_paths = "probes, metrics and what clients look up"
            _refuse(refusal_of_origin(request, remote=settings.admin_remote, open_paths=open_paths))
        return await handler(request)
    client = await client_of(request, authentication, proxy.parts.stats, log)
    if isinstance(client, web.Response):
        return client
    request[CLIENT] = client
    return await handler(request)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise AuthorizationError(reason)


def make_app(proxy: RunningProxy) -> web.Application:
    """Return an application with all routes of a proxy."""
    checks = [errors_as_json, from_no_other_site, admitted]
    app = web.Application(middlewares=checks, client_max_size=proxy.settings.limits.http_body_bytes_max)
    app[PROXY] = proxy
    app[BROKERS] = brokers = BrokerHttp(proxy.parts)
    app[SOCKETS] = sockets = BrokerSockets(proxy.parts, brokers)
    app.on_shutdown.append(sockets.stop)
    app.on_cleanup.extend((sockets.close, brokers.close))
    app[EXPOSITION] = exposition = Exposition()
    exposition.registry.register(ProxyCollector(proxy))
    measure_stalls(app, exposition)
    register(app, ROUTES, routes())
    return app
