"""The actions that a plan may contain. Each is idempotent; a uid identifies the object that is meant."""

from dataclasses import dataclass
from typing import Any

from quire_operator.api.topic import TopicSchema
from quire_operator.builders import Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child as our field manager, overwriting fields that others changed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod with this uid; its StatefulSet recreates it."""

    name: str
    uid: str
    force: bool = False
    """Do not wait for its node, which may never respond again."""


@dataclass(frozen=True, slots=True)
class DeleteMonitor:
    """Delete a PodMonitor of ours, because monitoring was switched off."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Delete a child that is no longer declared: the external Service of a broker, an object of proxies."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteConfigMap:
    """Delete the ConfigMap of a former revision, which no pod uses."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AnnotateZone:
    """Annotate a pod with the zone of its node."""

    name: str
    uid: str
    zone: str


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Change `spec.replicas`, unless the resource has changed since it was read."""

    replicas: int


@dataclass(frozen=True, slots=True)
class DeleteStatefulSet:
    """Delete the StatefulSet; with `orphan` its pods keep running."""

    name: str
    uid: str
    orphan: bool


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Request a larger volume."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Delete a claim. With `keep_volume`, its volume is set to Retain first, so that the data survive."""

    name: str
    uid: str
    volume: str | None
    keep_volume: bool


@dataclass(frozen=True, slots=True)
class Decommission:
    """Request that the auditor drains a bookie and, after it has stopped, removes its cookie."""

    bookie: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Cancel the drain of a bookie at the auditor."""

    bookie: str


@dataclass(frozen=True, slots=True)
class SetLostBookieDelay:
    """Set how long a bookie of the cluster may be absent before it counts as lost."""

    seconds: int


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Add our finalizer to the resource, or remove it."""

    present: bool


@dataclass(frozen=True, slots=True)
class Emit:
    """Record an event on the resource."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class StartRun:
    """Create the object of a run; an existing object of this name is this run."""

    job: str
    manifest: Manifest
    event: Emit
    """Recorded after the object was created."""


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete the object of a run, and its pods with it."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class IssueToken:
    """Sign a token for a role and write it to the Secret of the resource."""

    secret_name: str
    role: str
    expires_s: int
    """In seconds since the epoch."""
    service_url: str


Action = (
    Apply
    | IssueToken
    | StartRun
    | DeleteRun
    | DeleteMonitor
    | DeleteConfigMap
    | DeleteChild
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
    """Create a namespace, and its tenant if that is missing."""

    namespace: str


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """Delete a namespace with all of its topics and their data."""

    namespace: str


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Set a policy of the namespace, by its path in the admin REST API, in Pulsar's format."""

    namespace: str
    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class SetIsolation:
    """Let only these brokers serve the namespace, by a namespace isolation policy in Pulsar's format."""

    name: str
    policy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ForgetIsolation:
    """Delete the isolation policy: any broker may serve the namespace again."""

    name: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Permit a role exactly these actions in the namespace; an empty tuple revokes its grant."""

    namespace: str
    role: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrantTopic:
    """Permit a role exactly these actions on a topic; an empty tuple revokes its grant, which exists."""

    namespace: str
    topic: str
    role: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetAdmins:
    """Make exactly these roles administrators of the namespace."""

    namespace: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadTopic:
    """Load a topic on the brokers, so that they report the backlog of its cursors; creates unused partitions."""

    namespace: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic; with 0 partitions it is not partitioned."""

    namespace: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Raise the number of partitions of a topic."""

    namespace: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class CreateCursor:
    """Create a durable subscription on each partition."""

    namespace: str
    topic: str
    cursor: str
    earliest: bool


@dataclass(frozen=True, slots=True)
class RegisterSchema:
    """Register a schema of a topic, unless the compatibility strategy of its namespace refuses it."""

    namespace: str
    topic: str
    schema: TopicSchema


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """Let a broker hand its bundles to others, and take none any more. Does not wait for them."""

    host: str
    """The host name that it advertises."""


@dataclass(frozen=True, slots=True)
class SetFailureDomain:
    """Let a failure domain have exactly these brokers, by their ids."""

    name: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetTenant:
    """Create a tenant, or replace its admin roles and clusters; no clusters: those of a new tenant."""

    tenant: str
    admin_roles: tuple[str, ...]
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteTenant:
    """Delete a tenant that has no namespace."""

    tenant: str


@dataclass(frozen=True, slots=True)
class RemovePolicy:
    """Remove a policy of the namespace, by its path: the setting of the brokers applies again."""

    namespace: str
    path: str


@dataclass(frozen=True, slots=True)
class DeleteEmptyNamespace:
    """Delete a namespace that has no topic."""

    namespace: str


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic with its partitions and data, unless a client is connected."""

    namespace: str
    topic: str
    partitions: int


NamespaceAction = (
    CreateNamespace
    | DrainBroker
    | SetFailureDomain
    | SetTenant
    | DeleteTenant
    | RemovePolicy
    | DeleteEmptyNamespace
    | DeleteTopic
    | GrantTopic
    | DeleteNamespace
    | SetPolicy
    | SetIsolation
    | ForgetIsolation
    | Grant
    | SetAdmins
    | CreateTopic
    | GrowTopic
    | CreateCursor
    | RegisterSchema
    | LoadTopic
)
