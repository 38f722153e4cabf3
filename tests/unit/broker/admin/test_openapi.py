"""The OpenAPI document against the routes, and the declarations beside the handlers against what the handlers read."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from openapi_spec_validator import validate
from yarl import URL

from quire_bookie.admin.answers import Handler
from quire_broker.admin import spreading
from quire_broker.admin.cluster_paths import cluster_routes
from quire_broker.admin.context import AUTHORITATIVE
from quire_broker.admin.descriptions import description_of
from quire_broker.admin.namespaces import STORED_POLICIES
from quire_broker.admin.openapi import PERMISSION, PERMISSIONS, document
from quire_broker.admin.routes import ROUTES, Need
from quire_broker.admin.web import all_routes, make_app
from quire_broker.policies.fields import FIELDS, PAUSE_ON_ACKS
from quire_broker.policies.of_topics import PATHS
from quire_broker.security.settings import AccessSettings
from quire_broker.settings.console import ConsoleSettings
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.websocket import parameters

_METHODS = ("get", "put", "post", "delete")
_SAMPLES = {"^[0-9]+$": "7", "^-?[0-9]+$": "7", "^0x[0-9a-fA-F]+_0x[0-9a-fA-F]+$": "0x00000000_0xffffffff"}
"""A value by the pattern of a part of a path."""


def app() -> web.Application:
    """Return the application of a standalone, which also serves the paths of bookies."""
    nothing: Any = None
    broker = SimpleNamespace(
        access=SimpleNamespace(settings=AccessSettings(), authentication=None),
        settings=SimpleNamespace(console=ConsoleSettings(), websocket=WebSocketSettings()),
        topics=SimpleNamespace(changed=set),
        background=SimpleNamespace(keep=lambda run, name: None),
        more_routes=lambda: cluster_routes(nothing, nothing, nothing),
        parts=SimpleNamespace(slow=None),
    )
    return make_app(cast(Any, broker))


@cache
def shown() -> dict[str, Any]:
    """Return the document of these routes."""
    return document(dict.fromkeys(app()[ROUTES].values()))


def operations() -> Iterator[tuple[str, str, Any]]:
    """Yield path, method and operation."""
    for path, methods in shown()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_it_is_valid() -> None:
    validate(shown())


def _sample(schema: dict[str, Any]) -> str:
    """Return a value of a part of a path."""
    if "enum" in schema:
        return str(schema["enum"][0])
    return _SAMPLES[schema["pattern"]] if "pattern" in schema else "x"


async def test_each_path_is_a_route_and_each_route_is_a_path() -> None:
    served = app()
    found = set()
    for path, method, operation in operations():
        for one in operation.get("parameters", ()):
            if "$ref" in one:
                one = shown()["components"]["parameters"][one["$ref"].rpartition("/")[2]]
            if one["in"] == "path":
                path = path.replace(f"{{{one['name']}}}", _sample(one["schema"]))
        assert "{" not in path, "each part of a path is declared"
        match = await served.router.resolve(cast(Any, SimpleNamespace(method=method.upper(), rel_url=URL(path))))
        route = served[ROUTES][match.route]
        assert route.method.lower() == method
        assert operation["summary"] == (inspect.getdoc(route.handler) or "").partition("\n")[0]
        assert operation[PERMISSION] == PERMISSIONS[route.need]
        found.add((route.method, route.path))
    assert found == {(one.method, one.path) for one in served[ROUTES].values()}


def test_no_two_paths_differ_only_in_the_names_of_their_parts() -> None:
    shapes = ["/".join("{}" if part.startswith("{") else part for part in path.split("/")) for path in shown()["paths"]]
    assert len(shapes) > 250
    assert len(set(shapes)) == len(shapes)


def test_clients_need_no_token_where_none_is_checked() -> None:
    open_ids = {operation["operationId"] for _, _, operation in operations() if operation.get("security") == []}
    assert len(open_ids) == len([route for route in all_routes() if route.need is Need.NOTHING])


@pytest.mark.parametrize("domain", ["namespaces", "persistent"])
def test_a_policy_has_the_type_of_its_field(domain: str) -> None:
    root = {
        "namespaces": "/admin/v2/namespaces/{tenant}/{namespace}",
        "persistent": "/admin/v2/persistent/{tenant}/{namespace}/{topic}",
    }
    table = STORED_POLICIES if domain == "namespaces" else PATHS
    for name, field in table.items():
        operation = shown()["paths"][f"{root[domain]}/{name}"]
        schema = FIELDS[field].schema
        rate = domain and schema.get("additionalProperties", {})
        wanted = [schema, rate] if isinstance(rate, dict) else [schema]
        if (domain, name) == ("persistent", "messageTTL") or field == PAUSE_ON_ACKS:
            assert "requestBody" not in operation["post"]
        else:
            assert operation["post"]["requestBody"]["content"]["application/json"]["schema"] in wanted
        assert operation["get"]["responses"]["2XX"]["content"]["application/json"]["schema"] in wanted


async def test_it_is_served_piece_by_piece() -> None:
    served = app()
    async with TestClient(TestServer(served)) as client:
        answer = await client.get("/admin/openapi.json")
        assert answer.status == 200
        assert answer.content_type == "application/json"
        assert await answer.json() == shown()


# what the handlers read

_READERS = {"body_of", "object_of", "text_of"}
_HANDLERS = sorted({route.handler for route in all_routes()}, key=lambda one: (one.__module__, one.__name__))


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the function and those of the admin API that it names, also indirectly; not those that pass requests on."""
    todo, seen = [function], {function}
    while todo:
        one = todo.pop()
        yield one
        for node in ast.walk(_tree(one)):
            named = one.__globals__.get(node.id) if isinstance(node, ast.Name) else None
            if not isinstance(named, FunctionType) or named in seen or named.__name__ in _READERS | {"flag"}:
                continue
            if named.__module__.startswith("quire_broker.admin") and named.__module__ != spreading.__name__:
                seen.add(named)
                todo.append(named)


@cache
def _tree(function: FunctionType) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def _reads(handler: Handler) -> tuple[set[str], bool]:
    """Return the query parameters that a handler reads, and whether it reads the body."""
    names, body = set(), False
    for function in _called(cast(FunctionType, handler)):

        def value(node: ast.AST, function: FunctionType = function) -> str:
            return str(node.value if isinstance(node, ast.Constant) else function.__globals__[cast(ast.Name, node).id])

        for node in ast.walk(_tree(function)):
            if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "request.query":
                continue  # a parameter that is refused
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("flag", "integer"):
                names.add(value(node.args[1]))
            elif called in ("request.query.get", "request.query.getall"):
                names.add(value(node.args[0]))
            body = body or called in _READERS
    return names - {AUTHORITATIVE}, body


@pytest.mark.parametrize("handler", _HANDLERS, ids=lambda one: f"{one.__module__.rpartition('.')[2]}.{one.__name__}")
def test_a_handler_declares_what_it_reads(handler: Handler) -> None:
    names, body = _reads(handler)
    declared = [description_of(handler, policy) for policy in _policies(handler)]
    sockets = {name for known in _SOCKETS.values() for name in known}
    assert {one.name for each in declared for one in each.query} - sockets == names
    assert any(each.body is not None for each in declared) == body


def _policies(handler: Handler) -> list[str]:
    for table, module in ((STORED_POLICIES, "namespaces"), (PATHS, "topic_policies")):
        if handler.__module__.endswith(f".{module}"):
            return list(table)
    return [""]


_SOCKETS: dict[Callable[..., Any], tuple[str, ...]] = {
    parameters.producer_parameters: parameters.PRODUCER_NAMES,
    parameters.consumer_parameters: parameters.CONSUMER_NAMES,
    parameters.reader_parameters: parameters.READER_NAMES,
}


@pytest.mark.parametrize("parse", _SOCKETS, ids=lambda one: one.__name__)
def test_the_parameters_of_websockets_are_those_that_are_read(parse: Callable[..., Any]) -> None:
    asked: list[str] = []

    class Recorded(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.append(key)
            return default

    parse(Recorded())
    assert set(asked) == set(_SOCKETS[parse])
