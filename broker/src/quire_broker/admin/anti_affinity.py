"""Anti-affinity groups of namespaces, and failure domains of brokers, under Pulsar's paths.

    /admin/v2/namespaces/{tenant}/{namespace}/antiAffinity   the name of the group, as text or as a JSON string
    /admin/v2/namespaces/{cluster}/antiAffinity/{group}      ["tenant/namespace"]: the members of a group
    /admin/v2/clusters/{cluster}/failureDomains/{domain}     {"brokers": ["host:port"]}

The leader of the brokers keeps the namespaces of a group apart when it assigns and moves bundles.
"""

from collections.abc import Iterator

from aiohttp import web

from quire_bookie.admin.answers import json_of, text_of
from quire_bookie.control_characters import has_control_characters
from quire_broker.admin.answers import answer, answer_text, done, object_of
from quire_broker.admin.clusters import require_own_cluster
from quire_broker.admin.context import broker_of, namespace_of
from quire_broker.admin.descriptions import NAMES, TEXT, Query, described, fields
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError, NotFoundError
from quire_broker.limits import FAILURE_DOMAIN_BROKERS_MAX, NAME_CHARACTERS_MAX
from quire_broker.names import check_part
from quire_broker.policies.store import ANTI_AFFINITY

_DOMAIN = fields(("brokers",), brokers=NAMES)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    group = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
    yield Route("GET", group, get_group, Need.NAMESPACE)
    yield Route("POST", group, set_group, Need.NAMESPACE)
    yield Route("DELETE", group, remove_group, Need.NAMESPACE)
    for root in ("/admin/v2/namespaces", "/admin/namespaces"):  # stock tools use the second
        yield Route("GET", f"{root}/{{cluster}}/antiAffinity/{{group}}", members, Need.SUPER_USER)
    domains = "/admin/v2/clusters/{cluster}/failureDomains"
    yield Route("GET", domains, list_domains, Need.SUPER_USER)
    yield Route("GET", f"{domains}/{{domain}}", get_domain, Need.SUPER_USER)
    yield Route("POST", f"{domains}/{{domain}}", set_domain, Need.SUPER_USER)
    yield Route("DELETE", f"{domains}/{{domain}}", delete_domain, Need.SUPER_USER)


@described(returns=TEXT)
async def get_group(request: web.Request) -> web.Response:
    """Return the name of the group; no content if the namespace has none."""
    return answer_text(await broker_of(request).policies.anti_affinity(namespace_of(request)))


@described(body=TEXT)
async def set_group(request: web.Request) -> web.Response:
    """Put the namespace into a group. Bundles that have an owner stay there until they move."""
    text = (await text_of(request)).strip()
    group = json_of(text) if text.startswith(('"', "{", "[")) else text  # stock tools send the name without quotes
    if not isinstance(group, str) or not 0 < len(group) <= NAME_CHARACTERS_MAX or has_control_characters(group):
        raise NotAllowedError(f"an anti-affinity group must be a name of 1 to {NAME_CHARACTERS_MAX} characters")
    await broker_of(request).policies.set_local(namespace_of(request), ANTI_AFFINITY, group)
    return done()


@described(
    Query("tenant", TEXT, "only namespaces of this tenant"),
    Query("property", TEXT, "the same, as stock tools name it"),
    returns=NAMES,
)
async def members(request: web.Request) -> web.Response:
    """Return the namespaces of a group; with the query `tenant` or `property` only of this one."""
    require_own_cluster(request)
    wanted, tenant = request.match_info["group"], request.query.get("tenant", request.query.get("property"))
    found = (await broker_of(request).policies.anti_affinity_groups()).items()
    return answer(sorted(name for name, group in found if group == wanted and tenant in (None, name.split("/")[0])))


async def remove_group(request: web.Request) -> web.Response:
    """Take the namespace out of its group."""
    await broker_of(request).policies.set_local(namespace_of(request), ANTI_AFFINITY, None)
    return done()


@described(returns={"type": "object", "additionalProperties": _DOMAIN})
async def list_domains(request: web.Request) -> web.Response:
    """Return `{domain: {"brokers": [...]}}`."""
    require_own_cluster(request)
    domains = await broker_of(request).policies.failure_domains()
    return answer({name: {"brokers": brokers} for name, brokers in domains.items()})


@described(returns=_DOMAIN)
async def get_domain(request: web.Request) -> web.Response:
    """Return one domain."""
    require_own_cluster(request)
    brokers = (await broker_of(request).policies.failure_domains()).get(request.match_info["domain"])
    if brokers is None:
        raise NotFoundError(f"Failure domain {request.match_info['domain']} does not exist")
    return answer({"brokers": brokers})


@described(body=_DOMAIN)
async def set_domain(request: web.Request) -> web.Response:
    """Create or replace a domain."""
    require_own_cluster(request)
    check_part("failure domain", request.match_info["domain"])
    brokers = (await object_of(request)).get("brokers")
    if not isinstance(brokers, list) or not all(isinstance(each, str) and each for each in brokers):
        raise NotAllowedError("brokers must be a list of broker ids, host:port")
    if len(brokers) > FAILURE_DOMAIN_BROKERS_MAX:
        raise NotAllowedError(f"{len(brokers)} brokers in a failure domain; the limit is {FAILURE_DOMAIN_BROKERS_MAX}")
    await broker_of(request).policies.set_failure_domain(request.match_info["domain"], brokers)
    return done()


async def delete_domain(request: web.Request) -> web.Response:
    """Delete a domain."""
    require_own_cluster(request)
    await broker_of(request).policies.set_failure_domain(request.match_info["domain"], None)
    return done()
