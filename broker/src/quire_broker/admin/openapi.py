"""GET /admin/openapi.json: the HTTP paths of this process as OpenAPI 3.0, from the table that checks requests.

A path with a choice of domains or policies is one path for each: they differ in what they take. Of two routes that
match a path, the first one serves it, and only this one is described.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

from aiohttp import web

from quire_broker import __version__
from quire_broker.admin.answers import answer_in_pieces
from quire_broker.admin.descriptions import JSON, OBJECT, described, description_of, fields
from quire_broker.admin.routes import ROUTES, Need, Reach, Route

PERMISSIONS: Final = {
    Need.NOTHING: "none",
    Need.A_ROLE: "any role",
    Need.LOOK_UP: "produce or consume",
    Need.PRODUCE: "produce",
    Need.CONSUME: "consume",
    Need.LIST: "consume in the namespace",
    Need.NAMESPACE: "admin of the namespace",
    Need.TENANT: "admin of the tenant",
    Need.SUPER_USER: "super user",
}
PERMISSION: Final = "x-quire-permission"
_PART: Final = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")
_NAME: Final = re.compile(r"\{(\w+)\}")
_CHOICE: Final = re.compile(r"[\w-]+(?:\|[\w-]+)*")
_SPELLED_OUT: Final = ("domain", "policy")
"""Parts with a choice that are written out: each value is a path."""
_MORE: Final = ".*"
"""Pattern of a part that may contain slashes."""
_DONE: Final = "Done; without content if there is nothing to return."
_REASON: Final = {"schema": fields(("reason",), reason={"type": "string"})}


class _Path(NamedTuple):
    """A path of a route. `policy`: the one that it names. `parts`: names and patterns of its parts, in order."""

    path: str
    route: Route
    policy: str
    parts: list[tuple[str, str]]


def routes() -> Iterator[Route]:
    """Yield the route of this module."""
    yield Route("GET", "/admin/openapi.json", serve, Need.A_ROLE)


@described(returns=OBJECT)
async def serve(request: web.Request) -> web.StreamResponse:
    """Return this document."""
    return await answer_in_pieces(request, pieces(dict.fromkeys(request.app[ROUTES].values())))


def document(table: Iterable[Route]) -> dict[str, Any]:
    """Return the description of these routes."""
    found: dict[str, Any] = json.loads("".join(pieces(table)))
    return found


def pieces(table: Iterable[Route]) -> Iterator[str]:
    """Yield the text of the description, one path at a time."""
    grouped: dict[str, dict[str, _Path]] = {}
    names: dict[str, None] = {}
    for one in _expanded(table):
        grouped.setdefault(one.path, {}).setdefault(one.route.method.lower(), one)
        names.update(dict.fromkeys(_NAME.findall(one.path)))
    yield f"{json.dumps(_frame(names))[:-1]}, {json.dumps('paths')}: {{"
    for number, (path, methods) in enumerate(grouped.items()):
        operations = {method: _operation(one) for method, one in methods.items()}
        yield f"{',' if number else ''}\n{json.dumps(path)}: {json.dumps(operations)}"
    yield "}}\n"


def _frame(names: Iterable[str]) -> dict[str, Any]:
    """Return all parts of the description but the paths. `names`: of the parts of paths."""
    text = (
        "The admin REST of a broker, with the paths of Apache Pulsar's and some of its own under /admin/quire. "
        f"{PERMISSION} is the permission that a request needs when authorization is on. A client with a certificate "
        "needs no header. HEAD is answered as GET."
    )
    return {
        "openapi": "3.0.3",
        "info": {"title": "Quire", "version": __version__, "description": text},
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"password": []}],
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
            "parameters": {name: _part(name, name, "") for name in names},
            "responses": {
                "done": {"description": _DONE},
                "refused": {"description": "Refused or failed, with the reason.", "content": {JSON: _REASON}},
            },
        },
    }


def _expanded(table: Iterable[Route]) -> Iterator[_Path]:
    """Yield each path of the routes.

    Paths that differ only in the names of their parts are the same: one whose parts have any value names them.
    """
    found = []
    for route in table:
        parts = _PART.findall(route.path)
        choices = {n: p.split("|") for n, p in parts if n in _SPELLED_OUT and _CHOICE.fullmatch(p)}
        left = [part for part in parts if part[0] not in choices]
        for values in product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            found.append(_Path(_filled(route.path, chosen), route, chosen.get("policy", ""), left))
    names: dict[str, str] = {}
    for one in sorted(found, key=lambda one: any(pattern for _, pattern in one.parts)):
        names.setdefault(_PART.sub("{}", one.path), one.path)
    for one in found:
        yield one._replace(path=names[_PART.sub("{}", one.path)])


def _filled(path: str, chosen: Mapping[str, str]) -> str:
    """Return a path with the chosen values, and without the patterns of its other parts."""
    return _PART.sub(lambda part: chosen.get(part[1], f"{{{part[1]}}}"), path)


def _part(name: str, own_name: str, pattern: str) -> dict[str, Any]:
    """Return a part of a path as a parameter."""
    schema: dict[str, Any] = {"type": "string"}
    if _CHOICE.fullmatch(pattern):
        schema["enum"] = pattern.split("|")
    elif pattern and pattern != _MORE:
        schema["pattern"] = f"^{pattern}$"
    text = "the rest of the path, which may contain slashes" if pattern == _MORE else ""
    text = text or ("" if name == own_name else own_name)
    return {"name": name, "in": "path", "required": True, "schema": schema} | ({"description": text} if text else {})


def _operation(one: _Path) -> dict[str, Any]:
    """Return what one method of a path does."""
    route = one.route
    summary, _, details = (inspect.getdoc(route.handler) or "").partition("\n")
    found = description_of(route.handler, one.policy)
    names = re.sub(r"\W+", "_", one.path.removeprefix("/"))
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{names}",
        "tags": [route.handler.__module__.rpartition(".")[2]],
        "summary": summary,
        PERMISSION: PERMISSIONS[route.need],
    }
    if details.strip():
        operation["description"] = details.strip()
    parameters = [
        {"$ref": f"#/components/parameters/{name}"} if part == (name, "") else _part(name, *part)
        for name, part in zip(_NAME.findall(one.path), one.parts, strict=True)
    ]
    queries = [{"name": name, "in": "query", "description": text, "schema": kind} for name, kind, text in found.query]
    if parameters or queries:
        operation["parameters"] = [*parameters, *queries]
    if found.body is not None:
        operation["requestBody"] = {"content": {JSON: {"schema": found.body}}}
    done: dict[str, Any] = {"$ref": "#/components/responses/done"}
    if found.returns is not None:
        done = {"description": _DONE, "content": {found.media: {"schema": found.returns}}}
    refused = {"$ref": "#/components/responses/refused"}
    if found.refuses:
        operation["responses"] = {"501": refused}
    elif route.reach is Reach.SOCKETS:
        operation["responses"] = {"101": {"description": "A WebSocket."}, "default": refused}
    else:
        operation["responses"] = {"2XX": done, "default": refused}
    if route.need is Need.NOTHING:
        operation["security"] = []
    return operation
