"""/admin/v2/clusters and /admin/v2/tenants."""

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_broker.admin.answers import answer, done, failure, object_of
from quire_broker.admin.context import broker_of
from quire_broker.admin.descriptions import NAMES, OBJECT, described
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import ConflictError, NotAllowedError, NotFoundError
from quire_broker.names import check_part
from quire_broker.ownership.isolation import policy_of
from quire_broker.policies.fields import TENANT


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/clusters"
    yield Route("GET", root, list_clusters, Need.A_ROLE)
    yield Route("GET", f"{root}/{{cluster}}", get_cluster, Need.SUPER_USER)
    yield Route("PUT", f"{root}/{{cluster}}", create_cluster, Need.SUPER_USER)
    yield Route("POST", f"{root}/{{cluster}}", update_cluster, Need.SUPER_USER)
    yield Route("DELETE", f"{root}/{{cluster}}", delete_cluster, Need.SUPER_USER)
    isolation = f"{root}/{{cluster}}/namespaceIsolationPolicies"
    yield Route("GET", isolation, isolation_policies, Need.SUPER_USER)
    yield Route("GET", f"{isolation}/{{policy}}", isolation_policy, Need.SUPER_USER)
    yield Route("POST", f"{isolation}/{{policy}}", set_isolation_policy, Need.SUPER_USER)
    yield Route("DELETE", f"{isolation}/{{policy}}", delete_isolation_policy, Need.SUPER_USER)
    root = "/admin/v2/tenants"
    yield Route("GET", root, list_tenants, Need.SUPER_USER)
    yield Route("GET", f"{root}/{{tenant}}", get_tenant, Need.SUPER_USER)
    yield Route("PUT", f"{root}/{{tenant}}", create_tenant, Need.SUPER_USER)
    yield Route("POST", f"{root}/{{tenant}}", update_tenant, Need.SUPER_USER)
    yield Route("DELETE", f"{root}/{{tenant}}", delete_tenant, Need.SUPER_USER)


@described(returns=NAMES)
async def list_clusters(request: web.Request) -> web.Response:
    """List the names."""
    return answer(await broker_of(request).policies.clusters())


@described(returns=OBJECT)
async def get_cluster(request: web.Request) -> web.Response:
    """Return ClusterData."""
    return answer(await broker_of(request).policies.read_cluster(request.match_info["cluster"]))


@described(body=OBJECT)
async def create_cluster(request: web.Request) -> web.Response:
    """Create a cluster."""
    check_part("cluster", request.match_info["cluster"])
    await broker_of(request).policies.create_cluster(request.match_info["cluster"], await object_of(request))
    return done()


@described(body=OBJECT)
async def update_cluster(request: web.Request) -> web.Response:
    """Change ClusterData."""
    await broker_of(request).policies.update_cluster(request.match_info["cluster"], await object_of(request))
    return done()


async def delete_cluster(request: web.Request) -> web.Response:
    """Delete the record of a cluster; our own is in use."""
    broker = broker_of(request)
    if request.match_info["cluster"] == broker.settings.cluster:
        raise ConflictError("Cluster not empty: this broker belongs to it")
    await broker.policies.delete_cluster(request.match_info["cluster"])
    return done()


def require_own_cluster(request: web.Request) -> None:
    """Refuse policies of other clusters, which belong to their own brokers."""
    if request.match_info["cluster"] != broker_of(request).settings.cluster:
        raise NotFoundError("Cluster does not exist, or is not the cluster of this broker")


@described(returns=OBJECT)
async def isolation_policies(request: web.Request) -> web.Response:
    """Return `{name: policy}`."""
    require_own_cluster(request)
    return answer(await broker_of(request).policies.isolation())


@described(returns=OBJECT)
async def isolation_policy(request: web.Request) -> web.Response:
    """Return one policy."""
    require_own_cluster(request)
    found = (await broker_of(request).policies.isolation()).get(request.match_info["policy"])
    if found is None:
        raise NotFoundError("Namespace isolation policy does not exist")
    return answer(found)


@described(body=OBJECT)
async def set_isolation_policy(request: web.Request) -> web.Response:
    """Store a policy. Bundles that other brokers already own stay there until they are unloaded."""
    require_own_cluster(request)
    data = await object_of(request)
    try:
        policy_of(data)
    except ValueError as error:
        return failure(400, str(error))
    await broker_of(request).policies.set_isolation(request.match_info["policy"], data)
    return done()


async def delete_isolation_policy(request: web.Request) -> web.Response:
    """Delete a policy."""
    require_own_cluster(request)
    await broker_of(request).policies.set_isolation(request.match_info["policy"], None)
    return done()


@described(returns=NAMES)
async def list_tenants(request: web.Request) -> web.Response:
    """List the names."""
    return answer(await broker_of(request).policies.tenants())


@described(returns=TENANT.schema)
async def get_tenant(request: web.Request) -> web.Response:
    """Return TenantInfo."""
    return answer(await broker_of(request).policies.read_tenant(request.match_info["tenant"]))


async def _tenant_of(request: web.Request) -> dict[str, Any]:
    """Return the TenantInfo in the body. NotAllowedError."""
    info = await object_of(request)
    expected = TENANT(info)
    if expected:
        raise NotAllowedError(f"a tenant must be {expected}")
    return info


@described(body=TENANT.schema)
async def create_tenant(request: web.Request) -> web.Response:
    """Create a tenant; its clusters must exist."""
    check_part("tenant", request.match_info["tenant"])
    broker = broker_of(request)
    info = await _tenant_of(request)
    allowed = info.get("allowedClusters") or []
    known = await broker.policies.clusters()
    missing = [name for name in allowed if name not in known]
    if not allowed or missing:
        return failure(412, f"Clusters do not exist: {missing}" if missing else "Clusters can not be empty")
    value = {"adminRoles": info.get("adminRoles") or [], "allowedClusters": allowed}
    await broker.policies.create_tenant(request.match_info["tenant"], value)
    return done()


@described(body=TENANT.schema)
async def update_tenant(request: web.Request) -> web.Response:
    """Change TenantInfo."""
    await broker_of(request).policies.update_tenant(request.match_info["tenant"], await _tenant_of(request))
    return done()


async def delete_tenant(request: web.Request) -> web.Response:
    """Delete a tenant without namespaces."""
    await broker_of(request).policies.delete_tenant(request.match_info["tenant"])
    return done()
