"""Observes a pool: its objects in Kubernetes, its bookies, and the cluster's metadata through any of them.

Reads only. Facts that are unavailable are omitted or None, never guessed. Only an unreachable API server is an error.
"""

import asyncio
from collections.abc import Iterable

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger_spec import Replication
from quire_operator.api.operations import OperationType
from quire_operator.api.shared import Metadata, Monitoring
from quire_operator.builders import Manifest, ReadManifest
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
    REVISION_ANNOTATION,
    ZONE_ANNOTATION,
    child_name,
    selector_text,
)
from quire_operator.builders.settings import POOL_SECRET_KEYS
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.lost_volumes import MESSAGE_MAX, last_words, volumes_gone, what_blocks
from quire_operator.cluster.memory import Cache, Memory
from quire_operator.cluster.observing_target import mounted_config_maps, observe_target
from quire_operator.cluster.one_etcd import is_one, members
from quire_operator.cluster.paths import bookie_path, collection, object_path
from quire_operator.cluster.pod_creation import rejected_pod
from quire_operator.cluster.readiness import is_ready, is_started, readiness
from quire_operator.cluster.tls_trust import TlsTrust, operator_token, trust_of, trusting_none
from quire_operator.errors import KubeError, UnreachableError
from quire_operator.plan.metadata_target import ObservedTarget
from quire_operator.plan.observation import (
    ObservedBookie,
    ObservedClaim,
    ObservedCluster,
    ObservedConfigMap,
    ObservedNamespace,
    ObservedPod,
    ObservedStatefulSet,
    PoolObservation,
)

ENSEMBLE = Replication.model_fields["ensemble"].default
_NODES, _CLASSES = "/api/v1/nodes", "/apis/storage.k8s.io/v1/storageclasses"
_MONITORING = f"/apis/{MONITORING_VERSION}"


async def observe_pool(
    kube: Kube, http: BookieHttp, namespace: str, name: str, now_s: float, memory: Memory, *, generated: bool = False
) -> PoolObservation | None:
    """Observe the pool. Returns None if the resource no longer exists. Raises KubeError, UnreachableError.

    `generated`: the operator generates certificates.
    """
    found = await kube.get(bookie_path(namespace, name))
    if found is None:
        http.set_trust(f"{namespace}/{name}", (), {})
        return None
    resource = Bookie.model_validate(found)
    all_pods, claims, there = await asyncio.gather(
        kube.list(collection("v1", "Pod", namespace), f"app.kubernetes.io/instance={name}"),
        kube.list(collection("v1", "PersistentVolumeClaim", namespace), selector_text(name, BOOKIE)),
        kube.get(object_path("apps/v1", "StatefulSet", namespace, child_name(name, BOOKIE))),
    )
    # The users of the bookies decide whether one may be removed, and whether the pool may be deleted.
    leaving = resource.meta.deletion_timestamp is not None or _is_too_large(resource, all_pods, there)
    ledgers, pools = await asyncio.gather(
        *(memory.all(kube, kind, for_certain=leaving) for kind in ("ManagedLedger", "Bookie"))
    )
    pods, recovery = _of_part(all_pods, BOOKIE), _of_part(all_pods, AUTO_RECOVERY)
    zones = await zones_of_nodes(kube, pods, resource, memory.cache, now_s)
    gone = await volumes_gone(kube, pods, claims)
    classes = await _expandable_classes(kube, memory.cache, now_s) if claims else frozenset()
    known = {row.pod: row.id for row in resource.status.bookies if row.id}
    hosts, trusts = await _trusts(kube, effective_bookie(resource, generated), pods, recovery)
    authentication, token, lacking = resource.spec.authentication, None, frozenset[str]()
    if authentication is not None:
        token, there_are = await operator_token(kube, namespace, authentication.token_key_secret)
        lacking = frozenset(POOL_SECRET_KEYS) - there_are
    http.set_trust(f"{namespace}/{name}", hosts, trusts, token)
    target = None
    if bool(known) or any(is_started(pod) for pod in pods):  # a pool that never served may still correct its store
        target = await observe_target(kube, resource, namespace, child_name(name, BOOKIE), there)
    bookies, cluster, delay_s, answering = await _ask(http, resource, pods, recovery, known)
    return PoolObservation(
        resource,
        now_s,
        None
        if there is None
        else observed_stateful_set(there, await rejected_pod(kube, memory.cache, namespace, there, len(pods), now_s)),
        tuple(observed_pod(pod, zones) for pod in pods),
        tuple(_claim(claim, classes, gone) for claim in claims),
        bookies,
        cluster,
        namespaces_on(resource, ledgers, pools, target),
        known,
        delay_s,
        config_maps=await _config_maps(kube, resource, pods, there),
        pod_monitors=await knows_pod_monitors(kube, memory.cache, now_s),
        unwanted_monitors=await unwanted_monitors(
            kube, memory.cache, now_s, resource.meta, resource.spec.monitoring, (BOOKIE, AUTO_RECOVERY)
        ),
        recovery_ready=any(is_ready(pod) for pod in recovery),
        hosts=answering,
        lacking_secret_keys=lacking,
        target=target,
    )


async def _config_maps(
    kube: Kube, resource: Bookie, pods: list[Manifest], there: Manifest | None
) -> tuple[ObservedConfigMap, ...]:
    """Return the ConfigMaps of the bookies during a roll; otherwise none, which saves a request."""
    operation = resource.status.operation
    if operation is None or operation.type is not OperationType.ROLL:
        return ()
    found = await config_maps_of(kube, resource.meta, BOOKIE, pods, there)
    return tuple(ObservedConfigMap(one["metadata"]["name"], one["metadata"]["uid"], used) for one, used in found)


async def config_maps_of(
    kube: Kube, meta: Metadata, part: str, pods: list[Manifest], there: Manifest | None
) -> list[tuple[Manifest, bool]]:
    """Return the ConfigMaps of a part, and whether a pod or the template of the StatefulSet `there` mounts each."""
    templates = [] if there is None else [there["spec"]["template"]]
    used = {name for one in (*pods, *templates) for name in mounted_config_maps(one)}
    found = await kube.list(collection("v1", "ConfigMap", meta.namespace), selector_text(meta.name, part))
    return [(one, one["metadata"]["name"] in used) for one in found]


def _is_too_large(resource: Bookie, pods: list[Manifest], there: Manifest | None) -> bool:
    """Return whether there are more bookies than wanted, so that this reconciliation may remove one."""
    found = len(_of_part(pods, BOOKIE))
    return resource.spec.replicas < (found if there is None else max(found, there["spec"]["replicas"]))


async def _trusts(
    kube: Kube, resource: Bookie, pods: list[Manifest], recovery: list[Manifest]
) -> tuple[list[str], dict[str, TlsTrust]]:
    """Return the IPs of all pods, and how the certificates of those that serve TLS are verified."""
    meta = resource.meta
    names = {ip: bookie_host(meta, pod["metadata"]["name"]) for pod in pods if (ip := _ip(pod)) is not None}
    service = f"{child_name(meta.name, AUTO_RECOVERY)}.{meta.namespace}.svc"
    names |= {ip: service for pod in recovery if (ip := _ip(pod)) is not None}
    secret = https_secret(resource)
    if secret is None:
        return list(names), {}
    context = await trust_of(kube, meta.namespace, secret) or trusting_none()
    required = {_ip(pod) for pod in (*pods, *recovery) if requires_tls(pod)}
    return list(names), {ip: TlsTrust(context, name, ip in required) for ip, name in names.items()}


def requires_tls(pod: Manifest) -> bool:
    """Return whether the pod was created with TLS on its HTTP port, according to its probes."""
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
) -> tuple[dict[str, ObservedBookie], ObservedCluster | None, int | None, tuple[str, ...]]:
    """Return the state of the bookies, and of the cluster from the first process that can query the metadata."""
    hosts = {pod["metadata"]["name"]: ip for pod in pods if (ip := pod.get("status", {}).get("podIP"))}
    hosts_to_ask = [*hosts.values(), *(ip for pod in recovery if (ip := pod.get("status", {}).get("podIP")))]
    ids = dict(known)
    cluster, delay_s = None, None
    operation = resource.status.operation
    also = frozenset(filter(None, [*known.values(), operation.bookie if operation is not None else None]))
    also |= {lost.id for lost in resource.status.lost_bookies}
    for host in list(hosts_to_ask):
        try:
            ids |= ids_by_pod(resource, list(hosts), await http.addresses(host))
            cluster = await http.cluster(host, also)
            delay_s = await http.lost_bookie_delay_s(host)
            break
        except UnreachableError:
            hosts_to_ask = [*(one for one in hosts_to_ask if one != host), host]
    states = await asyncio.gather(*(_bookie(http, host, ids.get(pod)) for pod, host in hosts.items()))
    bookies = {pod: bookie for pod, bookie in zip(hosts, states, strict=True) if bookie is not None}
    return bookies, cluster, delay_s, tuple(hosts_to_ask)


async def _bookie(http: BookieHttp, host: str, bookie_id: str | None) -> ObservedBookie | None:
    """Return the state of a bookie; None if it does not respond, or has not registered, so that its id is unknown."""
    if bookie_id is None:
        return None
    try:
        return await http.bookie(host, bookie_id)
    except UnreachableError:
        return None


def ids_by_pod(resource: Bookie, pods: list[str], addresses: dict[str, str]) -> dict[str, str]:
    """Return the id of the bookie that registered under the name of each pod."""
    by_host = {address.rsplit(":", 1)[0]: bookie for bookie, address in addresses.items()}
    hosts = {pod: bookie_host(resource.meta, pod) for pod in pods}
    return {pod: by_host[host] for pod, host in hosts.items() if host in by_host}


def _of_part(pods: list[Manifest], part: str) -> list[Manifest]:
    return [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/name") == f"quire-{part}"]


def namespaces_on(
    resource: Bookie, ledgers: Iterable[Manifest], pools: Iterable[Manifest], target: ObservedTarget | None = None
) -> tuple[ObservedNamespace, ...]:
    """Return the ManagedLedgers, of all Kubernetes namespaces, whose pool is on the same etcd as this one.

    `target`: while the pool uses another store than declared, those on either count: none may be overlooked.

    They are not parsed, and only the ensemble has a default: there may be hundreds, and every reconciliation does this.
    """
    present = () if target is None else target.present.endpoints
    mine = members((*resource.spec.metadata.endpoints, *present), resource.meta.namespace)
    cluster = pools_on(mine, pools)
    found = []
    for item in ledgers:
        metadata, spec = item["metadata"], item["spec"]
        pool = (metadata["namespace"], spec["bookieRef"]["name"])
        if pool in cluster:
            own = pool == (resource.meta.namespace, resource.meta.name)
            ensemble = spec.get("replication", {}).get("ensemble", ENSEMBLE)
            found.append(ObservedNamespace(metadata["name"], ensemble, own))
    return tuple(found)


def pools_on(ours: frozenset[str], pools: Iterable[Manifest]) -> set[tuple[str, str]]:
    """Return namespace and name of the pools on an etcd, given by its `members`."""
    return {
        (pool["metadata"]["namespace"], pool["metadata"]["name"])
        for pool in pools
        if is_one(ours, pool["spec"]["metadata"]["endpoints"], pool["metadata"]["namespace"])
    }


def age_of(metadata: ReadManifest) -> tuple[str, str, str]:
    """Return the key that sorts resources: the older one first, then by name."""
    return str(metadata["creationTimestamp"]), str(metadata["namespace"]), str(metadata["name"])


async def zones_of_nodes(kube: Kube, pods: list[Manifest], pool: Bookie, cache: Cache, now_s: float) -> dict[str, str]:
    """Return the zone of each node of these pods, empty if it has none, by the first of the pool's topology keys.

    Nodes are read by name, as a cluster may have thousands.
    """
    keys = pool.spec.placement.topology_keys
    if not keys:
        return {}
    names = sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName") is not None})
    found = await asyncio.gather(*(cache.get(kube, f"{_NODES}/{name}", now_s) for name in names))
    return {
        name: node["metadata"].get("labels", {}).get(keys[0], "")
        for name, node in zip(names, found, strict=True)
        if node is not None
    }


async def knows_pod_monitors(kube: Kube, cache: Cache, now_s: float) -> bool:
    """Return whether the API of PodMonitors is installed and readable. Raises UnreachableError."""
    try:
        found = await cache.get(kube, _MONITORING, now_s)
    except KubeError:
        return False
    return found is not None and any(one.get("kind") == "PodMonitor" for one in found.get("resources", ()))


async def unwanted_monitors(
    kube: Kube, cache: Cache, now_s: float, meta: Metadata, monitoring: Monitoring, parts: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return name and uid of our PodMonitors of these parts that are no longer wanted."""
    if monitoring.enabled or not await knows_pod_monitors(kube, cache, now_s):
        return ()
    paths = [
        object_path(MONITORING_VERSION, "PodMonitor", meta.namespace, child_name(meta.name, part)) for part in parts
    ]
    try:
        found = await asyncio.gather(*(cache.get(kube, path, now_s) for path in paths))
    except KubeError:
        return ()  # without permission to read them, the operator cannot have created any
    ours = [one["metadata"] for one in found if one is not None]
    ours = [one for one in ours if one.get("labels", {}).get("app.kubernetes.io/managed-by") == FIELD_MANAGER]
    return tuple((one["name"], one["uid"]) for one in ours)


async def _expandable_classes(kube: Kube, cache: Cache, now_s: float) -> frozenset[str]:
    classes = await cache.list(kube, _CLASSES, now_s)
    return frozenset(one["metadata"]["name"] for one in classes if one.get("allowVolumeExpansion"))


def observed_pod(pod: Manifest, zones: dict[str, str]) -> ObservedPod:
    """Convert a pod for the plans; `zones` by node."""
    metadata, node = pod["metadata"], pod["spec"].get("nodeName")
    annotations = metadata.get("annotations", {})
    return ObservedPod(
        metadata["name"],
        metadata["uid"],
        metadata.get("labels", {}).get("controller-revision-hash", ""),
        ready=is_ready(pod),
        ready_since=readiness(pod).get("lastTransitionTime"),
        started=is_started(pod),
        deleting="deletionTimestamp" in metadata,
        node=node,
        node_address=pod.get("status", {}).get("hostIP"),
        zone=zones.get(node) if node is not None else None,
        zone_annotation=annotations.get(ZONE_ANNOTATION),
        failure=last_words(pod),
        blocked=what_blocks(pod),
        replace_asked=REPLACE_ANNOTATION in annotations,
        ports=frozenset(
            port["name"]
            for container in pod["spec"].get("containers", ())
            for port in container.get("ports", ())
            if "name" in port
        ),
    )


def _claim(claim: Manifest, classes: frozenset[str], gone: dict[str, str]) -> ObservedClaim:
    """Convert a claim for the plans; its name is `<template>-<pod>`."""
    metadata, spec = claim["metadata"], claim["spec"]
    template, _, pod = metadata["name"].partition("-")
    return ObservedClaim(
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
        resize_note=_resize_note(claim),
        resize_failed=str(_allocation(claim)).endswith("Infeasible"),
    )


def _allocation(claim: Manifest) -> str | None:
    """Return the step of an expansion, `NodeResizePending` or `ControllerResizeInfeasible`."""
    found = claim.get("status", {}).get("allocatedResourceStatuses") or {}
    return found.get("storage")


def _resize_note(claim: Manifest) -> str | None:
    """Return the error of an expansion, or its step."""
    conditions = claim.get("status", {}).get("conditions") or ()
    errors = [one for one in conditions if str(one["type"]).endswith("ResizeError") and one.get("status") == "True"]
    texts = [str(one.get("message") or one["type"]) for one in errors]
    if any(one["type"] == "FileSystemResizePending" and one.get("status") == "True" for one in conditions):
        texts.append("FileSystemResizePending")
    return (texts[0] if texts else _allocation(claim) or "")[:MESSAGE_MAX] or None


def observed_stateful_set(there: Manifest, rejected: str | None = None) -> ObservedStatefulSet:
    """Convert a StatefulSet for the plans. `rejected`: see `rejected_pod`."""
    metadata, spec, status = there["metadata"], there["spec"], there.get("status", {})
    annotations = (spec.get("template") or {}).get("metadata", {}).get("annotations") or {}
    return ObservedStatefulSet(
        metadata["name"],
        metadata["uid"],
        spec["replicas"],
        status.get("updateRevision", ""),
        tuple(_template(template) for template in spec.get("volumeClaimTemplates", ())),
        current=status.get("observedGeneration") == metadata["generation"],
        deleting="deletionTimestamp" in metadata,
        is_complete=status.get("currentRevision", "") == status.get("updateRevision"),
        revision=annotations.get(REVISION_ANNOTATION),
        credentials=annotations.get(CREDENTIALS_HASH),
        rejected_pod=rejected,
    )


def _template(template: Manifest) -> Manifest:
    """Return a claim template without the fields that the API server adds, so that it can be applied again."""
    metadata = {key: value for key, value in template["metadata"].items() if key in ("name", "labels")}
    return {key: value for key, value in template.items() if key != "status"} | {"metadata": metadata}
