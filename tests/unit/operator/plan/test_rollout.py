"""A change of the brokers reaches one pod first, and is taken back by itself if that pod does not become ready.

The plans run on a small world: a StatefulSet controller that honours the partition, pods, and ConfigMaps.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.conditions import Condition, Truth
from quire_operator.api.managed_ledger import ManagedLedger, ManagedLedgerStatus, RolloutStep
from quire_operator.builders.broker_revision import parsed_revision
from quire_operator.cluster.observing_target import mounted_config_maps
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import LedgerObservation, ObservedRevision
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.observation import ObservedPod, ObservedStatefulSet, Rejection
from quire_operator.plan.rollout import reads_revisions
from tests.support.kube_resources import bookie, managed_ledger
from tests.support.sampling import one_in
from tests.unit.operator.plan.test_managed_ledger import THERE, seen

GOOD, BAD, BETTER = "quire:1", "quire:bad", "quire:2"
WORDS = "metadataStoreUrl: etcd-9:2379 is not reachable"
SECOND_S, MINUTE_S = 1.0, 60.0


@dataclass
class Pod:
    """A pod, with the template that it was created from."""

    uid: str
    template: dict[str, Any]
    ready_since_s: float | None = None

    @property
    def image(self) -> str:
        image: str = self.template["spec"]["containers"][0]["image"]
        return image


@dataclass
class World:
    """Owns the objects of a ManagedLedger. `round` is one reconciliation and one round of the controller."""

    replicas: int = 1
    image: str = GOOD
    now_s: float = 1_000_000.0
    status: ManagedLedgerStatus = field(default_factory=ManagedLedgerStatus)
    template: dict[str, Any] | None = None
    complete: dict[str, Any] | None = None
    """The last template that all pods had, ready."""
    partition: int = 0
    pods: dict[int, Pod] = field(default_factory=dict)
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[act.Emit] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    """The image of each pod that was started, in order."""
    pool: Bookie = field(default_factory=lambda: Bookie.model_validate(bookie()))
    works: Callable[[Pod], bool] = lambda pod: pod.image != BAD
    rejected: Rejection | None = None
    rollout: dict[str, str] = field(default_factory=dict)

    def resource(self) -> ManagedLedger:
        brokers = {"replicas": self.replicas, "image": self.image, "rollout": self.rollout}
        manifest = managed_ledger(topics=seen().resource.plain()["spec"]["topics"], brokers=brokers)
        manifest["metadata"] |= {"namespace": "ns", "generation": 4, "finalizers": ["quire.dev/managedledger"]}
        return ManagedLedger.model_validate(manifest | {"status": self.status.plain()})

    def observe(self) -> LedgerObservation:
        used = [name for pod in self.pods.values() for name in mounted_config_maps(pod.template)]
        used += [] if self.template is None else mounted_config_maps(self.template)
        serve = any(pod.ready_since_s is not None for pod in self.pods.values())
        reads = reads_revisions(self.status.rollout, is_changed=False)
        return replace(
            seen(THERE if serve else None),
            resource=self.resource(),
            now_s=self.now_s,
            pool=self.pool,
            stateful_set=None if self.template is None else self._stateful_set(self.template),
            pods=tuple(self._pod(ordinal, pod) for ordinal, pod in sorted(self.pods.items())),
            revisions=tuple(
                ObservedRevision(name, f"uid-{name}", name in used, parsed_revision("orders", one))
                for name, one in sorted(self.config_maps.items())
                if reads
            ),
        )

    def _stateful_set(self, template: dict[str, Any]) -> ObservedStatefulSet:
        annotations = template["metadata"]["annotations"]
        return ObservedStatefulSet(
            "orders-broker",
            "u",
            self.replicas,
            update_revision=json.dumps(template, sort_keys=True),
            is_complete=self.complete == template,
            revision=annotations["quire.dev/revision"],
        )

    def _pod(self, ordinal: int, pod: Pod) -> ObservedPod:
        ready = pod.ready_since_s is not None
        return ObservedPod(
            f"orders-broker-{ordinal}",
            pod.uid,
            json.dumps(pod.template, sort_keys=True),
            ready=ready,
            ready_since=str(pod.ready_since_s) if ready else None,
            failure=None if ready else WORDS,
            blocked=None if ready else ("CrashLoopBackOff", "back-off 40s restarting failed container"),
        )

    def reconcile(self) -> None:
        observed = self.observe()
        found = plan_managed_ledger(observed, GOOD)
        if self.rejected is not None:
            found = plan_managed_ledger(replace(observed, rejected=self.rejected), GOOD)
        self.status = found.status
        for action in () if self.rejected is not None else found.actions:
            if isinstance(action, act.Apply) and action.manifest["kind"] == "ConfigMap":
                self.config_maps[action.manifest["metadata"]["name"]] = action.manifest
            elif isinstance(action, act.Apply) and action.manifest["kind"] == "StatefulSet":
                spec = action.manifest["spec"]
                self.template, self.replicas = spec["template"], spec["replicas"]
                self.partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
            elif isinstance(action, act.DeleteConfigMap):
                del self.config_maps[action.name]
            elif isinstance(action, act.Emit):
                self.events.append(action)
            else:
                self.perform(action)

    def perform(self, action: object) -> None:
        """Any other action: it changes nothing here."""

    def control(self) -> None:
        """Create missing pods, delete surplus ones, replace one outdated pod if the others are ready."""
        assert self.template is not None
        self.complete = self.complete or self.template
        for ordinal in [one for one in self.pods if one >= self.replicas]:
            del self.pods[ordinal]
        for ordinal in range(self.replicas):
            if ordinal not in self.pods:
                self._start(ordinal, self.complete if ordinal < self.partition else self.template)
        for ordinal in range(self.replicas - 1, self.partition - 1, -1):
            pod = self.pods[ordinal]
            if pod.template != self.template:
                self._start(ordinal, self.template)
                break
            if pod.ready_since_s is None:
                break
        for pod in self.pods.values():
            if not self.works(pod):
                pod.ready_since_s = None
            elif pod.ready_since_s is None and pod.uid != f"u{len(self.images)}":
                pod.ready_since_s = self.now_s  # not in the round in which it was started
        whole = all(pod.template == self.template and pod.ready_since_s is not None for pod in self.pods.values())
        self.complete = self.template if whole else self.complete

    def _start(self, ordinal: int, template: dict[str, Any]) -> None:
        pod = Pod(f"u{len(self.images) + 1}", template)
        self.images.append(pod.image)
        self.pods[ordinal] = pod

    def rounds(self, count: int, seconds: float = SECOND_S) -> None:
        for _ in range(count):
            self.reconcile()
            self.control()
            # A pod becomes ready in the round after the one that started it.
            self.now_s += seconds
            for pod in self.pods.values():
                if self.works(pod) and pod.ready_since_s is None:
                    pod.ready_since_s = self.now_s

    def settle(self) -> None:
        """Run until nothing changes any more, with ten minutes to spare."""
        self.rounds(60, 20.0)

    def step(self) -> RolloutStep | None:
        return None if self.status.rollout is None else self.status.rollout.step

    def running(self) -> list[str]:
        """Return the images of the ready pods."""
        return [pod.image for _, pod in sorted(self.pods.items()) if pod.ready_since_s is not None]

    def condition(self, kind: str) -> Condition:
        return next(one for one in self.status.conditions if one.type == kind)

    def warnings(self) -> list[str]:
        return [one.reason for one in self.events if one.warning]


def served(replicas: int = 1, **rollout: str) -> World:
    """Return a world whose first revision works."""
    world = World(replicas=replicas, rollout=rollout)
    world.settle()
    assert (world.step(), world.running()) == (RolloutStep.DONE, [GOOD] * replicas)
    world.events.clear()
    world.images.clear()
    return world


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_change_that_works_reaches_all_pods_after_the_first_one(replicas: int) -> None:
    world = served(replicas)
    world.image = BETTER
    world.rounds(4)
    assert world.images == [BETTER]
    assert world.step() is RolloutStep.SETTLING
    world.settle()
    assert world.running() == world.images == [BETTER] * replicas
    assert [one.reason for one in world.events] == ["RolloutStarted", "RolloutFinished"]
    assert len(world.config_maps) == 1, "the former one is deleted"
    assert world.condition("Ready").status == "True" and world.condition("Reconciling").status == "False"


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_a_change_that_does_not_work_reaches_one_pod_and_is_taken_back(replicas: int) -> None:
    world = served(replicas)
    good = world.status.rollout
    assert good is not None
    world.image = BAD
    world.rounds(30, 10.0)
    assert world.images == [BAD] and world.running() == [GOOD] * (replicas - 1)
    world.settle()
    assert world.images == [BAD, GOOD] and world.running() == [GOOD] * replicas
    assert world.step() is RolloutStep.ROLLED_BACK
    record = world.status.rollout
    assert record is not None
    assert record.good == good.good and record.revision != good.good
    rolled_back = world.condition("RolledBack")
    assert (rolled_back.status, rolled_back.reason) == ("True", "CrashLoopBackOff")
    assert rolled_back.message == (
        f"revision {record.revision} was tried on one broker, which was not ready within 5m: "
        f"orders-broker-{replicas - 1}: CrashLoopBackOff: {WORDS}; the brokers have revision {record.good}, the last "
        "that worked, until the spec changes"
    )
    for kind, status in (("Ready", "False"), ("Stalled", "True"), ("Degraded", "True"), ("Reconciling", "False")):
        assert world.condition(kind).status == status, kind
    assert world.condition("Ready").reason == "RolledBack"
    assert world.warnings().count("RolledBack") == 1
    assert list(world.config_maps) == [f"orders-broker-{record.good}"], "the other one is deleted"


def test_the_next_change_is_a_new_try() -> None:
    world = served()
    world.image = BAD
    world.settle()
    world.image = BETTER
    world.settle()
    assert world.images == [BAD, GOOD, BETTER]
    assert (world.step(), world.condition("RolledBack").status) == (RolloutStep.DONE, "False")
    world.image = BAD
    world.settle()
    assert world.images == [BAD, GOOD, BETTER, BAD, BETTER], "back to the last one that worked"


def test_a_change_back_to_the_running_revision_restarts_nothing() -> None:
    world = served()
    world.image = BAD
    world.settle()
    world.image = GOOD
    world.settle()
    assert world.images == [BAD, GOOD]
    assert (world.step(), world.condition("Ready").status) == (RolloutStep.DONE, "True")


def test_a_change_that_is_withdrawn_in_time_reaches_one_pod() -> None:
    world = served(3)
    world.image = BAD
    world.rounds(5)
    world.image = GOOD
    world.settle()
    assert world.images == [BAD, GOOD]
    assert world.step() is RolloutStep.DONE and "RolledBack" not in world.warnings()


def test_a_second_change_during_a_try_replaces_it() -> None:
    world = served(3)
    world.image = BAD
    world.rounds(5)
    world.image = BETTER
    world.settle()
    assert world.images == [BAD, BETTER, BETTER, BETTER]
    assert world.step() is RolloutStep.DONE


def test_a_pod_that_is_ready_only_for_moments_is_not_ready() -> None:
    world = served(2, stableFor="15s")
    world.works = lambda pod: pod.image != BAD or world.now_s % 15 < 12
    world.image = BAD
    world.rounds(400)
    assert world.step() is RolloutStep.ROLLED_BACK
    assert world.images.count(BAD) == 1 and world.running() == [GOOD, GOOD]


def test_the_limit_is_a_field_of_the_spec() -> None:
    world = served(readyWithin="10s")
    world.image = BAD
    world.rounds(16)
    assert world.running() == [GOOD] and world.step() is RolloutStep.ROLLED_BACK


def test_the_first_revision_of_all_has_nothing_to_go_back_to() -> None:
    world = World(replicas=3, image=BAD)
    world.settle()
    assert (world.images, world.step()) == ([BAD] * 3, RolloutStep.FIRST)
    assert world.condition("RolledBack").status == "False"
    world.image = GOOD
    world.settle()
    assert world.running() == [GOOD] * 3 and world.step() is RolloutStep.DONE


def test_a_pod_that_is_lost_during_a_try_comes_back_with_the_former_revision() -> None:
    world = served(3)
    world.image = BAD
    world.rounds(5)
    del world.pods[0]
    world.rounds(3)
    assert world.images == [BAD, GOOD]


def test_the_limit_does_not_run_while_no_broker_could_become_ready() -> None:
    world = served()
    silent = Condition(type="MetadataReachable", status=Truth.FALSE, reason="NoAnswer", last_transition_time="x")
    reachable = world.pool
    down = world.pool.status.model_copy(update={"conditions": (silent,)})
    world.pool = world.pool.model_copy(update={"status": down})
    works, world.works = world.works, lambda pod: pod.image != BETTER
    world.image = BETTER
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.HOLDING, [BETTER])
    assert world.status.rollout is not None and world.status.rollout.reason == "MetadataUnreachable"
    world.pool, world.works = reachable, works
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.DONE, [BETTER])


def test_a_change_of_stopped_brokers_is_tried_when_they_start() -> None:
    world = served()
    world.replicas = 0
    world.rounds(3)
    world.image = BAD
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.HOLDING, [])
    world.replicas = 1
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.ROLLED_BACK, [BAD, GOOD])


def test_a_try_begins_when_the_api_server_accepts_it() -> None:
    world = served()
    world.image, world.rejected = BETTER, Rejection("Invalid", "resources: must be less than the limit")
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.DONE, [])
    assert world.condition("Stalled").reason == "Invalid"
    world.rejected = None
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.DONE, [BETTER])


def test_without_the_former_config_map_the_try_stays_and_is_reported() -> None:
    world = served()
    world.image = BAD
    world.rounds(2)
    assert world.status.rollout is not None
    del world.config_maps[f"orders-broker-{world.status.rollout.good}"]
    world.settle()
    assert (world.step(), world.images) == (RolloutStep.FIRST, [BAD])
    stalled = world.condition("Stalled")
    assert (stalled.status, stalled.reason) == ("True", "RolloutStuck")
    assert WORDS in stalled.message and "is not available to return to" in stalled.message


def test_a_later_pod_that_does_not_come_up_stops_the_rollout_and_is_reported() -> None:
    world = served(3)
    world.works = lambda pod: pod.image != BETTER or pod.uid.endswith("1")
    world.image = BETTER
    world.images = [GOOD] * 10  # so that the next uid ends in 1
    world.settle()
    assert world.images[10:] == [BETTER, BETTER] and world.step() is RolloutStep.REST
    assert world.condition("Stalled").reason == "RolloutStuck"
    assert "orders-broker-1: CrashLoopBackOff" in world.condition("Stalled").message


def test_brokers_without_a_record_are_protected_too() -> None:
    world = served(2)
    world.status = ManagedLedgerStatus()
    world.image = BAD
    world.settle()
    assert world.images == [BAD, GOOD] and world.running() == [GOOD, GOOD]


def test_the_config_map_of_an_earlier_version_is_deleted_once_no_pod_uses_it() -> None:
    world = served()
    world.config_maps["orders-broker"] = {"metadata": {"name": "orders-broker"}, "data": {"quire.toml": ""}}
    world.image = BETTER
    world.settle()
    assert "orders-broker" not in world.config_maps


def test_a_paused_resource_keeps_its_record() -> None:
    world = served()
    world.image = BAD
    world.settle()
    record = world.status.rollout
    paused = world.resource().model_copy()
    spec = paused.spec.model_copy(update={"paused": True})
    observed = replace(world.observe(), resource=paused.model_copy(update={"spec": spec}))
    assert plan_managed_ledger(observed, GOOD).status.rollout == record


@one_in(5)
def test_an_operator_that_is_killed_after_any_reconciliation_decides_the_same(every: int) -> None:
    """Actions happen, but the status is not written: the next reconciliation reads the former record."""
    for lost in range(1, 40, every):
        world = served(2)
        world.image = BAD
        world.rounds(lost, 10.0)
        before = world.status
        world.reconcile()
        world.status = before
        world.settle()
        assert world.running() == [GOOD, GOOD] and world.step() is RolloutStep.ROLLED_BACK, lost
        assert world.images == [BAD, GOOD], lost
