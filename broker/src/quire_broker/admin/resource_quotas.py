"""Resource quotas, at Pulsar's paths: the expected traffic of bundles, by which those without history are assigned.

    GET, POST         /admin/v2/resource-quotas                                the default
    GET, POST, DELETE /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}  of a bundle; GET returns the one in force

See `balancing.resource_quotas`.
"""

import contextlib
from collections.abc import Iterator

from aiohttp import web

from quire_bookie.errors import NodeMissingError
from quire_bookie.metadata.store import Get
from quire_broker.admin.answers import answer, done, failure, object_of
from quire_broker.admin.context import broker_of, bundles_of
from quire_broker.admin.descriptions import OBJECT, described
from quire_broker.admin.routes import BUNDLE, Need, Route
from quire_broker.balancing.resource_quotas import DEFAULT, QUOTAS, SHOWN_DEFAULT, flaw_of_quota
from quire_broker.policies.store import Json, decode_json, encode_json


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/resource-quotas"
    bundle = f"{root}/{{tenant}}/{{namespace}}/{BUNDLE}"
    yield Route("GET", root, get_default, Need.SUPER_USER)
    yield Route("POST", root, set_default, Need.SUPER_USER)
    yield Route("GET", bundle, get_quota, Need.SUPER_USER)
    yield Route("POST", bundle, set_quota, Need.SUPER_USER)
    yield Route("DELETE", bundle, remove_quota, Need.SUPER_USER)


async def _in_force(request: web.Request, *names: str) -> Json:
    """Return the first of these quotas that is stored, in one read."""
    nodes = await broker_of(request).metadata.read([Get(f"{QUOTAS}/{name}") for name in names])
    return next((decode_json(node.key, node.value) for found in nodes for node in found), SHOWN_DEFAULT)


async def _store(request: web.Request, name: str) -> web.Response:
    value = await object_of(request)
    flaw = flaw_of_quota(value)
    if flaw:
        return failure(412, flaw)
    await broker_of(request).metadata.put(f"{QUOTAS}/{name}", encode_json(value))
    return done()


@described(returns=OBJECT)
async def get_default(request: web.Request) -> web.Response:
    """Return the default, or that of stock brokers while none is stored."""
    return answer(await _in_force(request, DEFAULT))


@described(body=OBJECT)
async def set_default(request: web.Request) -> web.Response:
    """Store the default. 412 for an invalid value."""
    return await _store(request, DEFAULT)


async def _bundle(request: web.Request) -> str:
    (bundle,) = await bundles_of(request)
    return str(bundle)


@described(returns=OBJECT)
async def get_quota(request: web.Request) -> web.Response:
    """Return the quota of the bundle, or the default."""
    return answer(await _in_force(request, await _bundle(request), DEFAULT))


@described(body=OBJECT)
async def set_quota(request: web.Request) -> web.Response:
    """Store the quota of the bundle. 412 for an invalid value."""
    return await _store(request, await _bundle(request))


async def remove_quota(request: web.Request) -> web.Response:
    """Restore the default for the bundle."""
    with contextlib.suppress(NodeMissingError):
        await broker_of(request).metadata.delete(f"{QUOTAS}/{await _bundle(request)}")
    return done()
