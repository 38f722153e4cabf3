"""What clusters know of each other, at Pulsar's paths: peer clusters, and where a cluster has moved to.

GET, POST .../clusters/{cluster}/peers     ["name"]: clusters with the same namespaces, which do not replicate them
GET, POST .../clusters/{cluster}/migrate   {"migrated", "migratedClusterUrl": {...}}; POST takes ?isMigrated= and URLs

These records are for the brokers of the other clusters. A broker does not send its own clients to another cluster, so
it refuses to declare its own cluster as moved.
"""

from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.answers import answer, body_of, done, flag, object_of
from quire_broker.admin.context import broker_of
from quire_broker.admin.descriptions import BOOLEAN, NAMES, OBJECT, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotAllowedError, NotFoundError
from quire_broker.limits import NAME_CHARACTERS_MAX, PEER_CLUSTERS_MAX

PEERS: Final = "peerClusterNames"
_URLS: Final = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls")
_EMPTY: Final = "empty"
"""Stock tools send whether there are URLs as a field of its own."""
MOVED: Final = "this broker does not send clients to another cluster: move them by their service URL"


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    root = "/admin/v2/clusters/{cluster}"
    yield Route("GET", f"{root}/peers", peers, Need.SUPER_USER)
    yield Route("POST", f"{root}/peers", set_peers, Need.SUPER_USER)
    yield Route("GET", f"{root}/migrate", migration, Need.SUPER_USER)
    yield Route("POST", f"{root}/migrate", set_migration, Need.SUPER_USER)


@described(returns=NAMES)
async def peers(request: web.Request) -> web.Response:
    """Return the names of the peer clusters; no content if they were never set."""
    found = (await broker_of(request).policies.read_cluster(request.match_info["cluster"])).get(PEERS)
    return done() if found is None else answer(found)


@described(body=NAMES)
async def set_peers(request: web.Request) -> web.Response:
    """Store the peer clusters, which must exist."""
    policies, cluster = broker_of(request).policies, request.match_info["cluster"]
    names = await body_of(request) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NotAllowedError("the body must be a JSON list of names of clusters")
    names = [name for name in dict.fromkeys(names) if name]
    if len(names) > PEER_CLUSTERS_MAX:
        raise NotAllowedError(f"{len(names)} peer clusters; the limit is {PEER_CLUSTERS_MAX}")
    if cluster in names:
        raise NotAllowedError(f"{cluster} itself can't be part of the peer-list")
    known = await policies.clusters()
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise NotAllowedError(f"Peer cluster {missing[:100]!r} does not exist")
    await policies.update_cluster(cluster, {PEERS: names})
    return done()


@described(returns=OBJECT)
async def migration(request: web.Request) -> web.Response:
    """Return whether and where the cluster has moved. 404 if that was never set."""
    policies, cluster = broker_of(request).policies, request.match_info["cluster"]
    await policies.read_cluster(cluster)
    found = await policies.cluster_migration(cluster)
    if found is None:
        raise NotFoundError("Cluster does not exist")
    return answer(found)


@described(Query("isMigrated", BOOLEAN, "whether the cluster has moved"), body=OBJECT)
async def set_migration(request: web.Request) -> web.Response:
    """Store it for the brokers of that cluster. 501 to declare the cluster of this broker as moved."""
    broker, cluster = broker_of(request), request.match_info["cluster"]
    urls, moved = await object_of(request), flag(request, "isMigrated")
    if moved and cluster == broker.settings.cluster:
        raise RefusedError(501, f"migration of {cluster} is not supported by this broker: {MOVED}")
    await broker.policies.read_cluster(cluster)
    await broker.policies.set_cluster_migration(cluster, {"migrated": moved, "migratedClusterUrl": _urls_of(urls)})
    return done()


def _urls_of(body: dict[str, Any]) -> dict[str, str | None]:
    """Return the URLs of the body. NotAllowedError."""
    for name, value in body.items():
        if name == _EMPTY and isinstance(value, bool):
            continue
        if value is not None and (not isinstance(value, str) or len(value) > NAME_CHARACTERS_MAX):
            raise NotAllowedError(f"{name[:100]!r} must be a text of at most {NAME_CHARACTERS_MAX} characters")
    return {name: body.get(name) for name in _URLS}
