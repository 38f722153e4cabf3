"""Resource groups, at Pulsar's paths: rates of publishing and delivery that several namespaces share.

    GET    /admin/v2/resourcegroups                                       [name]
    GET    /admin/v2/resourcegroups/{group}                               see `policies.resource_groups`
    PUT    /admin/v2/resourcegroups/{group}                               creates it, or changes the given rates
    DELETE /admin/v2/resourcegroups/{group}                               412 while a namespace belongs to it
    GET, DELETE .../namespaces/{tenant}/{namespace}/resourcegroup         the name of the group as text
    POST        .../namespaces/{tenant}/{namespace}/resourcegroup/{group}

All brokers together keep to the rates; see `topic.resource_groups`.
"""

from collections.abc import Iterator

from aiohttp import web

from quire_broker.admin.answers import answer, answer_text, done, failure, object_of
from quire_broker.admin.context import broker_of, policies_of
from quire_broker.admin.descriptions import NAMES, TEXT, described
from quire_broker.admin.namespaces import change_policies
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError, NotFoundError
from quire_broker.limits import RESOURCE_GROUPS_MAX
from quire_broker.names import check_part
from quire_broker.policies.resource_group_nodes import ResourceGroupNodes
from quire_broker.policies.resource_groups import FORM, GROUP, NO_LIMIT, RATES, flaw_of_group
from quire_broker.policies.store import Json


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/resourcegroups"
    yield Route("GET", root, list_groups, Need.SUPER_USER)
    yield Route("GET", f"{root}/{{group}}", get_group, Need.SUPER_USER)
    yield Route("PUT", f"{root}/{{group}}", put_group, Need.SUPER_USER)
    yield Route("DELETE", f"{root}/{{group}}", delete_group, Need.SUPER_USER)
    of_namespace = "/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup"
    yield Route("GET", of_namespace, group_of_namespace, Need.NAMESPACE)
    yield Route("POST", f"{of_namespace}/{{group}}", join_group, Need.NAMESPACE)
    yield Route("DELETE", of_namespace, leave_group, Need.NAMESPACE)


def _nodes(request: web.Request) -> ResourceGroupNodes:
    return ResourceGroupNodes(broker_of(request).metadata)


@described(returns=NAMES)
async def list_groups(request: web.Request) -> web.Response:
    """Return the names."""
    return answer(sorted(await _nodes(request).all()))


async def _group(request: web.Request) -> Json:
    found = await _nodes(request).get(request.match_info["group"])
    if found is None:
        raise NotFoundError("ResourceGroup does not exist")
    return found


@described(returns=FORM.schema)
async def get_group(request: web.Request) -> web.Response:
    """Return the rates; -1 for those that are not limited."""
    return answer(dict.fromkeys(RATES, NO_LIMIT) | await _group(request))


@described(body=FORM.schema)
async def put_group(request: web.Request) -> web.Response:
    """Create a group, or change the rates that are given."""
    name, value, nodes = request.match_info["group"], await object_of(request), _nodes(request)
    check_part("resource group", name)
    flaw = flaw_of_group(value)
    if flaw:
        return failure(412, flaw)
    known = await nodes.all()
    if name not in known and len(known) >= RESOURCE_GROUPS_MAX:
        raise NotAllowedError(f"there are {RESOURCE_GROUPS_MAX} resource groups; delete one first")
    await nodes.put(name, value)
    return done()


async def delete_group(request: web.Request) -> web.Response:
    """Delete a group to which no namespace belongs."""
    await _group(request)
    name, nodes = request.match_info["group"], _nodes(request)
    member = await nodes.member_of(name)
    if member is not None:
        raise NotAllowedError(f"{name} is still used by the namespace {member}: remove its resource group first")
    await nodes.delete(name)
    return done()


@described(returns=TEXT)
async def group_of_namespace(request: web.Request) -> web.Response:
    """Return the name of the namespace's group; no content if it has none."""
    return answer_text((await policies_of(request)).get(GROUP) or None)


async def join_group(request: web.Request) -> web.Response:
    """Limit the namespace's topics by the rates of a group, together with those of its other namespaces."""
    await policies_of(request)
    await _group(request)
    return await change_policies(request, lambda policies: policies.update({GROUP: request.match_info["group"]}))


async def leave_group(request: web.Request) -> web.Response:
    """Remove the namespace from its group."""
    return await change_policies(request, lambda policies: policies.pop(GROUP, None))
