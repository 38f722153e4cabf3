"""The routes of the HTTP ports, each with its permission, from the tables that the servers check requests with."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from quire_bookie.admin.recovery_web import RecoveryWeb
from quire_bookie.admin.routes import ROUTES
from quire_bookie.admin.routes import Need as BookieNeed
from quire_bookie.admin.web import BookieWeb
from quire_broker.admin.openapi import PERMISSIONS
from quire_broker.admin.web import all_routes
from quire_broker.proxy.web import routes as proxy_routes
from scripts.reference.tables import GENERATED, table

_NOT_SERVING: Any = None
"""In place of what a server needs to answer: only its table of routes is read."""
_INTRODUCTION = """
Each path of the HTTP ports with the permission that its request needs. [Security](../security.md#http-ports) says
how a client presents its role. Without authentication a broker answers requests of its own machine, and of other
machines only with `httpServerAdminRemote`. `HEAD` is answered as `GET`.

A broker describes its paths as OpenAPI 3, with parameters, bodies and results: `GET /admin/openapi.json`, and
[here](openapi.json). A standalone also serves the paths of its bookies, to super users.
[Compatibility](../compatibility.md) lists the commands of `pulsar-admin` that use these paths.
"""
_PERMISSIONS: dict[Any, str] = {
    **PERMISSIONS,
    BookieNeed.NOTHING: "none",
    BookieNeed.METRICS: "none, or with `authenticateMetricsEndpoint` any role",
    BookieNeed.READ: "any role",
    BookieNeed.CHANGE: "admin role",
}
_PATTERN = re.compile(r"\{(\w+):((?:[^{}]|\{[^{}]*\})*)\}")
_CHOICE = re.compile(r"[\w-]+(\|[\w-]+)+")


def tables() -> dict[str, Iterable[Any]]:
    """Return the routes of each kind of process."""
    bookie = BookieWeb(_NOT_SERVING, _NOT_SERVING, {}, clock=_NOT_SERVING, chance=_NOT_SERVING)
    recovery = RecoveryWeb(_NOT_SERVING, _NOT_SERVING, _NOT_SERVING)
    return {
        "Broker": all_routes(),
        "Proxy": proxy_routes(),
        "Bookie": dict.fromkeys(bookie.app[ROUTES].values()),
        "Auto-recovery": dict.fromkeys(recovery.app[ROUTES].values()),
    }


def page() -> str:
    """Return the page."""
    lines = ["# Reference of the HTTP ports", GENERATED, _INTRODUCTION]
    for title, routes in tables().items():
        lines += [f"## {title}", "", *table(("request", "permission", "does"), dict.fromkeys(_rows(routes))), ""]
    return "\n".join(lines)


def _rows(routes: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
    for route in routes:
        choices = [
            f"`{name}` is one of {', '.join(f'`{one}`' for one in pattern.split('|'))}"
            for name, pattern in _PATTERN.findall(route.path)
            if _CHOICE.fullmatch(pattern)
        ]
        text = (inspect.getdoc(route.handler) or "").partition("\n")[0]
        described = "; ".join([text.rstrip(".") if choices else text, *choices])
        path = _PATTERN.sub(r"{\1}", route.path)
        yield f"`{route.method} {path}`", _PERMISSIONS[route.need], described
