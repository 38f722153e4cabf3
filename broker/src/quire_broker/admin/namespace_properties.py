"""Single properties of a namespace, at Pulsar's paths. All of them together are the policy `properties`.

GET, DELETE .../property/{key}     the value as text; DELETE returns it, too
PUT .../property/{key}/{value}
DELETE .../properties              removes all of them
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from aiohttp import web

from quire_broker.admin.answers import answer_text, done
from quire_broker.admin.context import broker_of, namespace_of, policies_of
from quire_broker.admin.descriptions import TEXT, described
from quire_broker.admin.routes import Need, Route
from quire_broker.policies.store import Json
from quire_broker.topic.client_names import check_size

FIELD: Final = "properties"


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/namespaces/{tenant}/{namespace}"
    yield Route("GET", f"{root}/property/{{key}}", get_one, Need.NAMESPACE)
    yield Route("PUT", f"{root}/property/{{key}}/{{value}}", set_one, Need.NAMESPACE)
    yield Route("DELETE", f"{root}/property/{{key}}", remove_one, Need.NAMESPACE)
    yield Route("DELETE", f"{root}/properties", clear, Need.NAMESPACE)


async def _properties(request: web.Request) -> dict[str, Any]:
    return (await policies_of(request)).get(FIELD) or {}


def _shown(value: Any) -> web.Response:
    return answer_text(None if value is None else str(value))


@described(returns=TEXT)
async def get_one(request: web.Request) -> web.Response:
    """Return the value of a property as text; no content if it is not set."""
    return _shown((await _properties(request)).get(request.match_info["key"]))


async def set_one(request: web.Request) -> web.Response:
    """Set a property."""
    key, value = request.match_info["key"], request.match_info["value"]

    def change(properties: dict[str, Any]) -> None:
        properties[key] = value
        check_size("namespace", sum(len(name) + len(str(text)) for name, text in properties.items()))

    await _change(request, change)
    return done()


@described(returns=TEXT)
async def remove_one(request: web.Request) -> web.Response:
    """Remove a property and return its value."""
    key = request.match_info["key"]
    before = (await _properties(request)).get(key)
    await _change(request, lambda properties: properties.pop(key, None))
    return _shown(before)


async def clear(request: web.Request) -> web.Response:
    """Remove all properties."""
    await _change(request, lambda properties: properties.clear())
    return done()


async def _change(request: web.Request, change: Callable[[dict[str, Any]], object]) -> None:
    def on_policies(policies: Json) -> None:
        properties = dict(policies.get(FIELD) or {})
        change(properties)
        policies[FIELD] = properties

    await broker_of(request).policies.update_policies(namespace_of(request), on_policies)
