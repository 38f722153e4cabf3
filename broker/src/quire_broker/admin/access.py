"""Who may call which path of the admin API, as stock Pulsar has it. What is not listed here is for super users.

/healthz, /readyz, metrics  everybody: they hold names and counts, no message
a topic                   its lookup, stats and partitions: who produces or consumes; its subscriptions and last
                          message: who consumes; all else: admins of the namespace
schemas                   of a topic: who produces or consumes; changing them over REST: admins of the namespace
a namespace               its topics: who consumes; to make and delete it, and to name its admins: admins of the
                          tenant; where it offloads to: super users, for brokers go there with their own
                          credentials; all else: its admins
clusters, tenants, rest   super users; admins of a tenant see its namespaces, everybody sees the clusters' names

A broker without authentication cannot tell one client from another. It answers other machines only what stock clients
look up over HTTP (`_CLIENT_READS`), probes and metrics; all else is for its own machine, unless httpServerAdminRemote
opens the port.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto

from aiohttp import web

from quire_bookie.admin.origin import AllowedHosts, authorization_of, is_local, refusal_of_origin
from quire_bookie.env.tls import common_name
from quire_broker.admin.answers import failure
from quire_broker.admin.context import broker_of, namespace_of, topic_name_of
from quire_broker.errors import AuthenticationError, AuthorizationError
from quire_broker.security.authorization import Action, Authorization

log = logging.getLogger("quire.broker.security")


class Need(Enum):
    """What a request needs of its role."""

    NOTHING = auto()
    A_ROLE = auto()
    LOOK_UP = auto()
    CONSUME = auto()
    LIST = auto()
    NAMESPACE = auto()
    TENANT = auto()
    SUPER_USER = auto()


_OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/metrics/"})
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPIC_READS = frozenset({"", "/partitions", "/stats", "/partitioned-stats", "/internalStats"})
_OFFLOAD_TARGETS = frozenset({f"{_NAMESPACE}/offloadPolicies", f"{_NAMESPACE}/removeOffloadPolicies"})
_PROBES = frozenset(f"/admin{version}/brokers/{name}" for version in ("/v2", "") for name in ("health", "ready"))
_CLIENT_READS = ("/lookup/v2/topic/", "/admin/v2/schemas/")
_ROLE = web.RequestKey("quire.role", str)  # who sent it


def needed(method: str, path: str) -> Need:
    """By the pattern of the route."""
    if path in _OPEN:
        return Need.NOTHING
    if path in ("/admin/v2/clusters", "/admin/v2/brokers/version", "/admin/brokers/version") and method == "GET":
        return Need.A_ROLE
    if path.startswith("/lookup/v2/topic/"):
        return Need.LOOK_UP
    if path.startswith("/admin/v2/schemas/"):
        changes = path.endswith("/schema") and method != "GET"
        return Need.NAMESPACE if changes else Need.LOOK_UP
    if path.startswith("/admin/v2/namespaces/{tenant}"):
        return _of_namespaces(method, path)
    if path.startswith(("/admin/v2/{domain}/", "/admin/v2/persistent/")):
        return _of_topics(method, path)
    if path.startswith("/admin/quire/namespaces/{tenant}/{namespace}"):
        return Need.NAMESPACE if method == "GET" else Need.TENANT
    return Need.SUPER_USER


def is_for_every_machine(method: str, path: str) -> bool:
    """Whether a broker without authentication answers this to other machines; by the pattern of the route.

    Stock clients with an http:// service URL look up owners, partitions, names of topics and schemas.
    """
    if method != "GET":
        return False
    if path in _OPEN or path in _PROBES or path == f"{_NAMESPACE}/topics" or path.startswith(_CLIENT_READS):
        return True
    return path == "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions"


def _of_namespaces(method: str, path: str) -> Need:
    if method == "GET" and path == f"{_NAMESPACE}/topics":
        return Need.LIST
    if method != "GET" and path in _OFFLOAD_TARGETS:
        return Need.SUPER_USER
    of_tenant = not path.startswith(_NAMESPACE) or (path == _NAMESPACE and method != "GET")
    return Need.TENANT if of_tenant else Need.NAMESPACE


def _of_topics(method: str, path: str) -> Need:
    _, topic, rest = path.partition("{topic}")
    if not topic:
        return Need.LIST if method == "GET" else Need.NAMESPACE
    if rest in _TOPIC_READS and method == "GET":
        return Need.LOOK_UP
    consumes = rest.startswith("/subscription") or (rest == "/lastMessageId" and method == "GET")
    return Need.CONSUME if consumes else Need.NAMESPACE


@web.middleware
async def authorized(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer 401 to a client without a role, 403 where its role or its address does not allow this."""
    broker = broker_of(request)
    authentication, settings = broker.access.authentication, broker.access.settings
    resource = request.match_info.route.resource
    if settings.browsers_come_in and resource is not None and not _is_asked_by_any_name(request, resource.canonical):
        _refuse(request, AllowedHosts(settings.allowed_hosts).refusal(request))
    if authentication is None:
        if resource is not None and not is_for_every_machine(_method(request), resource.canonical):
            open_paths = "probes, metrics and what clients look up"
            _refuse(request, refusal_of_origin(request, remote=settings.admin_remote, open_paths=open_paths))
        return await handler(request)
    need = Need.SUPER_USER if resource is None else needed(_method(request), resource.canonical)
    if need is Need.NOTHING:
        return await handler(request)
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    try:
        client = authentication.admit_http(authorization_of(request), common_name(certificate))
    except AuthenticationError as error:
        broker.parts.stats.authentications_failed += 1
        log.warning("%s %s of %s is refused: %s", request.method, request.rel_url.raw_path, request.remote, error)
        refused = failure(401, f"HTTP 401 Unauthorized: {error}")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused
    if broker.authorization is not None:
        await _require(broker.authorization, client.role, need, request)
        request[_ROLE] = client.role
    return await handler(request)


def _is_asked_by_any_name(request: web.Request, path: str) -> bool:
    """Probes and metrics, and what clients on other machines look up, by whatever name their service URL has."""
    if path in _OPEN or path in _PROBES:
        return True
    return is_for_every_machine(_method(request), path) and not is_local(request)


def _refuse(request: web.Request, reason: str | None) -> None:
    """AuthorizationError with the reason, where there is one."""
    if reason is not None:
        log.warning("%s %s of %s is refused: HTTP 403", request.method, request.rel_url.raw_path, request.remote)
        raise AuthorizationError(reason)


def is_super_user(request: web.Request) -> bool:
    """Whether it comes from a super user; everybody is one where nothing is authorized."""
    authorization = broker_of(request).authorization
    return authorization is None or authorization.is_super_user(request[_ROLE])


def _method(request: web.Request) -> str:
    return "GET" if request.method == "HEAD" else request.method


async def _require(authorization: Authorization, role: str, need: Need, request: web.Request) -> None:
    """AuthorizationError when the role may not."""
    if not await _may(authorization, role, need, request):
        path = request.rel_url.raw_path  # as it came: decoded it could begin a line of its own in the log
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
    if need is Need.CONSUME:
        return await authorization.may_subscribe(role, topic_name_of(request), found.get("subscription", ""))
    return False
