"""/admin/v2/brokers/configuration: the settings of this broker, as they are in force, and changes while it runs.

GET    .../configuration/runtime        {name: value}, without secrets
GET    .../configuration                names of settings that can be changed at run time
GET    .../configuration/values         {name: value} of those that were changed, for all brokers of the cluster
POST   .../configuration/{name}/{value} changes a setting; 412 with the remedy for others
DELETE .../configuration/{name}         returns to the brokers' own configuration
GET         .../internal-configuration        where the cluster's metadata are
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.metadata.layout import ROOT
from quire_bookie.settings.declared import settings_of
from quire_broker.admin.answers import answer, done
from quire_broker.admin.context import broker_of
from quire_broker.admin.descriptions import NAMES as LIST
from quire_broker.admin.descriptions import OBJECT, TEXTS, described
from quire_broker.admin.routes import Need, Route
from quire_broker.server.dynamic_settings import NAMES, STOP

_SECRET = "*****"
_STORES = ("zookeeperServers", "configurationStoreServers", "metadataStoreUrl", "configurationMetadataStoreUrl")
"""Stock brokers, too, put the URL of any store under all four names."""


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    for root in ("/admin/v2/brokers", "/admin/brokers"):
        yield Route("GET", f"{root}/configuration", names, Need.SUPER_USER)
        yield Route("GET", f"{root}/configuration/values", changed, Need.SUPER_USER)
        yield Route("GET", f"{root}/configuration/runtime", runtime, Need.SUPER_USER)
        yield Route("GET", f"{root}/internal-configuration", internal, Need.SUPER_USER)
        yield Route("POST", f"{root}/configuration/{{name}}/{{value}}", change, Need.SUPER_USER)
        yield Route("DELETE", f"{root}/configuration/{{name}}", change, Need.SUPER_USER)


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


@described(returns=LIST)
async def names(request: web.Request) -> web.Response:
    """Return the names of settings that can be changed at run time."""
    return answer(list(NAMES))


@described(returns=TEXTS)
async def changed(request: web.Request) -> web.Response:
    """Return the settings that were changed at run time."""
    return answer(await broker_of(request).dynamic.values())


@described(returns=TEXTS)
async def runtime(request: web.Request) -> web.Response:
    """Return the settings in force by name. Stock tools read `clusterName` from it."""
    settings = broker_of(request).settings
    found = {"clusterName": settings.cluster, "advertisedAddress": settings.advertise, "bindAddress": settings.listen}
    ports = {"brokerServicePort": settings.port, "webServicePort": settings.http_port}
    ports |= {"brokerServicePortTls": settings.port_tls, "webServicePortTls": settings.http_port_tls}
    in_force = broker_of(request).dynamic.in_force
    found |= values_in_force(in_force.rates) | {STOP: _text(round(in_force.stop_s * 1000))}
    return answer(values_in_force(settings) | found | {name: _text(port) for name, port in ports.items()})


@described(returns=OBJECT)
async def internal(request: web.Request) -> web.Response:
    """Return where the cluster's metadata are: all in one store, whose URL never holds credentials."""
    found: dict[str, str | None] = dict.fromkeys(_STORES, broker_of(request).settings.metadata_url)
    return answer(found | {"ledgersRootPath": ROOT, "stateStorageServiceUrl": None})


async def change(request: web.Request) -> web.Response:
    """Change a setting of all brokers, or return to their configuration. Other brokers notice the change."""
    found = request.match_info
    await broker_of(request).dynamic.change(found["name"], found.get("value"))
    return done()
