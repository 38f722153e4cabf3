"""Checks the permission that each route of the admin API names (`routes`). Paths without a route are for super users.

A broker without authentication cannot tell one client from another. It answers other machines only on routes that
stock clients look up over HTTP, on probes and on metrics. All other routes are for its own machine, unless
httpServerAdminRemote opens the port. For a request that a proxy sends, the proxy and its client must both be permitted.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from aiohttp import web

from quire_bookie.admin.origin import AllowedHosts, authorization_of, is_local, refusal_of_origin
from quire_bookie.admin.routes import route_of
from quire_bookie.env.tls import common_name
from quire_broker.admin.answers import failure
from quire_broker.admin.context import broker_of, namespace_of, topic_name_of
from quire_broker.admin.routes import ORIGINAL, ROUTES, Need, Reach
from quire_broker.errors import AuthenticationError, AuthorizationError
from quire_broker.names import TopicName
from quire_broker.security.authentication import Authentication, method_of, shown_in
from quire_broker.security.authorization import Action, Authorization
from quire_broker.security.credentials import Client, settled

log = logging.getLogger("quire.broker.security")
CLIENT = web.RequestKey("quire.client", Client)
"""The client that sent the request; absent without authentication."""
ROLES = web.RequestKey("quire.roles", tuple[str, ...])
"""The role that sent the request; for a proxy also that of its client."""


class AuthenticationStats(Protocol):
    """Counters of a broker or a proxy."""

    authentications_failed: int


@web.middleware
async def authorized(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer 401 to a client without a role, 403 if its role or its address does not allow the request."""
    broker = broker_of(request)
    authentication, settings = broker.access.authentication, broker.access.settings
    exists = request.match_info.route.resource is not None
    route = route_of(request, ROUTES)
    reach = Reach.LOCAL if route is None else route.reach
    if settings.browsers_come_in and exists and not _is_asked_by_any_name(request, reach):
        _refuse(request, AllowedHosts(settings.allowed_hosts).refusal(request))
    if authentication is None:
        if exists and reach is Reach.LOCAL:
            open_paths = "probes, metrics and what clients look up"
            _refuse(request, refusal_of_origin(request, remote=settings.admin_remote, open_paths=open_paths))
        return await handler(request)
    need = Need.SUPER_USER if route is None else route.need
    if need is Need.NOTHING:
        return await handler(request)
    client = await client_of(request, authentication, broker.parts.stats, log)
    if isinstance(client, web.Response):
        return client
    request[CLIENT], request[ROLES] = client, (client.role,)
    if broker.authorization is not None:
        roles = broker.authorization.roles_of(client.role, request.headers.get(ORIGINAL, ""), may_repeat=True)
        request[ROLES] = roles
        for role in roles:
            await _require(broker.authorization, role, need, request)
    return await handler(request)


async def client_of(
    request: web.Request, authentication: Authentication, stats: AuthenticationStats, log: logging.Logger
) -> Client | web.Response:
    """Return the client that sent a request, or the response 401, which is counted and logged."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    try:
        return await settled(authentication.admit_http(_authorization(request), common_name(certificate)))
    except AuthenticationError as error:
        stats.authentications_failed += 1
        log.warning("%s %s of %s is refused: %s", request.method, request.rel_url.raw_path, request.remote, error)
        refused = failure(401, f"HTTP 401 Unauthorized: {error}")
        refused.headers["WWW-Authenticate"] = authentication.challenge()
        return refused


def credentials_in(request: web.Request) -> tuple[str, str]:
    """Return the method and the credentials of a request as clients of the Pulsar protocol send them; empty: none."""
    header = _authorization(request)
    return (method_of(header), shown_in(header)) if header else ("", "")


def _authorization(request: web.Request) -> str:
    """Return the header with the client's credentials. WebSocket clients in browsers send a token in the query."""
    header = authorization_of(request)
    route = route_of(request, ROUTES)
    if not header and route is not None and route.reach is Reach.SOCKETS and (token := request.query.get("token")):
        return f"Bearer {token}"
    return header


def _is_asked_by_any_name(request: web.Request, reach: Reach) -> bool:
    """Return whether the Host header may be any name: clients on other machines use the name in their service URL."""
    if reach is Reach.SOCKETS and "Origin" in request.headers:
        return False  # a browser, whose page may have made its own name resolve to this machine
    return reach is Reach.PROBE or (reach in (Reach.CLIENTS, Reach.SOCKETS) and not is_local(request))


def _refuse(request: web.Request, reason: str | None) -> None:
    """Raise AuthorizationError with the reason, if there is one."""
    if reason is not None:
        log.warning("%s %s of %s is refused: HTTP 403", request.method, request.rel_url.raw_path, request.remote)
        raise AuthorizationError(reason)


def is_super_user(request: web.Request) -> bool:
    """Return whether the request comes from a super user; without authorization every client is one."""
    authorization = broker_of(request).authorization
    if authorization is None:
        return True
    roles = request[ROLES]
    return all(authorization.is_super_user(role) for role in roles)


async def require_consume(request: web.Request, topic: TopicName) -> None:
    """Raise AuthorizationError if the sender may not consume a topic that the path does not name."""
    authorization = broker_of(request).authorization
    if authorization is None:
        return
    for role in request[ROLES]:
        if not await authorization.may(role, Action.CONSUME, topic):
            raise AuthorizationError(f"role {role!r} is not authorized to consume {topic}")


async def _require(authorization: Authorization, role: str, need: Need, request: web.Request) -> None:
    """Raise AuthorizationError if the role may not."""
    if not await _may(authorization, role, need, request):
        path = request.rel_url.raw_path  # not decoded: it could begin a new line in the log
        log.warning("%s %s of %s, role %r: not authorized", request.method, path, request.remote, role)
        raise AuthorizationError(f"role {role!r} is not authorized to {request.method} {request.path}")


async def _may(authorization: Authorization, role: str, need: Need, request: web.Request) -> bool:
    found: Mapping[str, str] = request.match_info
    if need is Need.A_ROLE or authorization.is_super_user(role):
        return True
    if need is Need.TENANT:
        return await authorization.is_admin(role, found["tenant"])
    if need is Need.NAMESPACE:
        return await authorization.is_namespace_admin(role, namespace_of(request))
    if need is Need.LIST:
        return await authorization.may_in_namespace(role, Action.CONSUME, namespace_of(request))
    if need is Need.LOOK_UP:
        return await authorization.may_look_up(role, topic_name_of(request))
    if need is Need.PRODUCE:
        return await authorization.may(role, Action.PRODUCE, topic_name_of(request))
    if need is Need.CONSUME:
        return await authorization.may_subscribe(role, topic_name_of(request), found.get("subscription", ""))
    return False
