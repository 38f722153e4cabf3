"""Observes a ManagedLedger: its objects in Kubernetes, its pool, and its namespace through any of its brokers.

Reads only. Facts that are unavailable are None, never guessed. Only an unreachable API server is an error.
"""

import asyncio

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import ExternalType
from quire_operator.builders import Manifest
from quire_operator.builders.broker import broker_host
from quire_operator.builders.broker_revision import parsed_revision
from quire_operator.builders.effective import effective_managed_ledger
from quire_operator.builders.naming import BROKER, EXTERNAL, PROXY, child_name, pod_name, selector_text
from quire_operator.cluster.broker_endpoints import broker_endpoints, first_answer
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.observing import (
    age_of,
    config_maps_of,
    knows_pod_monitors,
    observed_pod,
    observed_stateful_set,
    pools_on,
    unwanted_monitors,
    zones_of_nodes,
)
from quire_operator.cluster.observing_jobs import observe_jobs
from quire_operator.cluster.observing_proxy import lacks_proxy_token, observe_proxy, unwanted_of_proxy
from quire_operator.cluster.observing_target import observe_target
from quire_operator.cluster.one_etcd import is_one, members
from quire_operator.cluster.paths import bookie_path, collection, managed_ledger_path, object_path
from quire_operator.cluster.pod_creation import rejected_pod
from quire_operator.cluster.readiness import is_started
from quire_operator.plan.ledger_observation import (
    LedgerObservation,
    ObservedBrokerDrain,
    ObservedRevision,
    ObservedService,
)
from quire_operator.plan.recommending import is_due
from quire_operator.plan.rollout import reads_revisions


async def observe_managed_ledger(
    kube: Kube,
    brokers: BrokerRest,
    namespace: str,
    name: str,
    now_s: float,
    memory: Memory,
    *,
    generated: bool = False,
) -> tuple[LedgerObservation, BrokerEndpoint | None] | None:
    """Return the observation and the broker that responded; None if the resource no longer exists.

    `generated`: the operator generates certificates. Raises KubeError, UnreachableError.
    """
    found = await kube.get(managed_ledger_path(namespace, name))
    if found is None:
        return None
    resource = ManagedLedger.model_validate(found)
    pods, there, pool_found = await asyncio.gather(
        kube.list(collection("v1", "Pod", namespace), selector_text(name, BROKER)),
        kube.get(object_path("apps/v1", "StatefulSet", namespace, child_name(name, BROKER))),
        kube.get(bookie_path(namespace, resource.spec.bookie_ref.name)),
    )
    pool = None if pool_found is None else Bookie.model_validate(pool_found)
    endpoints = await broker_endpoints(kube, effective_managed_ledger(resource, generated), pods)
    answer = await first_answer(endpoints, lambda one: brokers.namespace(one, resource.spec.namespace))
    state, endpoint = (None, None) if answer is None else answer
    writable = None if state is None else state.writable_bookies
    zones: dict[str, str] = {}
    if pool is not None and resource.spec.brokers.replicas > 1:
        zones = await zones_of_nodes(kube, pods, pool, memory.cache, now_s)
    target = None
    if pool is not None and (state is not None or any(is_started(pod) for pod in pods)):
        target = await observe_target(kube, pool, namespace, child_name(name, BROKER), there)
    monitors = await knows_pod_monitors(kube, memory.cache, now_s)
    return (
        LedgerObservation(
            resource,
            now_s,
            pool,
            bookies=None if pool is None else await _bookies(kube, resource, pool, writable, memory),
            writable_bookies=writable,
            stateful_set=None
            if there is None
            else observed_stateful_set(
                there, await rejected_pod(kube, memory.cache, namespace, there, len(pods), now_s)
            ),
            pods=tuple(observed_pod(pod, zones) for pod in pods),
            broker_usages=await _usages(brokers, endpoints, resource, now_s),
            services=await _services(kube, resource),
            failure_domains=await brokers.failure_domains(endpoint) if endpoint is not None and zones else None,
            proxy=await observe_proxy(kube, resource),
            unwanted_of_proxy=await unwanted_of_proxy(kube, resource, pod_monitors=monitors),
            lacks_proxy_token=await lacks_proxy_token(kube, resource),
            leaving=await _leaving(brokers, endpoints, resource, there),
            revisions=await _revisions(kube, resource, pods, there),
            namespace=state,
            under_replicated=_under_replicated(pool),
            target=target,
            pod_monitors=monitors,
            unwanted_monitors=await unwanted_monitors(
                kube, memory.cache, now_s, resource.meta, resource.spec.monitoring, (BROKER, PROXY)
            ),
            jobs=await observe_jobs(kube, resource, memory.cache, now_s),
            rival=None if pool is None else await _rival(kube, resource, pool, memory),
            further_namespaces=await _further_namespaces(kube, resource, memory),
        ),
        endpoint,
    )


async def _usages(
    brokers: BrokerRest, endpoints: list[BrokerEndpoint], resource: ManagedLedger, now_s: float
) -> dict[str, float | None]:
    """Return what each broker uses, by pod; once a minute."""
    if not is_due(now_s, resource.status.broker_load, resource.spec.brokers.replicas):
        return {}
    found = await asyncio.gather(*(brokers.usage(one) for one in endpoints))
    return {(one.name or one.host).partition(".")[0]: usage for one, usage in zip(endpoints, found, strict=True)}


async def _services(kube: Kube, resource: ManagedLedger) -> tuple[ObservedService, ...]:
    """Return the external Services of the brokers, if any are declared or were."""
    meta, wanted = resource.meta, resource.spec.brokers.external
    if wanted is None and not resource.status.external:
        return ()
    found = await kube.list(collection("v1", "Service", meta.namespace), selector_text(meta.name, EXTERNAL))
    return tuple(_service(one) for one in found)


def _service(service: Manifest) -> ObservedService:
    spec, status = service["spec"], service.get("status", {})
    ingress: Manifest = next(iter(status.get("loadBalancer", {}).get("ingress") or ()), {})
    number = "nodePort" if spec["type"] == ExternalType.NODE_PORT.value else "port"
    ports = {one["name"]: one[number] for one in spec["ports"] if number in one}
    return ObservedService(
        service["metadata"]["name"], service["metadata"]["uid"], ingress.get("hostname") or ingress.get("ip"), ports
    )


async def _leaving(
    brokers: BrokerRest, endpoints: list[BrokerEndpoint], resource: ManagedLedger, there: Manifest | None
) -> ObservedBrokerDrain | None:
    """Return how far the drain of the last broker is, if fewer are declared than there are."""
    wanted, replicas = resource.spec.brokers.replicas, 0 if there is None else there["spec"]["replicas"]
    if not 0 < wanted < replicas:
        return None
    name = broker_host(resource.meta, pod_name(resource.meta.name, BROKER, replicas - 1))
    endpoint = next((one for one in endpoints if one.name == name), None)
    return None if endpoint is None else await brokers.drain_of(endpoint)


async def _revisions(
    kube: Kube, resource: ManagedLedger, pods: list[Manifest], there: Manifest | None
) -> tuple[ObservedRevision, ...]:
    """Return the ConfigMaps of the brokers; none if the plan does not need them, which saves a request."""
    status, meta = resource.status, resource.meta
    if not reads_revisions(status.rollout, is_changed=status.observed_generation != meta.generation):
        return ()
    return tuple(
        ObservedRevision(one["metadata"]["name"], one["metadata"]["uid"], used, parsed_revision(meta.name, one))
        for one, used in await config_maps_of(kube, meta, BROKER, pods, there)
    )


async def _bookies(kube: Kube, resource: ManagedLedger, pool: Bookie, writable: int | None, memory: Memory) -> int:
    """Return the intended number of bookies of the cluster: a temporarily absent one must not invalidate a spec.

    Other pools of the cluster are read only if this one is too small for the ensemble.
    """
    count = max(pool.spec.replicas, pool.status.replicas, writable or 0)
    if count >= resource.spec.replication.ensemble:
        return count
    mine = members(pool.spec.metadata.endpoints, pool.meta.namespace)
    found = [Bookie.model_validate(item) for item in await memory.all(kube, "Bookie")]
    ours = [one for one in found if is_one(mine, one.spec.metadata.endpoints, one.meta.namespace)]
    return max(count, sum(max(one.spec.replicas, one.status.replicas) for one in ours))


async def _rival(kube: Kube, resource: ManagedLedger, pool: Bookie, memory: Memory) -> str | None:
    """Return an older ManagedLedger with the same topics' namespace on the same cluster, ordered by age, then name.

    It decides whether topics are deleted with this resource: in that case the resources are read from the API server.
    """
    certain = resource.meta.deletion_timestamp is not None
    same = [
        item
        for item in await memory.all(kube, "ManagedLedger", for_certain=certain)
        if item["spec"]["namespace"] == resource.spec.namespace and item["metadata"]["uid"] != resource.meta.uid
    ]
    if not same:
        return None
    mine = members(pool.spec.metadata.endpoints, pool.meta.namespace)
    pools = pools_on(mine, await memory.all(kube, "Bookie", for_certain=certain))
    age = age_of(resource.metadata)
    for item in same:
        metadata = item["metadata"]
        if age_of(metadata) < age and (metadata["namespace"], item["spec"]["bookieRef"]["name"]) in pools:
            return f"{metadata['namespace']}/{metadata['name']}"
    return None


async def _further_namespaces(kube: Kube, resource: ManagedLedger, memory: Memory) -> tuple[str, ...]:
    """Return the managed namespaces of TopicNamespaces that refer to a ManagedLedger; only if it is being deleted."""
    if resource.meta.deletion_timestamp is None:
        return ()
    found = await memory.all(kube, "TopicNamespace", for_certain=True, namespace=resource.meta.namespace)
    ours = [one for one in found if one["spec"]["managedLedgerRef"]["name"] == resource.meta.name]
    return tuple(sorted(one["spec"]["namespace"] for one in ours if (one.get("status") or {}).get("managed")))


def _under_replicated(pool: Bookie | None) -> int | None:
    """Return the count in the status of the pool, which is updated every few seconds while it is not zero."""
    count = None if pool is None else pool.status.under_replicated
    return None if count is None else count.count
