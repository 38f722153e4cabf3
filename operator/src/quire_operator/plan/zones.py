"""Plans the annotations that give pods the zone of their node, and detects the loss of a zone. Pure.

The node of a pod is known only after scheduling, and the pod has no permission to read nodes: the operator writes the
zone to an annotation, and the bookie waits for it before it registers.

A zone counts as lost while none of its bookies responds, at least two of them served before, and another zone responds.
Then nothing is replaced, drained, rolled or evicted: a zone usually comes back with its volumes, and until then the
others hold the only copies. With one bookie in a zone its loss is that of a bookie.
"""

from dataclasses import dataclass

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


REASON = "ZoneLost"
BOOKIES_MIN = 2


@dataclass(frozen=True, slots=True)
class LostZone:
    """A zone whose bookies are all away."""

    zone: str
    pods: tuple[str, ...]

    @property
    def message(self) -> str:
        """What happened, what it stops, and what an administrator may do."""
        return (
            f"zone {self.zone} is lost: none of its bookies responds ({', '.join(self.pods)}); nothing is replaced, "
            "drained or rolled until one of them is back, or until each is annotated with quire.dev/replace"
        )


def zone_of_pods(observed: PoolObservation) -> dict[str, str]:
    """Return the zone of each pod that has or had one: a recreated pod that no node can take is not in a zone now."""
    found = {row.pod: row.zone for row in observed.resource.status.bookies if row.zone}
    return found | {pod.name: pod.zone for pod in observed.pods if pod.zone}


def lost_zone(observed: PoolObservation) -> LostZone | None:
    """Return the first lost zone, or None. Bookies that an administrator declared lost do not count as members."""
    given_up = {pod.name for pod in observed.pods if pod.replace_asked}
    members: dict[str, list[str]] = {}
    for pod, zone in zone_of_pods(observed).items():
        if pod in observed.bookies or (observed.id_of(pod) is not None and pod not in given_up):
            members.setdefault(zone, []).append(pod)
    silent = [zone for zone, pods in members.items() if not observed.bookies.keys() & set(pods)]
    if len(silent) == len(members):
        return None  # no zone responds: the operator itself may be cut off
    lost = sorted(zone for zone in silent if len(members[zone]) >= BOOKIES_MIN)
    return LostZone(lost[0], tuple(sorted(members[lost[0]]))) if lost else None
