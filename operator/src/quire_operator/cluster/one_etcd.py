"""Decides by endpoint names whether two resources use the same etcd, and so are one cluster. Pure."""

from collections.abc import Iterable

_CLUSTER_DOMAIN = ".cluster.local"


def members(endpoints: Iterable[str], namespace: str) -> frozenset[str]:
    """Return the endpoints of a resource as `host:port`, normalized so that they are valid in every namespace.

    A Service may be named by its name only, within its namespace, or with the namespace, `svc` and the cluster's domain
    appended. An ambiguous name (`quire-etcd.quire`) is treated as that of a Service. Different names of the same store,
    such as a Service and a load balancer in front of it, are not recognized.
    """
    return frozenset(_everywhere(endpoint, namespace) for endpoint in endpoints)


def is_one(ours: frozenset[str], endpoints: Iterable[str], namespace: str) -> bool:
    """Return whether the endpoints of another resource have a member in common with `ours`."""
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
