"""A small model of a cluster (StatefulSet controller, claims, bookies with ledgers, auditor) with an operator on it.

Time is a counter. `Killed` may be raised before any action or status write; the next reconciliation continues from the
resulting state. Forbidden events are checked where they would occur, such as the removal of a pod whose bookie still
has ledgers.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.operations import OperationType
from quire_operator.builders import Manifest
from quire_operator.cluster.observing_target import mounted_config_maps
from quire_operator.plan import actions as act
from quire_operator.plan.bookie import PoolPlan, plan_bookie
from quire_operator.plan.observation import (
    ObservedBookie,
    ObservedClaim,
    ObservedCluster,
    ObservedConfigMap,
    ObservedDrain,
    ObservedLoad,
    ObservedNamespace,
    ObservedPod,
    ObservedStatefulSet,
    PoolObservation,
)
from tests.support.kube_resources import bookie

GIB = 2**30


class Killed(Exception):
    """The operator was killed here."""


@dataclass
class Disk:
    """Content of the volumes of a pod."""

    bookie: str
    ledgers: int


@dataclass
class World:
    """Everything outside the operator. `resource` is the Bookie in the API server."""

    resource: dict[str, Any] = field(default_factory=bookie)
    now_s: float = 1_000_000.0
    stateful_set: Manifest | None = None
    pods: dict[str, ObservedPod] = field(default_factory=dict)
    claims: dict[str, ObservedClaim] = field(default_factory=dict)
    disks: dict[str, Disk] = field(default_factory=dict)
    retained: list[Disk] = field(default_factory=list)
    under_replicated: int = 0
    unrecoverable: int = 0
    accepted: int = 0
    drains: dict[str, ObservedDrain] = field(default_factory=dict)
    cookies: set[str] = field(default_factory=set)
    namespaces: tuple[ObservedNamespace, ...] = (ObservedNamespace("orders", 3),)
    etcd_away: bool = False
    audited: bool = True
    """Whether the auditor works."""
    expandable: bool = True
    config_maps: set[str] = field(default_factory=set)
    grows: bool = True
    """Volumes get a requested size at once, or never."""
    broken: set[str] = field(default_factory=set)
    """Images whose pods never start."""
    events: list[act.Emit] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    """Pods that the operator deleted, in order."""
    kill_at: int = -1
    """The operator is killed before this action or write, counted over all reconciliations."""
    done: int = 0
    delay_s: int | None = None
    auditor: str | None = "auditor"
    lost: dict[str, Disk] = field(default_factory=dict)
    """Unreachable volumes by bookie."""
    silent: set[str] = field(default_factory=set)
    """Pods that do not respond to the operator."""
    zones: tuple[str, ...] = ("z",)
    """Zones of the nodes; that of a node follows from its number."""
    loads: dict[str, ObservedLoad | None] = field(default_factory=dict)
    """What bookies report of the last minute."""
    _numbers: int = 0
    _ledgers_each: int = 4

    def __post_init__(self) -> None:
        self.resource["metadata"] = {"name": "pool", "namespace": "ns", "uid": "u", "generation": 1} | {
            key: value for key, value in self.resource["metadata"].items() if key != "name"
        }

    # Actions of users.

    def change(self, **spec: Any) -> None:
        """Replace fields of the spec."""
        self.resource["spec"] |= copy.deepcopy(spec)
        self.resource["metadata"]["generation"] += 1

    # Faults.

    def lose_node(self, pod: str) -> None:
        """Remove the node of a pod with its local volumes; a new pod waits for them forever."""
        self._new_pod(pod, node=None)
        disk = self.disks[pod]
        self.lost[disk.bookie] = disk
        for name, claim in self.claims.items():
            if claim.pod == pod:
                self.claims[name] = replace(claim, gone="its volume is on node-x, which is not a node of the cluster")

    def bring_node_back(self, pod: str) -> None:
        """Restore the node with its volumes."""
        self.lost.pop(self.disks[pod].bookie)
        self.pods[pod] = replace(self.pods[pod], node="node-x", zone=self.zone_of(pod))
        for name, claim in self.claims.items():
            self.claims[name] = replace(claim, gone=None) if claim.pod == pod else claim

    def lose_zone(self, zone: str, what: str) -> list[str]:
        """Lose a zone, and return its pods. `what`: whether only the operator notices, or Kubernetes, or its nodes."""
        pods = sorted(pod.name for pod in self.pods.values() if pod.zone == zone)
        self.silent.update(pods)
        for pod in pods:
            if what == "nodes are deleted":
                self.lose_node(pod)
            elif what != "operator is cut off":
                self.pods[pod] = replace(self.pods[pod], ready=False, started=True, deleting=what == "pods are evicted")
        return pods

    def bring_zone_back(self, pods: list[str]) -> None:
        """Let the pods of a lost zone respond again; evicted ones were ended, and are recreated."""
        self.silent.clear()
        for pod in pods:
            if any(claim.gone for claim in self.claims.values() if claim.pod == pod):
                self.bring_node_back(pod)
            elif self.pods[pod].deleting:
                del self.pods[pod]

    def zone_of(self, name: str) -> str:
        """Return the zone of the node of a pod."""
        return self.zones[int(name.rpartition("-")[2]) % len(self.zones)]

    def wipe(self, pod: str) -> None:
        """Empty all volumes of a running bookie, and restart its process."""
        old = self.disks.pop(pod)
        self.lost[old.bookie] = old
        self._numbers += 1
        self.disks[pod] = Disk(f"{pod}-{self._numbers}", 0)
        self.pods[pod] = replace(self.pods[pod], ready=False)

    def ask_to_replace(self, pod: str) -> None:
        """Annotate a pod as an administrator."""
        self.pods[pod] = replace(self.pods[pod], replace_asked=True)

    def _new_pod(self, name: str, node: str | None) -> None:
        assert self.stateful_set is not None
        self._numbers += 1
        zone = None if node is None else self.zone_of(name)
        self.pods[name] = ObservedPod(name, f"p{self._numbers}", revision_of(self.stateful_set), node=node, zone=zone)

    # The operator.

    def reconcile(self) -> PoolPlan:
        """Observe, plan, apply, write the status. May raise Killed."""
        seen = self.observe()
        found = plan_bookie(seen, "quire:1")
        for action in found.actions:
            if not isinstance(action, act.Apply) or action.manifest["kind"] == "StatefulSet":
                self._count()  # the other children are not modelled: a kill between two of them is the same
            self.perform(action)
        self._count()
        self.resource["status"] = found.status.plain()
        return found

    def _count(self) -> None:
        self.done += 1
        if self.done == self.kill_at:
            raise Killed

    def run(self, passes: int = 200) -> PoolPlan:
        """Alternate reconciliations and changes of the cluster until nothing changes any more, even after kills."""
        quiet = 0
        for _ in range(passes):
            before = self._moving_parts()
            try:
                found = self.reconcile()
            except Killed:
                continue
            self.settle()
            quiet = quiet + 1 if self._moving_parts() == before else 0
            if quiet == 3:
                return found
        raise AssertionError(f"still moving: {self.resource.get('status')}")

    def _moving_parts(self) -> object:
        status = self.resource.get("status") or {}
        operation = status.get("operation") or {}
        drains = [(drain.bookie, drain.emptied, drain.ledgers_left) for drain in self.drains.values()]
        under_way = (operation.get("step"), operation.get("pod"), status.get("phase"))
        set_uid = (
            None
            if self.stateful_set is None
            else (self.stateful_set["metadata"]["uid"], revision_of(self.stateful_set))
        )
        return under_way, drains, dict(self.pods), dict(self.claims), set_uid

    def status(self) -> dict[str, Any]:
        """Return the recorded status."""
        found: dict[str, Any] = self.resource["status"]
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a recorded condition."""
        found: dict[str, Any] = next(one for one in self.status()["conditions"] if one["type"] == kind)
        return found

    # Observation.

    def observe(self) -> PoolObservation:
        resource = Bookie.model_validate(self.resource)
        bookies = {
            pod.name: ObservedBookie(
                self.disks[pod.name].bookie,
                writable=self.disks[pod.name].bookie not in self.drains,
                total_bytes=100 * GIB,
                free_bytes=60 * GIB,
                load=self.loads.get(self.disks[pod.name].bookie),
            )
            for pod in self.pods.values()
            if pod.ready and pod.name not in self.silent
        }
        cluster = ObservedCluster(
            self.under_replicated + sum(disk.ledgers for disk in self.lost.values()),
            self.unrecoverable,
            self.accepted,
            known=frozenset(self.cookies),
            writable=frozenset(seen.id for seen in bookies.values() if seen.writable),
            auditor=self.auditor,
            drains=tuple(self.drains.values()),
        )
        known = {row.pod: row.id for row in resource.status.bookies if row.id}
        there = self.stateful_set
        return PoolObservation(
            resource,
            self.now_s,
            None
            if there is None
            else ObservedStatefulSet(
                "pool-bookie",
                there["metadata"]["uid"],
                there["spec"]["replicas"],
                revision_of(there),
                tuple(there["spec"]["volumeClaimTemplates"]),
            ),
            tuple(self.pods.values()),
            tuple(self.claims.values()),
            bookies,
            None if self.etcd_away else cluster,
            self.namespaces,
            known,
            self.delay_s,
            config_maps=self._config_maps(resource),
        )

    def _config_maps(self, resource: Bookie) -> tuple[ObservedConfigMap, ...]:
        """Return those of the bookies during a roll. The pods' revisions begin with the ConfigMap that they mount."""
        operation = resource.status.operation
        if operation is None or operation.type is not OperationType.ROLL or self.stateful_set is None:
            return ()
        used = {revision_of(self.stateful_set).split()[0], *(pod.revision.split()[0] for pod in self.pods.values())}
        ours = sorted(name for name in self.config_maps if name.startswith("pool-bookie"))
        return tuple(ObservedConfigMap(name, name, name in used) for name in ours)

    # Effects of actions.

    def perform(self, action: act.Action) -> None:
        match action:
            case act.Apply(manifest):
                if manifest["kind"] == "StatefulSet":
                    self._apply(manifest)
                elif manifest["kind"] == "ConfigMap":
                    self.config_maps.add(manifest["metadata"]["name"])
            case act.DeleteConfigMap(name):
                self.config_maps.remove(name)
            case act.AnnotateZone(name, uid, zone):
                if name in self.pods and self.pods[name].uid == uid:
                    self.pods[name] = replace(self.pods[name], zone_annotation=zone)
            case act.SetReplicas(replicas):
                self.change(replicas=replicas)
            case act.DeletePod(name, uid):
                if name in self.pods and self.pods[name].uid == uid:
                    self.replaced.append(name)
                    del self.pods[name]
            case act.DeleteStatefulSet(_, uid, orphan):
                if self.stateful_set is not None and self.stateful_set["metadata"]["uid"] == uid:
                    self.stateful_set = None
                    if not orphan:
                        self.pods.clear()
            case act.ResizeClaim(name, size):
                assert self.expandable
                capacity = size if self.grows else self.claims[name].capacity
                self.claims[name] = replace(self.claims[name], size=size, capacity=capacity)
            case act.ReleaseClaim(name, uid, _, keep_volume):
                self._release(name, uid, keep_volume)
            case act.Decommission(name):
                if name in self.cookies and name not in self.drains and not self.etcd_away:
                    self.drains[name] = ObservedDrain(name, emptied=False, ledgers_left=1)
            case act.CancelDrain(name):
                self.drains.pop(name, None)
            case act.SetLostBookieDelay(seconds):
                self.delay_s = seconds
            case act.SetFinalizer(present):
                finalizers = self.resource["metadata"].setdefault("finalizers", [])
                finalizers[:] = ["quire.dev/bookie"] if present else []
            case act.Emit():
                self.events.append(action)

    def _apply(self, manifest: Manifest) -> None:
        there = self.stateful_set
        if there is None:
            self._numbers += 1
            self.stateful_set = manifest | {"metadata": manifest["metadata"] | {"uid": f"s{self._numbers}"}}
            return
        assert there["spec"]["volumeClaimTemplates"] == manifest["spec"]["volumeClaimTemplates"], (
            "claim templates are immutable"
        )
        self.stateful_set = there | {"spec": manifest["spec"]}

    def _release(self, name: str, uid: str, keep_volume: bool) -> None:
        claim = self.claims.get(name)
        if claim is None or claim.uid != uid or claim.deleting:
            return
        if claim.pod in self.pods:
            operation = self.status().get("operation") or {}
            assert operation.get("type") == "Replace", "a claim is released while a pod uses it"
            assert keep_volume or self.disks[claim.pod].ledgers == 0, "the last copies may be on it"
            self.claims[name] = replace(claim, deleting=True)  # deleted with the pod
            return
        del self.claims[name]
        disk = self.disks.pop(claim.pod, None)
        if disk is not None:
            held = disk.bookie in self.cookies and disk.bookie not in self.lost
            assert not held or self.resource["metadata"].get("deletionTimestamp"), "the bookie is still known"
            self.retained += [disk] if keep_volume else []

    # Reactions of Kubernetes and the auditor.

    def settle(self) -> None:
        """Perform one step of each."""
        self.now_s += 5
        self._controller()
        if not self.etcd_away and self.audited:
            self._auditor()

    def _controller(self) -> None:
        if self.stateful_set is None:
            return
        wanted = [f"pool-bookie-{ordinal}" for ordinal in range(self.stateful_set["spec"]["replicas"])]
        for name in sorted(set(self.pods) - set(wanted)):
            assert self.disks[name].ledgers == 0, f"{name} was removed with {self.disks[name].ledgers} ledgers"
            del self.pods[name]
        for name in wanted:
            if name not in self.pods:
                going = [claim for claim in self.claims.values() if claim.pod == name and claim.deleting]
                for claim in going:
                    del self.claims[claim.name]
                if going and (disk := self.disks.pop(name, None)) is not None:
                    self.retained.append(disk)
                    self.lost[disk.bookie] = disk
                self._make_claims(name)
                lost = any(claim.gone for claim in self.claims.values() if claim.pod == name)
                self._new_pod(name, None if lost else f"node-{name[-1]}")
            elif self._comes_up(self.pods[name]):
                self.pods[name] = replace(self.pods[name], ready=True)
                self.cookies.add(self.disks[name].bookie)

    def _comes_up(self, pod: ObservedPod) -> bool:
        """Return whether a bookie starts; it waits for its zone before it registers."""
        broken = any(image in pod.revision for image in self.broken)
        broken = broken or pod.name in self.silent
        return not pod.ready and not broken and pod.node is not None and pod.zone_annotation is not None

    def _make_claims(self, pod: str) -> None:
        assert self.stateful_set is not None
        for template in self.stateful_set["spec"]["volumeClaimTemplates"]:
            kind, size = template["metadata"]["name"], template["spec"]["resources"]["requests"]["storage"]
            self._numbers += 1
            self.claims.setdefault(
                f"{kind}-{pod}",
                ObservedClaim(f"{kind}-{pod}", kind, pod, size, size, f"c{self._numbers}", "v", self.expandable),
            )
        if pod not in self.disks:
            self.disks[pod] = Disk(f"{pod}-{self._numbers}", self._ledgers_each)

    def _auditor(self) -> None:
        for name, drain in list(self.drains.items()):
            disks = {disk.bookie: disk for disk in (*self.disks.values(), *self.lost.values())}
            disk = disks.get(name)
            runs = any(pod.ready and self.disks[pod.name] is disk for pod in self.pods.values())
            if disk is None or (disk.ledgers == 0 and not runs):
                self.cookies.discard(name)
                del self.drains[name]
                continue
            floor = 1 if self.unrecoverable > self.accepted else 0
            disk.ledgers = max(min(floor, disk.ledgers), disk.ledgers - 1)
            self.drains[name] = replace(
                drain, emptied=disk.ledgers == 0, ledgers_left=disk.ledgers, checked_at_s=self.now_s
            )


def revision_of(stateful_set: Mapping[str, Any]) -> str:
    """Return a revision from ConfigMap, image, configuration, mounts and preferred nodes of a template."""
    template = stateful_set["spec"]["template"]
    container = template["spec"]["containers"][0]
    mounts = ",".join(mount["name"] for mount in container["volumeMounts"])
    nodes = " away" if "nodeAffinity" in template["spec"].get("affinity", {}) else ""
    (config_map,) = mounted_config_maps(template)
    return f"{config_map} {container['image']} {template['metadata']['annotations']} {mounts}{nodes}"
