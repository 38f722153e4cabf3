"""One look at a pool: its objects in Kubernetes, its bookies, and the cluster's metadata through any of them.

Reads only. What does not answer is left out or None, never guessed; only an API server that is away ends a look.
"""

import asyncio
from typing import Any

from quire_operator.api import API_VERSION
from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import bookie_host
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, child_name, selector_text
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import bookie_path, collection, object_path
from quire_operator.errors import UnreachableError
from quire_operator.plan.seen import (
    BookieSeen,
    ClaimSeen,
    ClusterSeen,
    NamespaceSeen,
    PodSeen,
    PoolSeen,
    StatefulSetSeen,
)

ZONE_LABEL = "topology.kubernetes.io/zone"
_NODES, _CLASSES = "/api/v1/nodes", "/apis/storage.k8s.io/v1/storageclasses"


async def observe_pool(kube: Kube, http: BookieHttp, namespace: str, name: str, now_s: float) -> PoolSeen | None:
    """The look; None when the resource is gone. KubeError, UnreachableError: the API server does not answer."""
    found = await kube.get(bookie_path(namespace, name))
    if found is None:
        return None
    resource = Bookie.model_validate(found)
    pods, recovery, claims, there, ledgers, pools = await asyncio.gather(
        kube.list(collection("v1", "Pod", namespace), selector_text(name, BOOKIE)),
        kube.list(collection("v1", "Pod", namespace), selector_text(name, AUTO_RECOVERY)),
        kube.list(collection("v1", "PersistentVolumeClaim", namespace), selector_text(name, BOOKIE)),
        kube.get(object_path("apps/v1", "StatefulSet", namespace, child_name(name, BOOKIE))),
        kube.list(collection(API_VERSION, "ManagedLedger", None)),
        kube.list(collection(API_VERSION, "Bookie", None)),
    )
    zones = await _zones(kube, {pod["spec"].get("nodeName") for pod in pods} - {None})
    classes = await _expandable_classes(kube) if claims else frozenset()
    known = {row.pod: row.id for row in resource.status.bookies if row.id}
    bookies, cluster, delay_s, hosts = await _ask(http, resource, pods, recovery, known)
    return PoolSeen(
        resource,
        now_s,
        None if there is None else _stateful_set(there),
        tuple(_pod(pod, zones) for pod in pods),
        tuple(_claim(claim, classes) for claim in claims),
        bookies,
        cluster,
        namespaces_on(resource, ledgers, pools),
        known,
        delay_s,
        recovery_ready=any(_is_ready(pod) for pod in recovery),
        hosts=hosts,
    )


async def _ask(
    http: BookieHttp, resource: Bookie, pods: list[Manifest], recovery: list[Manifest], known: dict[str, str]
) -> tuple[dict[str, BookieSeen], ClusterSeen | None, int | None, tuple[str, ...]]:
    """What the bookies say, and what the first that can ask the metadata says of the cluster."""
    hosts = {pod["metadata"]["name"]: ip for pod in pods if (ip := pod.get("status", {}).get("podIP"))}
    asked = [*hosts.values(), *(ip for pod in recovery if (ip := pod.get("status", {}).get("podIP")))]
    ids = dict(known)
    cluster, delay_s = None, None
    operation = resource.status.operation
    also = frozenset(filter(None, [*known.values(), operation.bookie if operation is not None else None]))
    for host in list(asked):
        try:
            ids |= ids_by_pod(resource, list(hosts), await http.addresses(host))
            cluster = await http.cluster(host, also)
            delay_s = await http.lost_bookie_delay_s(host)
            break
        except UnreachableError:
            asked = [*(one for one in asked if one != host), host]
    said = await asyncio.gather(*(_bookie(http, host, ids.get(pod)) for pod, host in hosts.items()))
    bookies = {pod: bookie for pod, bookie in zip(hosts, said, strict=True) if bookie is not None}
    return bookies, cluster, delay_s, tuple(asked)


async def _bookie(http: BookieHttp, host: str, bookie_id: str | None) -> BookieSeen | None:
    """None: it does not answer, or has not registered, so that nobody knows which bookie it is."""
    if bookie_id is None:
        return None
    try:
        return await http.bookie(host, bookie_id)
    except UnreachableError:
        return None


def ids_by_pod(resource: Bookie, pods: list[str], addresses: dict[str, str]) -> dict[str, str]:
    """Which bookie registered under a pod's name."""
    by_host = {address.rsplit(":", 1)[0]: bookie for bookie, address in addresses.items()}
    hosts = {pod: bookie_host(resource.meta, pod) for pod in pods}
    return {pod: by_host[host] for pod, host in hosts.items() if host in by_host}


def namespaces_on(resource: Bookie, ledgers: list[Manifest], pools: list[Manifest]) -> tuple[NamespaceSeen, ...]:
    """ManagedLedgers whose pool is on the same etcd as this one; those of other Kubernetes namespaces too."""
    mine = set(resource.spec.metadata.endpoints)
    cluster = {
        (pool["metadata"]["namespace"], pool["metadata"]["name"])
        for pool in pools
        if mine & set(pool["spec"]["metadata"]["endpoints"])
    }
    found = []
    for item in ledgers:
        ledger = ManagedLedger.model_validate(item)
        pool = (ledger.meta.namespace, ledger.spec.bookie_ref.name)
        if pool in cluster:
            own = pool == (resource.meta.namespace, resource.meta.name)
            found.append(NamespaceSeen(ledger.meta.name, ledger.spec.replication.ensemble, own))
    return tuple(found)


async def _zones(kube: Kube, nodes: set[Any]) -> dict[str, str]:
    """Zone by node; nodes are asked for by name, a cluster may have thousands."""
    names = sorted(nodes)
    found = await asyncio.gather(*(kube.get(f"{_NODES}/{name}") for name in names))
    labels = [{} if node is None else node["metadata"].get("labels", {}) for node in found]
    return {name: label[ZONE_LABEL] for name, label in zip(names, labels, strict=True) if ZONE_LABEL in label}


async def _expandable_classes(kube: Kube) -> frozenset[str]:
    classes = await kube.list(_CLASSES)
    return frozenset(one["metadata"]["name"] for one in classes if one.get("allowVolumeExpansion"))


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _pod(pod: Manifest, zones: dict[str, str]) -> PodSeen:
    metadata, node = pod["metadata"], pod["spec"].get("nodeName")
    return PodSeen(
        metadata["name"],
        metadata["uid"],
        metadata.get("labels", {}).get("controller-revision-hash", ""),
        ready=_is_ready(pod),
        deleting="deletionTimestamp" in metadata,
        node=node,
        zone=zones.get(node) if node is not None else None,
    )


def _claim(claim: Manifest, classes: frozenset[str]) -> ClaimSeen:
    """Its name is `<template>-<pod>`."""
    metadata, spec = claim["metadata"], claim["spec"]
    template, _, pod = metadata["name"].partition("-")
    return ClaimSeen(
        metadata["name"],
        template,
        pod,
        spec["resources"]["requests"]["storage"],
        claim.get("status", {}).get("capacity", {}).get("storage"),
        metadata["uid"],
        spec.get("volumeName"),
        expandable=spec.get("storageClassName") in classes,
        deleting="deletionTimestamp" in metadata,
    )


def _stateful_set(there: Manifest) -> StatefulSetSeen:
    metadata, spec, status = there["metadata"], there["spec"], there.get("status", {})
    return StatefulSetSeen(
        metadata["name"],
        metadata["uid"],
        spec["replicas"],
        status.get("updateRevision", ""),
        tuple(_template(template) for template in spec.get("volumeClaimTemplates", ())),
        current=status.get("observedGeneration") == metadata["generation"],
        deleting="deletionTimestamp" in metadata,
    )


def _template(template: Manifest) -> Manifest:
    """A claim template without what the API server adds, as it can be applied again."""
    metadata = {key: value for key, value in template["metadata"].items() if key in ("name", "labels")}
    return {key: value for key, value in template.items() if key != "status"} | {"metadata": metadata}
