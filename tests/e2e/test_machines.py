"""Machines that die, are cut off, lose a volume; a metadata store that is away; twelve bookies. Under load."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import manifests, nodes
from tests.e2e.kube import condition, until
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, ETCD_PODS, OPERATOR_PODS, Stack

Measured = Callable[..., None]
WELL_S = 300.0
SEEN_DOWN_S = 120.0


@pytest.fixture
def victim(stack: Stack) -> Iterator[str]:
    """A machine with a bookie and without anything that there is one of: broker, etcd, load, operator."""
    single = [pod for each in (BROKER_PODS, ETCD_PODS, OPERATOR_PODS, "app=load") for pod in stack.cluster.pods(each)]
    taken = {pod["spec"]["nodeName"] for pod in single}
    free = sorted({pod["spec"]["nodeName"] for pod in stack.cluster.pods(BOOKIE_PODS)} - taken)
    if not free:
        pytest.skip(f"every machine has something that there is one of: {sorted(taken)}")
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
    stack.judge()


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
    stack.judge()


def test_a_metadata_store_that_is_restarted_stops_nothing_for_good(stack: Stack, measured: Measured) -> None:
    stack.cluster.delete("v1", "Pod", f"{manifests.ETCD}-0")
    stack.wait_for_pods(ETCD_PODS, 1, 120)
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.judge()


def test_a_bookie_whose_volumes_were_wiped_is_a_new_bookie_with_everything_copied_back(
    stack: Stack, measured: Measured
) -> None:
    pod = next(pod for pod in stack.cluster.pods(BOOKIE_PODS) if pod["metadata"]["name"] == "pool-bookie-2")
    before = _ids(stack)["pool-bookie-2"]
    start_s = time.monotonic()
    for claim in stack.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS):
        if claim["metadata"]["name"].endswith("-pool-bookie-2"):
            volume = stack.cluster.get("v1", "PersistentVolume", claim["spec"]["volumeName"])
            assert volume is not None
            folder = volume["spec"]["local"]["path"]
            nodes.shell(pod["spec"]["nodeName"], f"rm -rf {folder}/* {folder}/.[!.]*; ls -A {folder}")
    nodes.signal_processes(pod["spec"]["nodeName"], "pool-bookie-2", "KILL")
    until("empty volumes are a new bookie", lambda: _ids(stack).get("pool-bookie-2") not in (None, before), WELL_S)
    stack.wait_until_well(600)
    measured("everything copied back after", time.monotonic() - start_s)
    stack.goes_on()
    stack.judge_all()


@pytest.mark.timeout(2700)
def test_twelve_bookies(stack: Stack, measured: Measured) -> None:
    start_s = time.monotonic()
    stack.change_pool(replicas=12)
    stack.wait_until_well(600, replicas=12)
    measured("from 3 to 12 bookies", time.monotonic() - start_s)
    stack.goes_on(2000)
    assert len(set(_ids(stack).values())) == 12
    start_s = time.monotonic()
    stack.change_pool(replicas=3)
    stack.wait_until_well(1800, replicas=3)
    measured("from 12 to 3 bookies", time.monotonic() - start_s)
    stack.judge_all()


def _truth(stack: Stack, kind: str) -> str:
    found = condition(stack.pool(), kind)
    return "" if found is None else str(found["status"])


def _ids(stack: Stack) -> dict[str, str]:
    return {row["pod"]: row["id"] for row in stack.pool()["status"]["bookies"] if "id" in row}
