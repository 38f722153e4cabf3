"""Routes of the admin HTTP ports, each with the permission that it requires next to its path.

Bookies and auto-recovery use `Route` with the needs below; a broker has needs of its own and uses the same table. An
application with a route that declares no permission does not start. Serves nothing itself.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from aiohttp import web

from quire_bookie.admin.answers import Handler
from quire_bookie.errors import StartupError


class Need(Enum):
    """The right that a request to a bookie or to auto-recovery requires."""

    NOTHING = auto()
    """Probes: every client."""
    METRICS = auto()
    """Every client, unless authenticateMetricsEndpoint requires a role."""
    READ = auto()
    """A role that may connect."""
    CHANGE = auto()
    """An admin role."""


class Route(NamedTuple):
    """A path of a bookie or of auto-recovery, with its handler and its permission."""

    method: str
    path: str
    handler: Handler
    need: Need


class Declared(Protocol):
    """A route with a permission of any kind."""

    @property
    def method(self) -> str:
        """The HTTP method; HEAD is answered as GET."""
        ...

    @property
    def path(self) -> str:
        """The pattern of the path."""
        ...

    @property
    def handler(self) -> Handler:
        """The function that answers."""
        ...


R = TypeVar("R", bound=Declared)
Known: TypeAlias = Mapping[web.AbstractRoute, R]
ROUTES: Final = web.AppKey("quire.bookie.routes", Mapping[web.AbstractRoute, Route])


def register(app: web.Application, key: web.AppKey[Known[R]], routes: Iterable[R]) -> None:
    """Add the routes to the application, and keep them under `key`.

    Its start raises StartupError if it has any other route.
    """
    known: dict[web.AbstractRoute, R] = {}
    for route in routes:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            known[app.router.add_route(method, route.path, route.handler)] = route
    app[key] = known

    async def all_declare(_: web.Application) -> None:
        for route in app.router.routes():
            if route not in known:
                path = "" if route.resource is None else route.resource.canonical
                raise StartupError(f"the route {route.method} {path} declares no permission: add it with `register`")

    app.on_startup.append(all_declare)


def route_of(request: web.Request, key: web.AppKey[Known[R]]) -> R | None:
    """Return the entry of the request's route; None if no route serves the path with this method."""
    return request.app[key].get(request.match_info.route)
