"""Whether two resources name the same etcd, and so are one cluster: by the names they give it. Pure."""

from collections.abc import Iterable

_CLUSTER_DOMAIN = ".cluster.local"


def members(endpoints: Iterable[str], namespace: str) -> frozenset[str]:
    """The endpoints of a resource in a Kubernetes namespace, each `host:port` as every namespace would write it.

    A Service is known in its own namespace by its first name alone, elsewhere with its namespace behind it, and to both
    with `svc` and the cluster's domain. Where a name could be another one too (`quire-etcd.quire`) it is taken for a
    Service's. Different names for one store, such as a Service and a load balancer before it, cannot be told.
    """
    return frozenset(_everywhere(endpoint, namespace) for endpoint in endpoints)


def is_one(ours: frozenset[str], endpoints: Iterable[str], namespace: str) -> bool:
    """Those of another resource have a member in common with `ours`."""
    return not ours.isdisjoint(members(endpoints, namespace))


def _everywhere(endpoint: str, namespace: str) -> str:
    host, _, port = endpoint.lower().rpartition(":")
    host = host.removesuffix(_CLUSTER_DOMAIN)
    labels = host.split(".")
    if len(labels) == 1 and host != "localhost":
        host = f"{host}.{namespace}.svc"
    elif len(labels) == 2:
        host = f"{host}.svc"
    return f"{host}:{int(port)}"
