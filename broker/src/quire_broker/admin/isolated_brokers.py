"""The namespace isolation policies by broker, at Pulsar's paths: which namespaces each available broker is kept for.

GET .../clusters/{cluster}/namespaceIsolationPolicies/brokers            a list, of every available broker
GET .../clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}   of one: host:port
"""

from collections.abc import Iterable, Iterator
from typing import Any

from aiohttp import web

from quire_broker.admin.answers import answer
from quire_broker.admin.clusters import require_own_cluster
from quire_broker.admin.context import broker_of
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotFoundError
from quire_broker.ownership.isolation import IsolationPolicy, host_of, usable_policies
from quire_broker.ownership.registration import BROKERS


def routes() -> Iterator[Route]:
    """Yield the routes of this module. They go before those of `clusters`: a policy could be named `brokers`."""
    root = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers"
    yield Route("GET", root, brokers, Need.SUPER_USER)
    yield Route("GET", f"{root}/{{broker}}", one_broker, Need.SUPER_USER)


async def brokers(request: web.Request) -> web.Response:
    """Return the policies that name each available broker."""
    require_own_cluster(request)
    broker = broker_of(request)
    policies = list(usable_policies(await broker.policies.isolation()))
    return answer([_shown(one, policies) for one in await broker.metadata.children(BROKERS)])


async def one_broker(request: web.Request) -> web.Response:
    """Return the policies that name one broker; 404 if it is not available."""
    require_own_cluster(request)
    broker, wanted = broker_of(request), request.match_info["broker"]
    if wanted not in await broker.metadata.children(BROKERS):
        raise NotFoundError(f"{wanted[:100]} is not an available broker; GET /admin/v2/brokers lists them")
    return answer(_shown(wanted, usable_policies(await broker.policies.isolation())))


def _shown(broker_id: str, policies: Iterable[tuple[str, IsolationPolicy]]) -> dict[str, Any]:
    """Return the namespaces of all policies that name a broker; without any it may serve every other namespace."""
    found: dict[str, Any] = {"brokerName": broker_id, "policyName": None, "primary": False}
    namespaces: list[str] = []
    for name, policy in policies:
        primary = policy.names_first(host_of(broker_id))
        if primary or policy.names_second(host_of(broker_id)):
            found |= {"policyName": name, "primary": primary}
            namespaces += policy.namespaces
    return found | {"namespaceRegex": namespaces}
