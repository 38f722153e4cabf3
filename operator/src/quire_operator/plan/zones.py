"""Plans the annotations that give pods the zone of their node. Pure.

The node of a pod is known only after scheduling, and the pod has no permission to read nodes: the operator writes the
zone to an annotation, and the bookie waits for it before it registers.
"""

from quire_operator.plan.actions import Action, AnnotateZone
from quire_operator.plan.observation import PoolObservation


def annotations(observed: PoolObservation) -> list[Action]:
    """Return annotations for pods whose annotation differs from the zone of their node; unknown zones are skipped."""
    if not observed.resource.spec.placement.topology_keys:
        return []
    return [
        AnnotateZone(pod.name, pod.uid, pod.zone)
        for pod in observed.pods
        if pod.node is not None and pod.zone is not None and pod.zone != pod.zone_annotation and not pod.deleting
    ]
