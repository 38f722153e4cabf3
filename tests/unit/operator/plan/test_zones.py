"""Zone annotations of pods."""

from dataclasses import replace

import pytest

from quire_operator.plan.actions import AnnotateZone
from quire_operator.plan.observation import ObservedPod, PoolObservation
from quire_operator.plan.zones import annotations
from tests.unit.operator.plan.small_world import World

POD = ObservedPod("pool-bookie-0", "u1", node="n1", zone="eu-1a")


def seen(pod: ObservedPod, keys: list[str] | None = None) -> PoolObservation:
    world = World()
    if keys is not None:
        world.change(placement={"topologyKeys": keys})
    return replace(world.observe(), pods=(pod,))


@pytest.mark.parametrize(
    ("pod", "zone"),
    [
        (POD, "eu-1a"),
        (replace(POD, zone=""), ""),  # its node has no zone: annotated as empty, so that the bookie does not wait
        (replace(POD, zone_annotation="eu-1a"), None),
        (replace(POD, zone_annotation="eu-1b"), "eu-1a"),  # changed manually, or another label applies now
        (replace(POD, node=None, zone=None), None),
        (replace(POD, zone=None), None),  # its node is unknown
        (replace(POD, deleting=True), None),
    ],
)
def test_a_pod_is_annotated_with_the_zone_of_its_node_after_scheduling(pod: ObservedPod, zone: str | None) -> None:
    expected = [] if zone is None else [AnnotateZone("pool-bookie-0", "u1", zone)]
    assert annotations(seen(pod)) == expected


def test_without_topology_keys_no_pod_is_annotated() -> None:
    assert annotations(seen(POD, keys=[])) == []
