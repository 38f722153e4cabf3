"""Bookie affinity groups of namespaces, at Pulsar's path: which groups of bookies hold the ledgers of its topics.

    GET, POST, DELETE .../namespaces/{tenant}/{namespace}/persistence/bookieAffinity
    {"bookkeeperAffinityGroupPrimary": "g1,g2", "bookkeeperAffinityGroupSecondary": "g3"}

The next ledgers of loaded topics, and replacements of lost bookies in these, follow it; earlier ledgers stay where they
are. Without enough bookies in the groups no ledger is created: messages wait, fail after a while, and the log says why.
"""

from collections.abc import Iterator

from aiohttp import web

from quire_broker.admin.answers import answer, body_of, done, failure
from quire_broker.admin.context import broker_of, namespace_of, policies_of
from quire_broker.admin.descriptions import described
from quire_broker.admin.routes import Need, Route
from quire_broker.policies.affinity import BOOKIE_AFFINITY, FORM, flaw_of_affinity


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    path = "/admin/v2/namespaces/{tenant}/{namespace}/persistence/bookieAffinity"
    yield Route("GET", path, get_groups, Need.SUPER_USER)
    yield Route("POST", path, set_groups, Need.SUPER_USER)
    yield Route("DELETE", path, remove_groups, Need.SUPER_USER)


@described(returns=FORM.schema)
async def get_groups(request: web.Request) -> web.Response:
    """Return the groups; no content if the namespace has none."""
    await policies_of(request)
    found = await broker_of(request).policies.bookie_affinity(namespace_of(request))
    return done() if found is None else answer(found)


@described(body=FORM.schema)
async def set_groups(request: web.Request) -> web.Response:
    """Store the groups, which need not have bookies yet. 412 for an invalid value."""
    value = await body_of(request)
    flaw = flaw_of_affinity(value)
    return failure(412, flaw) if flaw else await _store(request, value)


async def remove_groups(request: web.Request) -> web.Response:
    """Let all bookies hold the next ledgers."""
    return await _store(request, None)


async def _store(request: web.Request, value: object) -> web.Response:
    broker, namespace = broker_of(request), namespace_of(request)
    await broker.policies.set_local(namespace, BOOKIE_AFFINITY, value)
    await broker.apply_policies(lambda name: name.namespace == namespace)
    return done()
