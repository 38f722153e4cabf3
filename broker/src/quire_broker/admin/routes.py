"""Routes of the admin API, each with the permission that it requires, as in stock Pulsar.

probes, metrics   every client: they contain names and counts, no message
a topic           lookup, stats and partitions: roles that produce or consume; subscriptions and last message:
                  roles that consume; everything else: admins of the namespace
schemas           reads: roles that produce or consume; changes over REST: admins of the namespace
a namespace       its topics: roles that consume; creation, deletion and the list of its admins: admins of the
                  tenant; its offload target: super users, because brokers write there with their own
                  credentials; everything else: its admins
everything else   super users; admins of a tenant see its namespaces, every role sees the names of clusters
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from aiohttp import web

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Need(Enum):
    """The right that a request requires of its role."""

    NOTHING = auto()
    A_ROLE = auto()
    LOOK_UP = auto()
    CONSUME = auto()
    LIST = auto()
    NAMESPACE = auto()
    TENANT = auto()
    SUPER_USER = auto()


class Reach(Enum):
    """The clients that a broker without authentication answers; it cannot tell one from another."""

    LOCAL = auto()
    """Processes of this machine, unless httpServerAdminRemote opens the port."""
    CLIENTS = auto()
    """Every machine: what stock clients with an http:// service URL look up."""
    PROBE = auto()
    """Every machine, under any name of this broker."""


class Route(NamedTuple):
    """A path with its handler and its permission."""

    method: str
    path: str
    handler: Handler
    need: Need
    reach: Reach = Reach.LOCAL


ROUTES: Final = web.AppKey("quire.routes", Mapping[web.AbstractRoute, Route])


def register(app: web.Application, routes: Iterable[Route]) -> None:
    """Add the routes to the application; HEAD is answered as GET."""
    known: dict[web.AbstractRoute, Route] = {}
    for route in routes:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            known[app.router.add_route(method, route.path, route.handler)] = route
    app[ROUTES] = known


def route_of(request: web.Request) -> Route | None:
    """Return the entry of the request's route; None if it has none."""
    return request.app[ROUTES].get(request.match_info.route)
