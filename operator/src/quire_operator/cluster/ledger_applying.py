"""Performs the planned actions on a ManagedLedger, one at a time. Decides nothing; each action is idempotent."""

import logging
from collections.abc import Iterable

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.cluster.children import apply_child, delete_child, delete_monitor
from quire_operator.cluster.events import emit
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection, managed_ledger_path, manifest_path, object_path
from quire_operator.errors import ConflictError, KubeError, RefusedError, UnreachableError
from quire_operator.plan import actions as act
from quire_operator.plan.jobs_observation import Refusal
from quire_operator.plan.managed_ledger import FINALIZER

_log = logging.getLogger("quire.operator")


class LedgerActions:
    """Performs actions on one ManagedLedger. `endpoint`: the broker that responded, if any."""

    def __init__(
        self,
        kube: Kube,
        brokers: BrokerRest,
        resource: ManagedLedger,
        endpoint: BrokerEndpoint | None,
        now_s: float,
        applied: Applied,
    ) -> None:
        self._kube = kube
        self._brokers = brokers
        self._meta = resource.meta
        self._endpoint = endpoint
        self._now_s = now_s
        self._applied = applied
        self.refused: dict[str, Refusal] = {}
        """Refusals of runs, by job."""

    async def perform(self, actions: Iterable[act.Action | act.NamespaceAction]) -> None:
        """Perform the actions in order. Raises OperatorError at the first failure; the next reconciliation retries.

        A refused run does not stop the other actions; it is recorded in `refused`.
        """
        for action in actions:
            if isinstance(action, act.Apply):
                await apply_child(self._kube, self._applied, action.manifest, self._now_s)
            elif isinstance(action, act.DeleteMonitor):
                await delete_monitor(self._kube, self._applied, self._meta.namespace, action.name, action.uid)
            elif isinstance(action, act.DeleteChild):
                path = object_path(action.api_version, action.kind, self._meta.namespace, action.name)
                await delete_child(self._kube, self._applied, path, action.uid)
            elif isinstance(action, act.DeleteConfigMap):
                path = object_path("v1", "ConfigMap", self._meta.namespace, action.name)
                await delete_child(self._kube, self._applied, path, action.uid)
            elif isinstance(action, act.DeletePod):
                await self._kube.delete(object_path("v1", "Pod", self._meta.namespace, action.name), action.uid)
            elif isinstance(action, act.SetFinalizer):
                path = managed_ledger_path(self._meta.namespace, self._meta.name)
                await self._kube.set_finalizer(path, self._meta, FINALIZER, action.present)
            elif isinstance(action, act.StartRun):
                try:
                    await self._start(action.manifest)
                except (KubeError, RefusedError) as error:
                    _log.warning("%s/%s: job %s: %s", self._meta.namespace, self._meta.name, action.job, error)
                    self.refused[action.job] = Refusal(str(error), self._now_s)
                else:
                    await emit(self._kube, "ManagedLedger", self._meta, action.event, self._now_s)
            elif isinstance(action, act.DeleteRun):
                path = object_path(action.api_version, action.kind, self._meta.namespace, action.name)
                await self._kube.delete(path, action.uid)
            elif isinstance(action, act.Emit):
                await emit(self._kube, "ManagedLedger", self._meta, action, self._now_s)
            elif isinstance(action, act.NamespaceAction):
                if self._endpoint is None:
                    raise UnreachableError("no broker responds")
                await self._brokers.perform(self._endpoint, action)
            else:
                raise AssertionError(f"not an action of a ManagedLedger: {action}")

    async def _start(self, manifest: Manifest) -> None:
        """Create a run; an existing object of its name counts as created. RefusedError if another owner has it."""
        metadata = manifest["metadata"]
        try:
            await self._kube.create(
                collection(manifest["apiVersion"], manifest["kind"], metadata["namespace"]), manifest
            )
        except ConflictError:
            there = await self._kube.get(manifest_path(manifest))
            owners = [one.get("uid") for one in (there or {}).get("metadata", {}).get("ownerReferences", ())]
            if there is not None and self._meta.uid not in owners:
                kind, name = manifest["kind"], metadata["name"]
                raise RefusedError(
                    f"{kind} {name} exists and does not belong to this resource: delete or rename it"
                ) from None
