"""Enqueues resources for reconciliation when watches report changes. Decides nothing; remembers only versions.

A change of a resource, other than of its status, enqueues it and the resources that depend on it. A change of a child
or a pod enqueues the resource that its labels name, unless the operator made the change.
"""

from functools import partial

from quire_operator.api import API_VERSION
from quire_operator.builders import Manifest
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, BROKER, FIELD_MANAGER, JOBS, RUN_ANNOTATION
from quire_operator.cluster.applied import child_version
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.cluster.paths import collection, object_path
from quire_operator.cluster.watching import Collection, Feed
from quire_operator.running.work_queue import Key, WorkQueue

KINDS = ("Bookie", "ManagedLedger")
CHILDREN = (
    *(("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"), ("policy/v1", "PodDisruptionBudget")),
    *(("v1", "ConfigMap"), ("v1", "Service"), ("v1", "ServiceAccount"), ("v1", "Pod")),
    ("batch/v1", "Job"),
)
SETTLE_S = 0.2
"""A starting pod changes several times in a row; this delay combines them into one reconciliation."""
_OWNERS = {
    **{f"quire-{part}": "Bookie" for part in (BOOKIE, AUTO_RECOVERY)},
    **{f"quire-{part}": "ManagedLedger" for part in (BROKER, JOBS)},
}
_EACH_CHANGE = frozenset({"Job", "Pod"})
"""Kinds whose every change counts, including their status; of other children only changes by other clients count."""


class Wakes:
    """Maps watch events to keys in the work queue; one instance per process."""

    def __init__(self, queue: WorkQueue, memory: Memory, resources: Resources) -> None:
        self._queue = queue
        self._memory = memory
        self._resources = resources
        self._known: dict[Key, tuple[object, object]] = {}

    def feeds(self, kube: Kube, namespace: str | None) -> list[Feed]:
        """Return a feed for each kind, in one namespace or all; resources come first."""
        found = []
        for kind in KINDS:
            found.append(Feed(kube, Collection(collection(API_VERSION, kind, namespace)), partial(self.resource, kind)))
        selector = f"app.kubernetes.io/managed-by={FIELD_MANAGER}"
        for version, kind in CHILDREN:
            what = Collection(collection(version, kind, namespace), selector, metadata_only=True)
            found.append(Feed(kube, what, self.pod if kind in _EACH_CHANGE else partial(self.child, version, kind)))
        return found

    async def resource(self, kind: str, item: Manifest, gone: bool) -> None:
        """Handle a changed or deleted Bookie or ManagedLedger."""
        key = Key(kind, item["metadata"]["namespace"], item["metadata"]["name"])
        if gone:
            self._known.pop(key, None)
            former = self._resources.drop(kind, key.namespace, key.name)
            await self._wake_dependents(key, former or item)
            return
        self._resources.put(kind, item)
        own, others = _matters_to_itself(item), _matters_to_others(item)
        before = self._known.get(key)
        self._known[key] = (own, others)
        if before is None or before[0] != own:
            await self._queue.add(key)
        if before != (own, others):
            await self._wake_dependents(key, item)

    async def _wake_dependents(self, key: Key, item: Manifest) -> None:
        if key.kind == "ManagedLedger":
            pool = item.get("spec", {}).get("bookieRef", {}).get("name")
            if pool is not None:
                await self._queue.add(Key("Bookie", key.namespace, pool), SETTLE_S)
            return
        for other in self._resources.all("ManagedLedger"):
            meta = other["metadata"]
            if meta["namespace"] == key.namespace and other["spec"]["bookieRef"]["name"] == key.name:
                await self._queue.add(Key("ManagedLedger", meta["namespace"], meta["name"]), SETTLE_S)

    async def child(self, version: str, kind: str, item: Manifest, gone: bool) -> None:
        """Handle a changed or deleted child that the operator applies."""
        metadata = item["metadata"]
        path = object_path(version, kind, metadata["namespace"], metadata["name"])
        if gone:
            self._memory.applied.lost(path)
        elif not self._memory.applied.saw(path, child_version(kind, metadata)):
            return
        await self.pod(item, gone)

    async def pod(self, item: Manifest, gone: bool) -> None:
        """Handle any change of a pod or a Job."""
        labels = item["metadata"].get("labels", {})
        kind = _OWNERS.get(labels.get("app.kubernetes.io/name", ""))
        owner = labels.get("app.kubernetes.io/instance")
        if kind is not None and owner:
            await self._queue.add(Key(kind, item["metadata"]["namespace"], owner), SETTLE_S)


def _matters_to_itself(item: Manifest) -> object:
    """Return the parts of a resource that require its own reconciliation: not the status, which the operator writes."""
    metadata = item["metadata"]
    request = (metadata.get("annotations") or {}).get(RUN_ANNOTATION)
    return metadata.get("generation"), metadata.get("deletionTimestamp"), tuple(metadata.get("finalizers", ())), request


def _matters_to_others(item: Manifest) -> object:
    """Return the parts of a pool's status that its ManagedLedgers report; `underReplicated` differs by kind."""
    status = item.get("status") or {}
    lacking = status.get("underReplicated")
    return status.get("writable"), lacking.get("count") if isinstance(lacking, dict) else lacking
