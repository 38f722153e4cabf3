"""One look at a pool: its objects in Kubernetes, its bookies, and the cluster's metadata through any of them.

Reads only. What does not answer is left out or None, never guessed; only an API server that is away ends a look.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger_spec import Replication
from quire_operator.api.shared import Metadata, Monitoring
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import bookie_host, https_secret
from quire_operator.builders.effective import effective_bookie
from quire_operator.builders.naming import (
    AUTO_RECOVERY,
    BOOKIE,
    CONTAINER,
    CREDENTIALS_HASH,
    FIELD_MANAGER,
    MONITORING_VERSION,
    REPLACE_ANNOTATION,
    ZONE_ANNOTATION,
    child_name,
    selector_text,
)
from quire_operator.builders.settings import POOL_SECRET_KEYS
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.judges import Judge, operator_token, trust_of, trusting_nobody
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.lost_volumes import last_words, volumes_gone
from quire_operator.cluster.memory import Cache, Memory
from quire_operator.cluster.one_etcd import is_one, members
from quire_operator.cluster.paths import bookie_path, collection, object_path
from quire_operator.errors import KubeError, UnreachableError
from quire_operator.plan.seen import (
    BookieSeen,
    ClaimSeen,
    ClusterSeen,
    NamespaceSeen,
    PodSeen,
    PoolSeen,
    StatefulSetSeen,
)

ENSEMBLE = Replication.model_fields["ensemble"].default
_NODES, _CLASSES = "/api/v1/nodes", "/apis/storage.k8s.io/v1/storageclasses"
_MONITORING = f"/apis/{MONITORING_VERSION}"


async def observe_pool(
    kube: Kube, http: BookieHttp, namespace: str, name: str, now_s: float, memory: Memory, *, generated: bool = False
) -> PoolSeen | None:
    """The look; None when the resource is gone. KubeError, UnreachableError: the API server does not answer.

    `generated`: the operator makes certificates.
    """
    found = await kube.get(bookie_path(namespace, name))
    if found is None:
        http.judge(f"{namespace}/{name}", (), {})
        return None
    resource = Bookie.model_validate(found)
    all_pods, claims, there = await asyncio.gather(
        kube.list(collection("v1", "Pod", namespace), f"app.kubernetes.io/instance={name}"),
        kube.list(collection("v1", "PersistentVolumeClaim", namespace), selector_text(name, BOOKIE)),
        kube.get(object_path("apps/v1", "StatefulSet", namespace, child_name(name, BOOKIE))),
    )
    # Who needs the bookies decides whether one may leave, and whether the pool may go.
    leaving = resource.meta.deletion_timestamp is not None or _is_too_large(resource, all_pods, there)
    ledgers, pools = await asyncio.gather(
        *(memory.all(kube, kind, for_certain=leaving) for kind in ("ManagedLedger", "Bookie"))
    )
    pods, recovery = _of_part(all_pods, BOOKIE), _of_part(all_pods, AUTO_RECOVERY)
    nodes = {pod["spec"].get("nodeName") for pod in pods} - {None}
    zones = await _zones(kube, nodes, resource.spec.placement.topology_keys[:1], memory.cache, now_s)
    gone = await volumes_gone(kube, pods, claims)
    classes = await _expandable_classes(kube, memory.cache, now_s) if claims else frozenset()
    known = {row.pod: row.id for row in resource.status.bookies if row.id}
    hosts, judges = await _judges(kube, effective_bookie(resource, generated), pods, recovery)
    authentication, token, lacking = resource.spec.authentication, None, frozenset[str]()
    if authentication is not None:
        token, there_are = await operator_token(kube, namespace, authentication.token_key_secret)
        lacking = frozenset(POOL_SECRET_KEYS) - there_are
    http.judge(f"{namespace}/{name}", hosts, judges, token)
    bookies, cluster, delay_s, answering = await _ask(http, resource, pods, recovery, known)
    return PoolSeen(
        resource,
        now_s,
        None if there is None else stateful_set_seen(there),
        tuple(pod_seen(pod, zones) for pod in pods),
        tuple(_claim(claim, classes, gone) for claim in claims),
        bookies,
        cluster,
        namespaces_on(resource, ledgers, pools),
        known,
        delay_s,
        pod_monitors=await knows_pod_monitors(kube, memory.cache, now_s),
        unwanted_monitors=await unwanted_monitors(
            kube, memory.cache, now_s, resource.meta, resource.spec.monitoring, (BOOKIE, AUTO_RECOVERY)
        ),
        recovery_ready=any(_is_ready(pod) for pod in recovery),
        hosts=answering,
        lacking_secret_keys=lacking,
    )


def _is_too_large(resource: Bookie, pods: list[Manifest], there: Manifest | None) -> bool:
    """More bookies than are wanted, so that one may be taken away in this pass."""
    found = len(_of_part(pods, BOOKIE))
    return resource.spec.replicas < (found if there is None else max(found, there["spec"]["replicas"]))


async def _judges(
    kube: Kube, resource: Bookie, pods: list[Manifest], recovery: list[Manifest]
) -> tuple[list[str], dict[str, Judge]]:
    """The IPs of all pods, and by what those that serve TLS are judged."""
    meta = resource.meta
    names = {ip: bookie_host(meta, pod["metadata"]["name"]) for pod in pods if (ip := _ip(pod)) is not None}
    service = f"{child_name(meta.name, AUTO_RECOVERY)}.{meta.namespace}.svc"
    names |= {ip: service for pod in recovery if (ip := _ip(pod)) is not None}
    secret = https_secret(resource)
    if secret is None:
        return list(names), {}
    context = await trust_of(kube, meta.namespace, secret) or trusting_nobody()
    required = {_ip(pod) for pod in (*pods, *recovery) if requires_tls(pod)}
    return list(names), {ip: Judge(context, name, ip in required) for ip, name in names.items()}


def requires_tls(pod: Manifest) -> bool:
    """It was made when its HTTP port was to serve TLS: its kubelet asks it that way too."""
    probes = [
        container.get(f"{kind}Probe") or {}
        for container in pod["spec"].get("containers", ())
        if container.get("name") == CONTAINER
        for kind in ("readiness", "liveness", "startup")
    ]
    return any((probe.get("httpGet") or {}).get("scheme") == "HTTPS" for probe in probes)


def _ip(pod: Manifest) -> str | None:
    found = pod.get("status", {}).get("podIP")
    return None if found is None else str(found)


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
    also |= {lost.id for lost in resource.status.lost_bookies}
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


def _of_part(pods: list[Manifest], part: str) -> list[Manifest]:
    return [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/name") == f"quire-{part}"]


def namespaces_on(
    resource: Bookie, ledgers: Iterable[Manifest], pools: Iterable[Manifest]
) -> tuple[NamespaceSeen, ...]:
    """ManagedLedgers whose pool is on the same etcd as this one; those of other Kubernetes namespaces too.

    Read as they are, without defaults but the ensemble's: there may be hundreds, and this is done in every pass.
    """
    mine = members(resource.spec.metadata.endpoints, resource.meta.namespace)
    cluster = pools_on(mine, pools)
    found = []
    for item in ledgers:
        metadata, spec = item["metadata"], item["spec"]
        pool = (metadata["namespace"], spec["bookieRef"]["name"])
        if pool in cluster:
            own = pool == (resource.meta.namespace, resource.meta.name)
            ensemble = spec.get("replication", {}).get("ensemble", ENSEMBLE)
            found.append(NamespaceSeen(metadata["name"], ensemble, own))
    return tuple(found)


def pools_on(ours: frozenset[str], pools: Iterable[Manifest]) -> set[tuple[str, str]]:
    """Namespace and name of the pools on an etcd, given by its `members`."""
    return {
        (pool["metadata"]["namespace"], pool["metadata"]["name"])
        for pool in pools
        if is_one(ours, pool["spec"]["metadata"]["endpoints"], pool["metadata"]["namespace"])
    }


async def _zones(kube: Kube, nodes: set[Any], keys: tuple[str, ...], cache: Cache, now_s: float) -> dict[str, str]:
    """Zone by node, empty for one without; nodes are asked for by name, a cluster may have thousands.

    `keys`: the label that names it, or none.
    """
    if not keys:
        return {}
    names = sorted(nodes)
    found = await asyncio.gather(*(cache.get(kube, f"{_NODES}/{name}", now_s) for name in names))
    return {
        name: node["metadata"].get("labels", {}).get(keys[0], "")
        for name, node in zip(names, found, strict=True)
        if node is not None
    }


async def knows_pod_monitors(kube: Kube, cache: Cache, now_s: float) -> bool:
    """Prometheus' operator is installed, and we may look: nothing else waits for it. UnreachableError."""
    try:
        found = await cache.get(kube, _MONITORING, now_s)
    except KubeError:
        return False
    return found is not None and any(one.get("kind") == "PodMonitor" for one in found.get("resources", ()))


async def unwanted_monitors(
    kube: Kube, cache: Cache, now_s: float, meta: Metadata, monitoring: Monitoring, parts: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Name and uid of the PodMonitors that we made for these parts and that are not wanted (any more)."""
    if monitoring.enabled or not await knows_pod_monitors(kube, cache, now_s):
        return ()
    paths = [
        object_path(MONITORING_VERSION, "PodMonitor", meta.namespace, child_name(meta.name, part)) for part in parts
    ]
    try:
        found = await asyncio.gather(*(cache.get(kube, path, now_s) for path in paths))
    except KubeError:
        return ()  # we may not look: whoever forbids that made none of ours possible either
    ours = [one["metadata"] for one in found if one is not None]
    ours = [one for one in ours if one.get("labels", {}).get("app.kubernetes.io/managed-by") == FIELD_MANAGER]
    return tuple((one["name"], one["uid"]) for one in ours)


async def _expandable_classes(kube: Kube, cache: Cache, now_s: float) -> frozenset[str]:
    classes = await cache.list(kube, _CLASSES, now_s)
    return frozenset(one["metadata"]["name"] for one in classes if one.get("allowVolumeExpansion"))


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def pod_seen(pod: Manifest, zones: dict[str, str]) -> PodSeen:
    """A pod as the plans see it; `zones` by node."""
    metadata, node = pod["metadata"], pod["spec"].get("nodeName")
    annotations = metadata.get("annotations", {})
    return PodSeen(
        metadata["name"],
        metadata["uid"],
        metadata.get("labels", {}).get("controller-revision-hash", ""),
        ready=_is_ready(pod),
        started=any(one.get("started") for one in pod.get("status", {}).get("containerStatuses", ())),
        deleting="deletionTimestamp" in metadata,
        node=node,
        zone=zones.get(node) if node is not None else None,
        zone_annotation=annotations.get(ZONE_ANNOTATION),
        failure=last_words(pod),
        replace_asked=REPLACE_ANNOTATION in annotations,
    )


def _claim(claim: Manifest, classes: frozenset[str], gone: dict[str, str]) -> ClaimSeen:
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
        gone=gone.get(metadata["name"]),
    )


def stateful_set_seen(there: Manifest) -> StatefulSetSeen:
    """A StatefulSet as the plans see it."""
    metadata, spec, status = there["metadata"], there["spec"], there.get("status", {})
    return StatefulSetSeen(
        metadata["name"],
        metadata["uid"],
        spec["replicas"],
        status.get("updateRevision", ""),
        tuple(_template(template) for template in spec.get("volumeClaimTemplates", ())),
        current=status.get("observedGeneration") == metadata["generation"],
        deleting="deletionTimestamp" in metadata,
        credentials=((spec.get("template") or {}).get("metadata", {}).get("annotations") or {}).get(CREDENTIALS_HASH),
    )


def _template(template: Manifest) -> Manifest:
    """A claim template without what the API server adds, as it can be applied again."""
    metadata = {key: value for key, value in template["metadata"].items() if key in ("name", "labels")}
    return {key: value for key, value in template.items() if key != "status"} | {"metadata": metadata}
