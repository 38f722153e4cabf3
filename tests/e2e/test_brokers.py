"""Brokers are added, replaced, killed and drained under load: no message is lost, and at most one is away at a time."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import manifests, nodes
from tests.e2e.kube import Manifest, is_ready, until
from tests.e2e.stack import BROKER_PODS, Stack

Measured = Callable[..., None]
WELL_S = 240.0
ROLL_S = 420.0
DRAIN_S = 240.0
SPREAD_S = 180.0


@pytest.fixture
def one_broker(stack: Stack) -> Iterator[Stack]:
    """The stack, which has one broker again afterwards."""
    yield stack
    if not stack.broken:
        scale(stack, 1)
        wait_until_open(stack, 1, DRAIN_S)


def ledger(stack: Stack) -> Manifest:
    """Return the current ManagedLedger."""
    return stack.cluster.get(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER) or {}


def change_brokers(stack: Stack, **fields: object) -> None:
    """Change fields of `brokers`."""
    stack.cluster.merge(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER, {"spec": {"brokers": fields}})


def scale(stack: Stack, replicas: int) -> None:
    """Set the number of brokers as `kubectl scale` does."""
    path = stack.cluster.path(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER)
    stack.cluster.api.merge(f"{path}/scale", {"spec": {"replicas": replicas}}).expect()


def wait_until_open(stack: Stack, replicas: int, timeout_s: float) -> None:
    """Wait until exactly `replicas` brokers serve with the declared revision."""

    def look() -> bool:
        found = ledger(stack)
        status = found["status"]
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and (status["state"], status["rollout"]["step"]) == ("Open", "Done")
            and status["replicas"] == status["ready"] == replicas
        )

    try:
        until(f"{replicas} brokers serve", look, timeout_s, poll_s=1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{ledger(stack).get('status')}") from error


def uids(stack: Stack) -> dict[str, str]:
    """Return the uid of each broker's pod."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BROKER_PODS)}


def test_three_brokers_are_replaced_killed_and_drained_to_two(one_broker: Stack, measured: Measured) -> None:
    stack = one_broker
    start_s = time.monotonic()
    scale(stack, 3)
    wait_until_open(stack, 3, WELL_S)
    measured("from 1 to 3 brokers", time.monotonic() - start_s)
    stack.goes_on()

    before = uids(stack)
    change_brokers(stack, podTemplate={"metadata": {"annotations": {"replaced-at": str(time.time())}}})
    ready: list[int] = []

    def replaced() -> bool:
        ready.append(sum(is_ready(pod) for pod in stack.cluster.pods(BROKER_PODS)))
        return not set(uids(stack).values()) & set(before.values())

    until("every broker was replaced", replaced, ROLL_S, poll_s=0.5)
    wait_until_open(stack, 3, ROLL_S)
    assert min(ready) >= 2, "never more than one at a time"
    until(
        "more than one broker has topics",
        lambda: sum(row["topics"] > 0 for row in ledger(stack)["status"]["brokers"]) > 1,
        SPREAD_S,
    )
    stack.goes_on()
    measured("longest pause of acknowledgements while they were replaced", stack.longest_pause_s())

    for pod in stack.cluster.pods(BROKER_PODS):
        nodes.signal_processes(pod["spec"]["nodeName"], pod["metadata"]["name"], "KILL")
        stack.goes_on()
        wait_until_open(stack, 3, WELL_S)
    measured("longest pause of acknowledgements while each was killed", stack.longest_pause_s())

    start_s = time.monotonic()
    scale(stack, 2)
    wait_until_open(stack, 2, DRAIN_S)
    measured("from 3 to 2 brokers", time.monotonic() - start_s)
    assert sorted(uids(stack)) == [f"{manifests.LEDGER}-broker-{number}" for number in range(2)]
    assert "BrokerDrained" in stack.events("ManagedLedger"), "it was drained before its pod ended"
    stack.goes_on()
    measured("longest pause of acknowledgements while one left", stack.longest_pause_s())
    stack.check_all()


def test_a_drain_that_is_withdrawn_restarts_the_broker(one_broker: Stack) -> None:
    stack = one_broker
    scale(stack, 2)
    wait_until_open(stack, 2, WELL_S)
    stack.goes_on()
    before = uids(stack)
    scale(stack, 1)
    until("a drain was seen or is over", lambda: ledger(stack)["status"].get("drain") or len(uids(stack)) == 1, DRAIN_S)
    scale(stack, 2)
    wait_until_open(stack, 2, WELL_S)
    after = uids(stack)
    assert after.keys() == before.keys()
    assert after[f"{manifests.LEDGER}-broker-0"] == before[f"{manifests.LEDGER}-broker-0"], "only the last one restarts"
    stack.goes_on()
    stack.check()
