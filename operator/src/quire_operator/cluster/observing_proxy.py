"""Observes the proxies of a ManagedLedger. Reads only."""

import asyncio

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.naming import MONITORING_VERSION, PROXY, child_name, selector_text
from quire_operator.builders.proxy import KINDS
from quire_operator.builders.settings import PROXY_TOKEN
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.observing import observed_pod
from quire_operator.cluster.paths import collection, object_path
from quire_operator.cluster.tls_trust import secret_data
from quire_operator.plan.actions import DeleteChild
from quire_operator.plan.ledger_observation import ObservedProxy
from quire_operator.plan.observation import ObservedPod


async def observe_proxy(kube: Kube, resource: ManagedLedger) -> ObservedProxy | None:
    """Return the Deployment of the declared proxies; None if there is none yet, or if none are declared."""
    if resource.spec.proxy is None:
        return None
    found = await kube.get(_path(resource, "apps/v1", "Deployment"))
    if found is None:
        return None
    pods: list[Manifest] = []
    if (found.get("status") or {}).get("readyReplicas", 0) < resource.spec.proxy.replicas:
        meta = resource.meta
        pods = await kube.list(collection("v1", "Pod", meta.namespace), selector_text(meta.name, PROXY))
    return observed_proxy(found, tuple(observed_pod(pod, {}) for pod in pods))


def observed_proxy(deployment: Manifest, pods: tuple[ObservedPod, ...] = ()) -> ObservedProxy:
    """Convert a Deployment and its pods for the plans."""
    status, metadata = deployment.get("status") or {}, deployment["metadata"]
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    available, failure = conditions.get("Available", {}), conditions.get("ReplicaFailure", {})
    return ObservedProxy(
        replicas=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        current=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
        unavailable_since=available.get("lastTransitionTime") if available.get("status") == "False" else None,
        rejected_pod=failure.get("message") if failure.get("status") == "True" else None,
        pods=pods,
    )


async def unwanted_of_proxy(kube: Kube, resource: ManagedLedger, *, pod_monitors: bool) -> tuple[DeleteChild, ...]:
    """Return the objects of proxies that are no longer declared, as the status still has them."""
    if resource.spec.proxy is not None or resource.status.proxy is None:
        return ()
    kinds = [*KINDS, *([(MONITORING_VERSION, "PodMonitor")] if pod_monitors else [])]
    found = await asyncio.gather(*(kube.get(_path(resource, *kind)) for kind in kinds))
    return tuple(
        DeleteChild(version, kind, one["metadata"]["name"], one["metadata"]["uid"])
        for (version, kind), one in zip(kinds, found, strict=True)
        if one is not None and _is_ours(one, resource) and "deletionTimestamp" not in one["metadata"]
    )


async def lacks_proxy_token(kube: Kube, resource: ManagedLedger) -> bool:
    """Return whether proxies are declared that authenticate, and the Secret of the brokers has no token for them."""
    authentication = resource.spec.brokers.authentication
    if resource.spec.proxy is None or authentication is None:
        return False
    data = await secret_data(kube, resource.meta.namespace, authentication.token_key_secret)
    return not data.get(PROXY_TOKEN, "").strip()


def _path(resource: ManagedLedger, api_version: str, kind: str) -> str:
    return object_path(api_version, kind, resource.meta.namespace, child_name(resource.meta.name, PROXY))


def _is_ours(found: Manifest, resource: ManagedLedger) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(one.get("uid") == resource.meta.uid for one in owners)
