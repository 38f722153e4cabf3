"""Machines fail, are cut off, drained or lost; the metadata store is unreachable; twelve bookies. All under load."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import manifests, nodes
from tests.e2e.kube import condition, holds, until
from tests.e2e.quire_plugin import asked
from tests.e2e.release import kubectl
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, ETCD_PODS, OPERATOR_PODS, Stack
from tests.e2e.test_pods_and_operator import kill_operator
from tests.integration.operator.kube_api import Answer

Measured = Callable[..., None]
WELL_S = 300.0
SEEN_DOWN_S = 120.0
LOST_S = 600.0
TOO_MANY_REQUESTS = 429
AWAY_S = 35.0
ZONES = 3


def singles(stack: Stack) -> set[str]:
    """Machines with a pod that has no second replica."""
    parts = (BROKER_PODS, ETCD_PODS, OPERATOR_PODS, "app=load")
    return {pod["spec"]["nodeName"] for each in parts for pod in stack.cluster.pods(each)}


@pytest.fixture
def victim(stack: Stack) -> Iterator[str]:
    """A machine with a bookie and without a single pod such as broker, etcd, load or operator."""
    taken = singles(stack)
    free = sorted({pod["spec"]["nodeName"] for pod in stack.cluster.pods(BOOKIE_PODS)} - taken)
    if not free:
        pytest.skip(f"every machine has a pod without a second replica: {sorted(taken)}")
    yield free[0]
    if not nodes.is_running(free[0]):
        nodes.start(free[0])


def test_a_machine_that_dies_costs_nothing_and_its_bookie_comes_back_with_it(
    stack: Stack, victim: str, measured: Measured
) -> None:
    start_s = time.monotonic()
    nodes.kill(victim)
    until("the pool knows", lambda: _truth(stack, "Degraded") == "True", SEEN_DOWN_S)
    measured("seen after", time.monotonic() - start_s)
    stack.goes_on()
    nodes.start(victim)
    back_s = time.monotonic()
    stack.wait_until_well(WELL_S)
    measured("well after the machine came back", time.monotonic() - back_s)
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check()


def test_a_machine_that_is_cut_off_and_joined_again(stack: Stack, victim: str, measured: Measured) -> None:
    nodes.cut(victim)
    try:
        until("the pool knows", lambda: _truth(stack, "Degraded") == "True", SEEN_DOWN_S)
        stack.goes_on()
    finally:
        nodes.join(victim)
    start_s = time.monotonic()
    stack.wait_until_well(WELL_S)
    measured("well after it was joined", time.monotonic() - start_s)
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check()


def test_a_drained_machine_evicts_its_bookie_and_no_second_one(stack: Stack, measured: Measured) -> None:
    before = stack.ids()
    drained, victim = _alone(stack)
    start_s = time.monotonic()
    kubectl(stack.cluster, "drain", victim, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    try:
        measured("drained after", time.monotonic() - start_s)
        until("the pool knows", lambda: _truth(stack, "Degraded") == "True", SEEN_DOWN_S)
        for name in before.keys() - {drained}:
            answer = _evict(stack, name)
            assert answer.status == TOO_MANY_REQUESTS, f"{name} may not be evicted as well: {answer}"
        stack.goes_on()
    finally:
        kubectl(stack.cluster, "uncordon", victim)
    stack.wait_until_well(WELL_S)
    assert stack.ids() == before
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check()


@pytest.mark.timeout(1500)
def test_a_machine_that_is_lost_with_its_volumes_is_replaced_by_a_new_bookie(stack: Stack, measured: Measured) -> None:
    stack.change_pool(replicas=4)  # a bookie must be available as the target of the copies
    stack.wait_until_well(WELL_S, replicas=4)
    before = stack.ids()
    lost, victim = _alone(stack)
    start_s = time.monotonic()
    nodes.kill(victim)
    stack.cluster.delete("v1", "Node", victim)
    try:
        until("it is being replaced", lambda: stack.operation().get("type") == "Replace", LOST_S, poll_s=0.3)
        kill_operator(stack)
        until("a new bookie is in its place", lambda: stack.ids().get(lost) not in (None, before[lost]), LOST_S)
        stack.wait_until_well(LOST_S, replicas=4)
        measured("replaced, and everything copied, after", time.monotonic() - start_s)
        after = stack.ids()
        assert {name for name in before if after[name] != before[name]} == {lost}
        assert victim not in {pod["spec"]["nodeName"] for pod in stack.cluster.pods(BOOKIE_PODS)}
        stack.goes_on()
        measured("longest pause of acknowledgements", stack.longest_pause_s())
    finally:
        nodes.start(victim)
    until("the machine is back, empty-handed", lambda: _is_up(stack, victim), SEEN_DOWN_S)
    stack.change_pool(replicas=3)
    stack.wait_until_well(LOST_S)
    stack.check_all()


def test_everything_resumes_after_the_metadata_store_was_unreachable(stack: Stack, measured: Measured) -> None:
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    etcd = f"statefulset/{manifests.ETCD}"
    kubectl(stack.cluster, "scale", etcd, "--replicas=0")
    try:
        until("the pool knows", lambda: _truth(stack, "MetadataReachable") != "True", SEEN_DOWN_S)
        assert _truth(stack, "FullyReplicated") == "Unknown", "the state is unknown without metadata"
        # Longer than a broker's session: topics wait from then on, since another broker may own them.
        time.sleep(AWAY_S)
    finally:
        kubectl(stack.cluster, "scale", etcd, "--replicas=1")
    stack.wait_for_pods(ETCD_PODS, 1, 120)
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    assert after == before, "nothing was removed meanwhile"
    stack.check()


def test_a_bookie_whose_volumes_were_wiped_is_a_new_bookie_with_everything_copied_back(
    stack: Stack, measured: Measured
) -> None:
    pod = next(pod for pod in stack.cluster.pods(BOOKIE_PODS) if pod["metadata"]["name"] == "pool-bookie-2")
    before = stack.ids()["pool-bookie-2"]
    start_s = time.monotonic()
    for claim in stack.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS):
        if claim["metadata"]["name"].endswith("-pool-bookie-2"):
            volume = stack.cluster.get("v1", "PersistentVolume", claim["spec"]["volumeName"])
            assert volume is not None
            folder = volume["spec"]["local"]["path"]
            nodes.shell(pod["spec"]["nodeName"], f"rm -rf {folder}/* {folder}/.[!.]*; ls -A {folder}")
    nodes.signal_processes(pod["spec"]["nodeName"], "pool-bookie-2", "KILL")
    until("empty volumes are a new bookie", lambda: stack.ids().get("pool-bookie-2") not in (None, before), WELL_S)
    stack.wait_until_well(600)
    measured("everything copied back after", time.monotonic() - start_s)
    stack.goes_on()
    stack.check_all()


@pytest.mark.timeout(2700)
def test_twelve_bookies(stack: Stack, measured: Measured) -> None:
    start_s = time.monotonic()
    stack.change_pool(replicas=12)
    stack.wait_until_well(600, replicas=12)
    measured("from 3 to 12 bookies", time.monotonic() - start_s)
    stack.goes_on(2000)
    assert len(set(stack.ids().values())) == 12
    zones = {row["id"]: row["zone"] for row in stack.pool()["status"]["bookies"]}
    assert len(set(zones.values())) == ZONES
    newest = asked(stack, "ledgers", "--limit", "100000")[-stack.topics :]
    ensembles = [one["segments"][-1]["ensemble"] for one in newest]
    assert all(len({zones[bookie] for bookie in ensemble}) > 1 for ensemble in ensembles), (zones, ensembles)
    start_s = time.monotonic()
    stack.change_pool(replicas=3)
    stack.wait_until_well(1800, replicas=3)
    measured("from 12 to 3 bookies", time.monotonic() - start_s)
    stack.check_all()


def _truth(stack: Stack, kind: str) -> str:
    found = condition(stack.pool(), kind)
    return "" if found is None else str(found["status"])


def _evict(stack: Stack, pod: str) -> Answer:
    path = stack.cluster.path("v1", "Pod", pod)
    wanted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": stack.where}}
    return stack.cluster.api.create(f"{path}/eviction", wanted)


def _alone(stack: Stack) -> tuple[str, str]:
    """Return a bookie's pod that is the only bookie on its machine, and the machine, which has no single pods.

    Two bookies lost at once could be the only ones that acknowledged an entry.
    """
    on = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    taken = singles(stack)
    for name, node in on.items():
        if node not in taken and list(on.values()).count(node) == 1:
            return name, node
    pytest.skip(f"no bookie is alone on a machine without single pods: {on}")


def _is_up(stack: Stack, node: str) -> bool:
    found = stack.cluster.get("v1", "Node", node)
    return found is not None and holds(found, "Ready")
