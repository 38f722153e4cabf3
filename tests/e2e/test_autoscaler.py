"""A HorizontalPodAutoscaler of brokers: through the scale subresource by its bounds, and by the CPU of the pods."""

from collections.abc import Iterator

import pytest

from tests.e2e import manifests, metrics_server
from tests.e2e.kube import Manifest, condition, until
from tests.e2e.stack import Stack
from tests.e2e.test_brokers import DRAIN_S, WELL_S, Measured, change_brokers, ledger, scale, wait_until_open

SCALER, VERSION = "orders", "autoscaling/v2"
REQUEST = {"requests": {"cpu": "50m"}}
"""Less than a broker uses under the load, so that a target of half of it asks for a second one."""
BUSY, IDLE = 50, 1_000_000
SCALED_S = 420.0


@pytest.fixture
def scaled(stack: Stack) -> Iterator[Stack]:
    """The stack, which has one broker and no autoscaler afterwards."""
    try:
        yield stack
    finally:
        stack.cluster.delete(VERSION, "HorizontalPodAutoscaler", SCALER)
    if not stack.broken:
        change_brokers(stack, resources=None)
        scale(stack, 1)
        wait_until_open(stack, 1, DRAIN_S)


def autoscaler(minimum: int, maximum: int, utilization: int) -> Manifest:
    """Return an autoscaler that reacts at once."""
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": utilization}}
    return {
        "apiVersion": VERSION,
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": SCALER},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": manifests.API_VERSION,
                "kind": "ManagedLedger",
                "name": manifests.LEDGER,
            },
            "minReplicas": minimum,
            "maxReplicas": maximum,
            "metrics": [{"type": "Resource", "resource": cpu}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def wait_for_replicas(stack: Stack, replicas: int) -> None:
    """Wait until the autoscaler has declared this number of brokers, and they serve."""

    def declared() -> bool:
        return bool(ledger(stack)["spec"]["brokers"]["replicas"] == replicas)

    try:
        until(f"the autoscaler asks for {replicas} brokers", declared, SCALED_S, poll_s=1.0)
    except AssertionError as error:
        found = stack.cluster.get(VERSION, "HorizontalPodAutoscaler", SCALER) or {}
        raise AssertionError(f"{error}\n{found.get('status')}") from error
    wait_until_open(stack, replicas, WELL_S)


def test_an_autoscaler_finds_its_target_and_keeps_the_brokers_within_its_bounds(scaled: Stack) -> None:
    stack = scaled
    stack.cluster.apply(autoscaler(2, 3, IDLE))
    wait_for_replicas(stack, 2)
    found = stack.cluster.get(VERSION, "HorizontalPodAutoscaler", SCALER) or {}
    able = condition(found, "AbleToScale")
    assert able is not None and able["status"] == "True", found.get("status")
    path = stack.cluster.path(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER)
    seen = stack.cluster.api.get(f"{path}/scale").expect()
    assert (seen["spec"]["replicas"], seen["status"]["replicas"]) == (2, 2)
    assert len(stack.cluster.pods(seen["status"]["selector"])) == 2, "the pods whose metrics it reads"
    stack.goes_on()
    stack.check()


def test_brokers_follow_their_cpu_and_are_drained_before_they_go(scaled: Stack, measured: Measured) -> None:
    stack = scaled
    metrics_server.start(stack.cluster)
    try:
        change_brokers(stack, resources=REQUEST)
        wait_until_open(stack, 1, WELL_S)
        stack.goes_on()
        stack.longest_pause_s()
        stack.cluster.apply(autoscaler(1, 2, BUSY))
        wait_for_replicas(stack, 2)
        measured("longest pause of acknowledgements while an autoscaler added a broker", stack.longest_pause_s())
        stack.cluster.apply(autoscaler(1, 2, IDLE))
        wait_for_replicas(stack, 1)
        measured("longest pause of acknowledgements while an autoscaler removed a broker", stack.longest_pause_s())
        events = stack.cluster.items("v1", "Event", field="involvedObject.kind=ManagedLedger")
        assert "BrokerDrained" in [one["reason"] for one in events]
        stack.goes_on()
        stack.check()
    finally:
        stack.cluster.delete(VERSION, "HorizontalPodAutoscaler", SCALER)
        metrics_server.stop(stack.cluster)
