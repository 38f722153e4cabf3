"""Telling pods the zone of their node. Pure.

A pod learns its node only once it is scheduled, and nothing in it may read nodes: the operator writes the zone to an
annotation, and the bookie waits for that before it registers.
"""

from quire_operator.plan.actions import Action, AnnotateZone
from quire_operator.plan.seen import PoolSeen


def annotations(seen: PoolSeen) -> list[Action]:
    """For each pod whose annotation is not the zone of its node; a node that could not be asked is left for later."""
    if not seen.resource.spec.placement.topology_keys:
        return []
    return [
        AnnotateZone(pod.name, pod.uid, pod.zone)
        for pod in seen.pods
        if pod.node is not None and pod.zone is not None and pod.zone != pod.zone_annotation and not pod.deleting
    ]
