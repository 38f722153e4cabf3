"""Pods and the operator are killed, the pool is scaled and its image changed: under load, no message is lost."""

import time
from collections.abc import Callable

import pytest

from tests.e2e import manifests, nodes
from tests.e2e.kube import until
from tests.e2e.quire_plugin import kubectl_quire
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, OPERATOR_PODS, Stack

Measured = Callable[..., None]
WELL_S = 240.0
ROLL_S = 420.0
DRAIN_S = 420.0
SEEN_ANEW_S = 120.0
LEFT_ALONE_S = 20.0


@pytest.mark.e2e_short
@pytest.mark.parametrize("selector", [BOOKIE_PODS, BROKER_PODS], ids=["bookie", "broker"])
def test_a_pod_that_is_killed_comes_back_and_nothing_is_lost(stack: Stack, measured: Measured, selector: str) -> None:
    pod = stack.cluster.pods(selector)[0]
    name, restarts = pod["metadata"]["name"], _restarts(pod)
    start_s = time.monotonic()
    nodes.signal_processes(pod["spec"]["nodeName"], name, "KILL")
    until("the container was restarted", lambda: _restarts(stack.cluster.pods(selector)[0]) > restarts, SEEN_ANEW_S)
    stack.wait_until_well(WELL_S)
    measured("well again after", time.monotonic() - start_s)
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check()


@pytest.mark.e2e_short
def test_a_deleted_bookie_pod_comes_back_with_its_volumes_and_id(stack: Stack) -> None:
    before = stack.ids()
    stack.cluster.delete("v1", "Pod", "pool-bookie-1")
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    assert stack.ids() == before
    stack.check()


@pytest.mark.e2e_short
def test_five_bookies_and_three_again_with_the_operator_killed_in_the_middle_of_a_drain(
    stack: Stack, measured: Measured
) -> None:
    start_s = time.monotonic()
    stack.change_pool(replicas=5)
    stack.wait_until_well(WELL_S, replicas=5)
    measured("from 3 to 5 bookies", time.monotonic() - start_s)
    stack.goes_on(2000)
    kubectl_quire(stack, "drain", "pool-bookie-4", "--no-wait")
    until("it takes no more", lambda: _state(stack, "pool-bookie-4") != "Writable", SEEN_ANEW_S)
    kubectl_quire(stack, "undrain", "pool-bookie-4")
    stack.wait_until_well(DRAIN_S, replicas=5)
    start_s = time.monotonic()
    stack.change_pool(replicas=3)
    for step in ("Copying", "Verifying"):
        until(
            f"a drain is at {step} or further",
            lambda step=step: stack.operation().get("step") in (step, "Verifying"),  # type: ignore[misc]
            DRAIN_S,
            poll_s=0.3,
        )
        kill_operator(stack)
    stack.wait_until_well(DRAIN_S, replicas=3)
    measured("from 5 to 3 bookies, with the operator killed twice", time.monotonic() - start_s)
    claims = {claim["metadata"]["name"] for claim in stack.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS)}
    assert not {name for name in claims if name.endswith(("-3", "-4"))}, "claims of drained bookies remain"
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check_all()


def test_another_image_takes_one_bookie_at_a_time_and_waits_for_replicas(stack: Stack, measured: Measured) -> None:
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    start_s = time.monotonic()
    stack.change_pool(image=manifests.next_image("bookie"))
    until("the first pod is replaced", lambda: _replaced(stack, before), ROLL_S)
    kill_operator(stack)
    fewest = len(before)
    deadline_s = time.monotonic() + ROLL_S
    while time.monotonic() < deadline_s:
        status = stack.pool()["status"]
        fewest = min(fewest, sum(row["state"] == "Writable" for row in status["bookies"]))
        now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
        if not set(now.values()) & set(before.values()) and len(now) == len(before):
            break
        time.sleep(0.5)
    stack.wait_until_well(WELL_S)
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values()), "every pod was replaced"
    assert fewest >= len(before) - 1, "never more than one at a time"
    assert {_image(pod) for pod in stack.cluster.pods(BOOKIE_PODS)} == {manifests.next_image("bookie")}
    measured("all three replaced in", time.monotonic() - start_s)
    stack.goes_on()
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check()


def test_a_missing_image_stops_only_one_bookie_and_can_be_reverted(stack: Stack) -> None:
    good = stack.pool()["spec"].get("image")
    stack.change_pool(image="quire-bookie:not-there")
    until(
        "a pod waits for its image",
        lambda: any(_waiting(pod) in ("ErrImagePull", "ImagePullBackOff") for pod in stack.cluster.pods(BOOKIE_PODS)),
        ROLL_S,
    )
    time.sleep(10)
    broken = [pod for pod in stack.cluster.pods(BOOKIE_PODS) if _waiting(pod)]
    assert len(broken) == 1
    stack.goes_on()
    stack.change_pool(image=good)
    stack.wait_until_well(ROLL_S)
    stack.check()


def test_fewer_bookies_than_an_ensemble_needs_are_refused_with_the_reason(stack: Stack) -> None:
    before = stack.ids()
    stack.change_pool(replicas=2)
    said = stack.wait_for_condition("ScaleDownBlocked", "True", SEEN_ANEW_S)
    assert said["reason"] == "BelowEnsemble" and manifests.LEDGER in said["message"], said
    deadline_s = time.monotonic() + LEFT_ALONE_S
    while time.monotonic() < deadline_s:
        assert stack.ids() == before and {row["state"] for row in stack.pool()["status"]["bookies"]} == {"Writable"}
        time.sleep(1)
    stack.goes_on()
    stack.change_pool(replicas=3)
    stack.wait_until_well(WELL_S)
    stack.check()


def kill_operator(stack: Stack) -> None:
    """Kill the operator with SIGKILL: it releases nothing, and its successor waits for the lease to expire."""
    (pod,) = stack.cluster.pods(OPERATOR_PODS)
    restarts = _restarts(pod)
    nodes.signal_processes(pod["spec"]["nodeName"], pod["metadata"]["name"], "KILL")
    until("the operator was restarted", lambda: _restarts(stack.cluster.pods(OPERATOR_PODS)[0]) > restarts, SEEN_ANEW_S)
    stack.wait_for_pods(OPERATOR_PODS, 1, SEEN_ANEW_S)


def _state(stack: Stack, pod: str) -> str:
    return next((str(row["state"]) for row in stack.pool()["status"]["bookies"] if row["pod"] == pod), "")


def _replaced(stack: Stack, before: dict[str, str]) -> bool:
    """Return whether a pod was replaced."""
    now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    return any(name in now and now[name] != uid for name, uid in before.items())


def _image(pod: dict) -> str:  # type: ignore[type-arg]
    return str(pod["spec"]["containers"][0]["image"])


def _restarts(pod: dict) -> int:  # type: ignore[type-arg]
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))


def _waiting(pod: dict) -> str | None:  # type: ignore[type-arg]
    states = [one["state"].get("waiting", {}) for one in pod["status"].get("containerStatuses", ())]
    return next((state["reason"] for state in states if "reason" in state), None)
