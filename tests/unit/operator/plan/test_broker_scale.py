"""Fewer brokers: the last ones hand over their bundles before the StatefulSet shrinks, one at a time.

The plans run on the small world of `test_rollout`, whose pods have bundles here. Whenever Kubernetes removes a pod that
serves, the world checks that nothing was left in it.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_operator.api.managed_ledger import LedgerState, ManagedLedger
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import LedgerObservation, ObservedBrokerDrain
from quire_operator.plan.managed_ledger import plan_managed_ledger
from tests.unit.operator.plan.test_rollout import BAD, BETTER, GOOD, Pod, World

BUNDLES = 5


@dataclass
class Brokers(World):
    """A world whose spec may declare another number of brokers than its StatefulSet has."""

    declared: int = 3
    paused: bool = False
    silent: set[str] = field(default_factory=set)
    """Uids of pods whose process does not answer."""
    draining: set[str] = field(default_factory=set)
    bundles: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    """Uids of pods that may leave with bundles."""
    stuck: set[str] = field(default_factory=set)
    """Uids of pods that respond, but hand over no bundle."""
    per_round: int = 2
    """Bundles that a draining broker hands over in a round."""

    def resource(self) -> ManagedLedger:
        found = super().resource()
        brokers = found.spec.brokers.model_copy(update={"replicas": self.declared})
        spec = found.spec.model_copy(update={"brokers": brokers, "paused": self.paused})
        return found.model_copy(update={"spec": spec})

    def observe(self) -> LedgerObservation:
        found = super().observe()
        last = self.pods.get(self.replicas - 1)
        if not 0 < self.declared < self.replicas or last is None or last.ready_since_s is None:
            return found
        if last.uid in self.silent:
            return found
        others = any(pod.ready_since_s is not None and pod.uid not in self.draining for pod in self._but(last))
        state = ObservedBrokerDrain(
            last.uid in self.draining, self.moved.get(last.uid, 0), self.bundles.get(last.uid, BUNDLES), others
        )
        return replace(found, leaving=state)

    def _but(self, pod: Pod) -> list[Pod]:
        return [one for one in self.pods.values() if one is not pod]

    def perform(self, action: object) -> None:
        if isinstance(action, act.DrainBroker):
            ordinal = int(action.host.partition(".")[0].rsplit("-", 1)[1])
            assert ordinal == self.replicas - 1, "the last one leaves first"
            self.draining.add(self.pods[ordinal].uid)
        elif isinstance(action, act.DeletePod):
            self.pods = {at: pod for at, pod in self.pods.items() if pod.uid != action.uid}

    def until(self, image: str, count: int) -> None:
        """Run until `count` pods with this image are left and ready, and nothing is under way."""
        for _ in range(120):
            if self.running() == [image] * count and len(self.pods) == count and self.status.drain is None:
                return
            self.rounds(1, 20.0)
        raise AssertionError(f"{self.running()}, {self.status.drain}, {self.status.rollout}")

    def control(self) -> None:
        leaving = [pod for at, pod in self.pods.items() if at >= self.replicas and pod.ready_since_s is not None]
        for pod in (one for one in leaving if one.uid not in self.given_up) if self.declared else ():
            assert pod.uid in self.draining and self.bundles.get(pod.uid) == 0, "it still had bundles"
        assert len(leaving) <= 1 or self.declared == 0, "one at a time"
        super().control()
        for uid in self.draining - self.silent - self.stuck:
            step = min(self.per_round, self.bundles.setdefault(uid, BUNDLES))
            self.bundles[uid] -= step
            self.moved[uid] = self.moved.get(uid, 0) + step

    def drains(self) -> list[str]:
        return [one.reason for one in self.events if one.reason.startswith("Broker")]


def served(replicas: int, **more: Any) -> Brokers:
    world = Brokers(replicas=replicas, declared=replicas, **more)
    world.settle()
    assert world.running() == [GOOD] * replicas
    world.events.clear()
    world.images.clear()
    return world


def test_more_brokers_are_started_at_once() -> None:
    world = served(1)
    world.declared = 3
    world.rounds(2)
    assert world.running() == [GOOD] * 3
    assert world.drains() == [] and world.status.drain is None


def test_the_last_brokers_are_drained_one_by_one_before_they_go() -> None:
    world = served(4)
    world.declared = 2
    world.rounds(2)
    assert (len(world.pods), world.status.state) == (4, LedgerState.DRAINING)
    drain = world.status.drain
    assert drain is not None and (drain.pod, drain.moved, drain.bundles) == ("orders-broker-3", 2, 3)
    said = world.condition("Reconciling")
    assert (said.status, said.reason) == ("True", "Draining")
    assert said.message == "orders-broker-3 has 3 bundles left, 2 were handed over since its start"
    assert world.condition("Ready").status == "True", "it serves meanwhile"
    world.settle()
    assert world.running() == [GOOD] * 2
    assert world.drains() == ["BrokerDrains", "BrokerDrained"] * 2
    assert (world.status.state, world.status.drain) == (LedgerState.OPEN, None)
    assert world.images == [], "no other pod was touched"


def test_no_broker_is_drained_to_stop_all_of_them() -> None:
    world = served(3)
    world.declared = 0
    world.rounds(2)
    assert world.pods == {} and world.drains() == [] and world.status.state is LedgerState.STOPPED


def test_a_broker_that_does_not_answer_stays_and_is_reported() -> None:
    world = served(2)
    world.silent = {world.pods[1].uid}
    world.declared = 1
    world.rounds(20, 20.0)
    assert len(world.pods) == 2 and world.status.drain is not None
    assert world.condition("Reconciling").message.endswith("it does not respond")
    world.silent = set()
    world.settle()
    assert world.running() == [GOOD]


@pytest.mark.parametrize("state", ["silent", "stuck"])
def test_a_drain_without_progress_is_given_up(state: str) -> None:
    world = served(3)
    world.declared, world.per_round = 2, 1
    world.rounds(3, 400.0)
    assert len(world.pods) == 3, "it takes longer than the deadline, with progress"
    leaving = world.pods[2].uid
    setattr(world, state, {leaving})
    world.rounds(1, 250.0)
    assert len(world.pods) == 3 and world.condition("Degraded").status == "False"
    world.given_up = {leaving}
    world.rounds(4, 250.0)
    assert world.running() == [GOOD] * 2
    assert world.drains() == ["BrokerDrains", "BrokerDrainGivenUp"]
    said = next(one for one in world.events if one.reason == "BrokerDrainGivenUp")
    assert said.warning and said.message.endswith("bundles left: its drain made no progress for 10m")
    assert world.status.drain is None


def test_a_drain_that_cannot_be_given_up_is_reported() -> None:
    world = served(2)
    world.draining = {world.pods[0].uid}  # by an administrator
    world.declared = 1
    world.settle()
    assert len(world.pods) == 2
    degraded = world.condition("Degraded")
    assert (degraded.status, degraded.reason) == ("True", "DrainStalled")
    assert degraded.message.endswith("no other broker takes bundles")


def test_a_broker_whose_process_does_not_run_goes_without_a_drain() -> None:
    world = served(3)
    world.works = lambda pod: pod is not world.pods.get(2)
    world.rounds(1)
    world.declared = 2
    world.rounds(2)
    assert len(world.pods) == 2 and world.drains() == []


def test_no_broker_leaves_while_another_is_not_ready() -> None:
    world = served(3)
    first = world.pods[0]
    world.works = lambda pod: pod is not first
    world.rounds(1)
    world.declared = 2
    world.settle()
    assert len(world.pods) == 3 and world.draining == set()
    assert (
        world.condition("Reconciling").message == ("3 brokers are there, 2 are declared: orders-broker-0 is not ready")
        or world.condition("Degraded").status == "True"
    )
    world.works = lambda pod: True
    world.settle()
    assert world.running() == [GOOD] * 2


def test_a_broker_is_only_drained_if_another_takes_its_bundles() -> None:
    world = served(2)
    world.draining = {world.pods[0].uid}  # by an administrator
    world.declared = 1
    world.settle()
    assert len(world.pods) == 2
    assert world.condition("Reconciling").message.endswith("no other broker takes bundles")


def test_a_drain_that_is_withdrawn_restarts_its_broker() -> None:
    world = served(3)
    world.declared = 2
    world.rounds(2)
    leaving = world.pods[2].uid
    world.declared = 3
    world.settle()
    assert world.running() == [GOOD] * 3 and world.pods[2].uid != leaving, "else it would take no bundles"
    assert (world.images, world.status.drain) == ([GOOD], None)


def test_a_restart_after_a_withdrawn_drain_is_repeated_until_it_happens() -> None:
    world = served(3)
    world.declared = 2
    world.rounds(2)
    leaving = world.pods[2].uid
    world.declared = 3
    observed = world.observe()
    found = plan_managed_ledger(replace(observed, namespace=None), GOOD)
    assert act.DeletePod("orders-broker-2", leaving) in found.actions
    assert found.status.drain is not None, "the API server may have refused"
    assert found.status.drain.message == "it stays, so it is started again"


def test_a_broker_that_restarts_during_its_drain_is_drained_anew() -> None:
    world = served(3)
    world.declared = 2
    world.rounds(2)
    world._start(2, world.pods[2].template)  # it crashed
    world.pods[2].ready_since_s = world.now_s
    world.settle()
    assert world.running() == [GOOD] * 2
    assert world.drains() == ["BrokerDrains", "BrokerDrains", "BrokerDrained"]


@pytest.mark.parametrize("rounds", range(1, 10, 2))
def test_a_change_and_fewer_brokers_wait_for_each_other(rounds: int) -> None:
    """The change may come at any moment of the drain; both are done in the end, and no pod got a bad revision twice."""
    world = served(3)
    world.declared = 2
    world.rounds(rounds)
    world.image = BETTER
    world.settle()
    assert world.running() == [BETTER] * 2
    world.image, world.declared = BAD, 1
    world.settle()
    assert world.running()[0] in (BETTER, GOOD) and world.images.count(BAD) <= 2


def test_a_paused_resource_keeps_its_brokers_and_the_drain() -> None:
    world = served(3)
    world.declared = 2
    world.rounds(2)
    world.paused = True
    world.settle()
    assert len(world.pods) == 3 and world.status.drain is not None
    assert world.status.state is LedgerState.PAUSED
    world.paused = False
    world.settle()
    assert world.running() == [GOOD] * 2


def test_a_resource_that_is_deleted_drains_nothing() -> None:
    world = served(3)
    world.declared = 2
    observed = world.observe()
    metadata = observed.resource.metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    deleted = replace(observed, resource=observed.resource.model_copy(update={"metadata": metadata}))
    found = plan_managed_ledger(deleted, GOOD)
    assert not [one for one in found.actions if isinstance(one, act.DrainBroker | act.Apply | act.DeletePod)]


STEPS = st.lists(
    st.tuples(st.sampled_from(["scale", "image", "kill", "pause", "lose status", "nothing"]), st.integers(min_value=0)),
    max_size=12,
)


@pytest.fixture(scope="module")
def three() -> Brokers:
    """Three brokers that serve."""
    return served(3)


@settings(max_examples=20)
@given(steps=STEPS)
def test_no_broker_ever_goes_with_bundles(three: Brokers, steps: list[tuple[str, int]]) -> None:
    """Whatever happens in between: `control` checks each removal. In the end all is as declared."""
    world = copy.deepcopy(three)
    for what, number in steps:
        if what == "scale":
            world.declared = number % 5
        elif what == "image":
            world.image = (GOOD, BETTER, BAD)[number % 3]
        elif what == "kill" and world.pods:
            at = sorted(world.pods)[number % len(world.pods)]
            world._start(at, world.pods[at].template)
        elif what == "pause":
            world.paused = not world.paused
        elif what == "lose status":
            before = world.status
            world.reconcile()
            world.status = before
        world.rounds(number % 4)
    world.paused, world.image, world.declared = False, BETTER, 2
    world.until(BETTER, 2)
