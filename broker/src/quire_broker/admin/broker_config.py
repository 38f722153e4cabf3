"""/admin/v2/brokers/configuration: the settings of this broker, as they are in force. None can change while it runs.

GET         .../configuration/runtime         {name: value}, without secrets
GET         .../configuration                 names of settings that can be changed at run time: none
GET         .../configuration/values          settings changed at run time: none
POST, DELETE .../configuration/{name}[/{value}]   412 with the remedy
GET         .../internal-configuration        where the cluster's metadata are
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.settings.declared import settings_of
from quire_broker.admin.answers import answer, failure
from quire_broker.admin.context import broker_of
from quire_broker.admin.routes import Need, Route

_SECRET = "*****"


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    for root in ("/admin/v2/brokers", "/admin/brokers"):
        yield Route("GET", f"{root}/configuration", empty_list, Need.SUPER_USER)
        yield Route("GET", f"{root}/configuration/values", empty_object, Need.SUPER_USER)
        yield Route("GET", f"{root}/configuration/runtime", runtime, Need.SUPER_USER)
        yield Route("GET", f"{root}/internal-configuration", internal, Need.SUPER_USER)
        yield Route("POST", f"{root}/configuration/{{name}}/{{value}}", refuse, Need.SUPER_USER)
        yield Route("DELETE", f"{root}/configuration/{{name}}", refuse, Need.SUPER_USER)


def values_in_force(settings: Any) -> dict[str, str]:
    """Return the value of each declared setting of a dataclass and of those in its fields, as text. Pure."""
    kind: Any = type(settings)
    declared, found = settings_of(kind), dict[str, str]()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        one = declared.get(field.name)
        if one is not None:
            hidden = one.secret and value
            found[one.key] = _SECRET if hidden else _text(None if value is None else one.unit.of_field(value))
        elif dataclasses.is_dataclass(value):
            found |= values_in_force(value)
    return found


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


async def empty_list(request: web.Request) -> web.Response:
    """Return the names of settings that can be changed at run time: none yet."""
    return answer([])


async def empty_object(request: web.Request) -> web.Response:
    """Return the settings changed at run time: none yet."""
    return answer({})


async def runtime(request: web.Request) -> web.Response:
    """Return the settings in force by name. Stock tools read `clusterName` from it."""
    settings = broker_of(request).settings
    found = {"clusterName": settings.cluster, "advertisedAddress": settings.advertise, "bindAddress": settings.listen}
    ports = {"brokerServicePort": settings.port, "webServicePort": settings.http_port}
    ports |= {"brokerServicePortTls": settings.port_tls, "webServicePortTls": settings.http_port_tls}
    return answer(values_in_force(settings) | found | {name: _text(port) for name, port in ports.items()})


async def internal(request: web.Request) -> web.Response:
    """Return where the ledgers are in the metadata store, without its address, which may hold a secret."""
    return answer({"ledgersRootPath": "/ledgers", "stateStorageServiceUrl": None})


async def refuse(request: web.Request) -> web.Response:
    """Refuse to change a setting of a running broker."""
    name = request.match_info["name"][:100]
    return failure(412, f"{name!r} cannot be changed at run time: change the broker's configuration and restart it")
