"""Performs the planned actions on a pool, one at a time. Decides nothing; each action is idempotent."""

from collections.abc import Iterable

from quire_operator.api.bookie import Bookie
from quire_operator.builders.naming import ZONE_ANNOTATION
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.children import apply_child, delete_child, delete_monitor
from quire_operator.cluster.events import emit
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import bookie_path, object_path
from quire_operator.errors import UnreachableError
from quire_operator.plan import actions as act
from quire_operator.plan.deletion import FINALIZER


class PoolActions:
    """Performs actions on one pool. `hosts`: addresses of processes that can write to the metadata, in order."""

    def __init__(
        self, kube: Kube, http: BookieHttp, resource: Bookie, hosts: Iterable[str], now_s: float, applied: Applied
    ) -> None:
        self._applied = applied
        self._kube = kube
        self._http = http
        self._meta = resource.meta
        self._hosts = tuple(hosts)
        self._now_s = now_s

    async def perform(self, actions: Iterable[act.Action]) -> None:
        """Perform the actions in order. Raises OperatorError at the first failure; the next reconciliation retries."""
        for action in actions:
            await self._perform(action)

    async def _perform(self, action: act.Action) -> None:
        namespace = self._meta.namespace
        match action:
            case act.Apply(manifest):
                await apply_child(self._kube, self._applied, manifest, self._now_s)
            case act.DeleteMonitor(name, uid):
                await delete_monitor(self._kube, self._applied, namespace, name, uid)
            case act.DeleteConfigMap(name, uid):
                await delete_child(self._kube, self._applied, object_path("v1", "ConfigMap", namespace, name), uid)
            case act.DeletePod(name, uid, force):
                await self._kube.delete(object_path("v1", "Pod", namespace, name), uid, force=force)
            case act.AnnotateZone(name, uid, zone):
                metadata = {"uid": uid, "annotations": {ZONE_ANNOTATION: zone}}
                await self._kube.merge(object_path("v1", "Pod", namespace, name), {"metadata": metadata})
            case act.SetReplicas(replicas):
                patch = {"metadata": {"resourceVersion": self._meta.resource_version}, "spec": {"replicas": replicas}}
                await self._kube.merge(bookie_path(namespace, self._meta.name), patch)
            case act.DeleteStatefulSet(name, uid, orphan):
                path = object_path("apps/v1", "StatefulSet", namespace, name)
                self._applied.lost(path)
                await self._kube.delete(path, uid, orphan=orphan)
            case act.ResizeClaim(name, size):
                path = object_path("v1", "PersistentVolumeClaim", namespace, name)
                await self._kube.merge(path, {"spec": {"resources": {"requests": {"storage": size}}}})
            case act.ReleaseClaim():
                await self._release(action)
            case act.SetFinalizer(present):
                path = bookie_path(namespace, self._meta.name)
                await self._kube.set_finalizer(path, self._meta, FINALIZER, present)
            case act.Emit():
                await emit(self._kube, "Bookie", self._meta, action, self._now_s)
            case act.Decommission() | act.CancelDrain() | act.SetLostBookieDelay():
                await self._request(action)

    async def _release(self, claim: act.ReleaseClaim) -> None:
        """Set the volume to Retain before deleting its claim: in the reverse order a crash would lose the volume."""
        if claim.keep_volume and claim.volume is not None:
            path = object_path("v1", "PersistentVolume", None, claim.volume)
            # A missing volume is the reason for the release, and there is nothing to retain.
            if await self._kube.get(path) is not None:
                await self._kube.merge(path, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        path = object_path("v1", "PersistentVolumeClaim", self._meta.namespace, claim.name)
        await self._kube.delete(path, claim.uid)

    async def _request(self, action: act.Decommission | act.CancelDrain | act.SetLostBookieDelay) -> None:
        """Send a request to the first host that responds. Raises UnreachableError if none does."""
        last = UnreachableError("no bookie and no auto-recovery has an address yet")
        for host in self._hosts:
            try:
                if isinstance(action, act.Decommission):
                    await self._http.decommission(host, action.bookie)
                elif isinstance(action, act.CancelDrain):
                    await self._http.cancel_drain(host, action.bookie)
                else:
                    await self._http.set_lost_bookie_delay(host, action.seconds)
                return
            except UnreachableError as error:
                last = error
        raise last
