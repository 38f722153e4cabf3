"""What a plan may ask for. Each action may be done twice with the effect of once; a uid says which object is meant."""

from dataclasses import dataclass
from typing import Any

from quire_operator.builders import Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child, as our field manager, taking fields back that others changed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeletePod:
    """End a pod so that its StatefulSet makes it anew; only the one with this uid."""

    name: str
    uid: str
    force: bool = False
    """Do not wait for its node, which may never answer again."""


@dataclass(frozen=True, slots=True)
class DeleteMonitor:
    """Delete a PodMonitor of ours: nothing is to be scraped any more."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AnnotateZone:
    """Tell a pod the zone of its node."""

    name: str
    uid: str
    zone: str


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Change `spec.replicas`, only while it is what was read."""

    replicas: int


@dataclass(frozen=True, slots=True)
class DeleteStatefulSet:
    """Delete it; with `orphan` its pods go on running."""

    name: str
    uid: str
    orphan: bool


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Ask for a larger volume."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Delete a claim. With `keep_volume` its volume is first set to be retained, so that the data stays on it."""

    name: str
    uid: str
    volume: str | None
    keep_volume: bool


@dataclass(frozen=True, slots=True)
class Decommission:
    """Tell the auditor to empty a bookie and, once it is stopped, to forget it."""

    bookie: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Tell the auditor that a bookie stays."""

    bookie: str


@dataclass(frozen=True, slots=True)
class SetLostBookieDelay:
    """The cluster's value for how long a bookie may be away."""

    seconds: int


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Put our finalizer on the resource, or take it off."""

    present: bool


@dataclass(frozen=True, slots=True)
class Emit:
    """An event on the resource."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class StartRun:
    """Make the object of a run; one that is there by this name already is this run."""

    job: str
    manifest: Manifest
    told: Emit
    """Once it is made."""


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete a run's object, and with it its pods."""

    api_version: str
    kind: str
    name: str
    uid: str


Action = (
    Apply
    | StartRun
    | DeleteRun
    | DeleteMonitor
    | AnnotateZone
    | SetReplicas
    | DeletePod
    | DeleteStatefulSet
    | ResizeClaim
    | ReleaseClaim
    | Decommission
    | CancelDrain
    | SetLostBookieDelay
    | SetFinalizer
    | Emit
)


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """With its tenant, where that is missing."""

    namespace: str


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """With all of its topics and their data."""

    namespace: str


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """A policy of the namespace, by its path in the admin REST, in Pulsar's form."""

    namespace: str
    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class SetIsolation:
    """Only these brokers serve the namespace: a namespace isolation policy, in Pulsar's form."""

    name: str
    policy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ForgetIsolation:
    """Any broker may serve the namespace again."""

    name: str


@dataclass(frozen=True, slots=True)
class Grant:
    """A role may do these in the namespace and nothing else; without any it may do nothing by its rights there."""

    namespace: str
    role: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetAdmins:
    """These roles, and no others, may do everything in the namespace."""

    namespace: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadTopic:
    """Have the brokers open a topic, so that they know what its cursors have left; unused partitions are made."""

    namespace: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """0 partitions: not partitioned."""

    namespace: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """More partitions."""

    namespace: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class CreateCursor:
    """A durable subscription, on each partition."""

    namespace: str
    topic: str
    cursor: str
    earliest: bool


NamespaceAction = (
    CreateNamespace
    | DeleteNamespace
    | SetPolicy
    | SetIsolation
    | ForgetIsolation
    | Grant
    | SetAdmins
    | CreateTopic
    | GrowTopic
    | CreateCursor
    | LoadTopic
)
