"""Decides which resources a watch event concerns, and enqueues them. Holds no state; kopf calls it (`handlers`).

A change of a resource, other than of its status, enqueues it and the resources that depend on it. A change of a child
or a pod enqueues the resource that its labels name, unless the operator made the change.
"""

from dataclasses import dataclass

from quire_operator.api.declared import DECLARED_KINDS
from quire_operator.builders import ReadManifest
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, BROKER, JOBS, PROXY, RUN_ANNOTATION
from quire_operator.cluster.applied import child_version
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.cluster.paths import object_path
from quire_operator.running.work_queue import Key, WorkQueue

SETTLE_S = 0.2
"""A starting pod changes several times in a row; this delay combines them into one reconciliation."""
_OWNERS = {
    **{f"quire-{part}": "Bookie" for part in (BOOKIE, AUTO_RECOVERY)},
    **{f"quire-{part}": "ManagedLedger" for part in (BROKER, PROXY, JOBS)},
}
_EACH_CHANGE = frozenset({"Job", "Pod"})
"""Kinds whose every change counts, including their status; of other children only changes by other clients count."""


@dataclass(frozen=True, slots=True)
class Matters:
    """The parts of a resource whose change enqueues something."""

    to_itself: object
    to_others: object


@dataclass(frozen=True, slots=True)
class Wakes:
    """Maps watch events to keys in the work queue."""

    queue: WorkQueue
    memory: Memory
    resources: Resources

    async def resource(self, kind: str, item: ReadManifest, before: Matters | None) -> Matters:
        """Handle a resource that exists. `before`: what this returned for its former state."""
        key = Key(kind, item["metadata"]["namespace"], item["metadata"]["name"])
        now = Matters(_matters_to_itself(item), _matters_to_others(kind, item))
        if before is None or before.to_itself != now.to_itself:
            await self.queue.add(key)
        if before != now:
            await self._wake_dependents(key, item)
        return now

    async def resource_gone(self, kind: str, item: ReadManifest) -> None:
        """Handle a deleted resource, on which others may depend."""
        await self._wake_dependents(Key(kind, item["metadata"]["namespace"], item["metadata"]["name"]), item)

    async def _wake_dependents(self, key: Key, item: ReadManifest) -> None:
        if key.kind in DECLARED_KINDS:
            return
        if key.kind == "ManagedLedger":
            await self._wake_declared(key)
            pool = item.get("spec", {}).get("bookieRef", {}).get("name")
            if pool is not None:
                await self.queue.add(Key("Bookie", key.namespace, pool), SETTLE_S)
            return
        for other in self.resources.all("ManagedLedger"):
            meta = other["metadata"]
            if meta["namespace"] == key.namespace and other["spec"]["bookieRef"]["name"] == key.name:
                await self.queue.add(Key("ManagedLedger", meta["namespace"], meta["name"]), SETTLE_S)

    async def _wake_declared(self, ledger: Key) -> None:
        """Enqueue the resources that refer to a ManagedLedger, since its brokers have their objects."""
        for kind in DECLARED_KINDS:
            for other in self.resources.all(kind):
                meta, ref = other["metadata"], other["spec"]["managedLedgerRef"]["name"]
                if (meta["namespace"], ref) == (ledger.namespace, ledger.name):
                    await self.queue.add(Key(kind, meta["namespace"], meta["name"]), SETTLE_S)

    async def child(self, version: str, kind: str, item: ReadManifest, *, gone: bool) -> None:
        """Handle a changed or deleted child, pod or Job."""
        metadata = item["metadata"]
        if kind not in _EACH_CHANGE:
            path = object_path(version, kind, metadata["namespace"], metadata["name"])
            if gone:
                self.memory.applied.lost(path)
            elif not self.memory.applied.saw(path, child_version(kind, metadata)):
                return
        owner_kind = _OWNERS.get(metadata.get("labels", {}).get("app.kubernetes.io/name", ""))
        owner = metadata.get("labels", {}).get("app.kubernetes.io/instance")
        if owner_kind is not None and owner:
            await self.queue.add(Key(owner_kind, metadata["namespace"], owner), SETTLE_S)


def _matters_to_itself(item: ReadManifest) -> object:
    """Return the parts of a resource that require its own reconciliation: not the status, which the operator writes."""
    metadata = item["metadata"]
    request = (metadata.get("annotations") or {}).get(RUN_ANNOTATION)
    return metadata.get("generation"), metadata.get("deletionTimestamp"), tuple(metadata.get("finalizers", ())), request


def _matters_to_others(kind: str, item: ReadManifest) -> object:
    """Return the parts of the status that dependents use; `underReplicated` differs by kind.

    Of a pool its ManagedLedgers report them; of a ManagedLedger others ask its brokers once some are ready.
    """
    status = item.get("status") or {}
    lacking = status.get("underReplicated")
    brokers = status.get("ready") if kind == "ManagedLedger" else None
    return status.get("writable"), lacking.get("count") if isinstance(lacking, dict) else lacking, brokers
