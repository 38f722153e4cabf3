"""The observation of a ManagedLedger. Values only; `None` means not known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.broker_revision import Revision
from quire_operator.plan.actions import DeleteChild
from quire_operator.plan.jobs_observation import JobsObservation
from quire_operator.plan.metadata_target import ObservedTarget
from quire_operator.plan.observation import ObservedPod, ObservedStatefulSet, Rejection


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """A topic as reported by the brokers; totals over its partitions."""

    partitions: int
    """0: not partitioned."""
    cursors: Mapping[str, int | None] = field(default_factory=dict)
    """Backlog in entries by subscription; None (not known) while the topic is not loaded."""
    entries: int = 0
    size_bytes: int = 0
    position: str | None = None
    owner: str | None = None
    """Pod of the broker that owns the topic or its first partition."""
    loaded: bool = True
    """A broker has loaded it, so its counts are current."""
    silent: bool = False
    """Its owner, or that of a partition, does not respond: whether it is loaded is not known."""
    producers: int | None = None
    """Connected producers; None while the topic is not loaded, or if the broker does not report them."""


@dataclass(frozen=True, slots=True)
class ObservedSchema:
    """A declared schema of a topic as reported by a broker."""

    version: int | None
    """Its version; None if it is not registered."""
    newest: int | None = None
    """The newest version of the topic, if the declared schema is not registered; None if there is none."""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """The namespace as reported by the brokers' admin REST API."""

    exists: bool
    policies: Mapping[str, Any] = field(default_factory=dict)
    """By path, query included: `persistence`, `retention`, `messageTTL`, `backlogQuota?...`."""
    grants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Permitted actions in the namespace, by role."""
    topic_grants: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Permitted actions on a topic, by its full name and by role."""
    admins: tuple[str, ...] = ()
    """Roles that administer the namespace."""
    isolation: Mapping[str, Any] | None = None
    """The namespace isolation policy that the operator maintains."""
    topics: Mapping[str, ObservedTopic] = field(default_factory=dict)
    """By name within the namespace."""
    writable_bookies: int | None = None
    """Number of bookies of the cluster that accept new ledgers, according to the broker."""


@dataclass(frozen=True, slots=True)
class TenantState:
    """A tenant as reported by the brokers' admin REST API."""

    exists: bool
    admin_roles: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    namespaces: int = 0
    """Number of its namespaces."""


@dataclass(frozen=True, slots=True)
class ObservedService:
    """The external Service of a broker."""

    name: str
    """As its pod."""
    uid: str
    host: str | None = None
    """The address of its load balancer, once it has one."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """By name: those of the load balancer, or of the nodes."""


@dataclass(frozen=True, slots=True)
class ObservedBrokerDrain:
    """How far the drain of a broker is."""

    draining: bool
    """It takes no bundles any more, until it is started again."""
    moved: int
    """Bundles that other brokers took from it since its start."""
    bundles: int
    """Bundles that it still has."""
    others: bool
    """Another broker takes bundles."""


@dataclass(frozen=True, slots=True)
class ObservedProxy:
    """The Deployment of the proxies."""

    replicas: int = 0
    updated: int = 0
    """Pods of its current template."""
    ready: int = 0
    current: bool = True
    """Its controller has observed the last change of its spec."""
    unavailable_since: str | None = None
    """Since when fewer proxies serve than it declares."""
    rejected_pod: str | None = None
    """Why its controller cannot create a missing pod, as the API server reported it."""
    pods: tuple[ObservedPod, ...] = ()
    """Empty while all are ready, which saves a request."""


@dataclass(frozen=True, slots=True)
class ObservedRevision:
    """A ConfigMap of the brokers."""

    name: str
    uid: str
    used: bool
    """A pod, or the template of the StatefulSet, mounts it."""
    revision: Revision | None = None
    """The revision in it; None for a ConfigMap of an earlier version."""


@dataclass(frozen=True, slots=True)
class LedgerObservation:
    """A ManagedLedger and its children, observed once."""

    resource: ManagedLedger
    now_s: float
    """Seconds since the epoch."""
    pool: Bookie | None
    """The Bookie that `bookieRef` names."""
    bookies: int | None = None
    """Number of bookies of the cluster, writable or not."""
    writable_bookies: int | None = None
    stateful_set: ObservedStatefulSet | None = None
    replicas: int | None = None
    """Brokers that the StatefulSet gets in this reconciliation, once decided; None: the number in the spec."""
    pods: tuple[ObservedPod, ...] = ()
    broker_usages: Mapping[str, float | None] = field(default_factory=dict)
    """Share of its CPU or network that each broker uses, by pod; empty unless it is time to measure."""
    services: tuple[ObservedService, ...] = ()
    """External Services of brokers. Empty also if none is declared and none was before."""
    failure_domains: Mapping[str, tuple[str, ...]] | None = None
    """Ids of the brokers of each domain of the cluster. None also if fewer than two brokers are declared."""
    proxy: ObservedProxy | None = None
    """None if there is none yet, or if none are declared."""
    unwanted_of_proxy: tuple[DeleteChild, ...] = ()
    """The objects of proxies that are no longer declared."""
    lacks_proxy_token: bool = False
    """Proxies are declared that authenticate, and the Secret of the brokers has no token for them."""
    leaving: ObservedBrokerDrain | None = None
    """Of the last broker, if fewer are declared than the StatefulSet has. None also if it does not respond."""
    revisions: tuple[ObservedRevision, ...] = ()
    """Empty unless the plan needs them (`rollout.reads_revisions`)."""
    namespace: NamespaceState | None = None
    """None if no broker responded."""
    under_replicated: int | None = None
    target: ObservedTarget | None = None
    """The metadata store in the spec of the pool, if the brokers use another one."""
    certificate_fault: str | None = None
    password_fault: str | None = None
    """Why the operator cannot create the ledger passwords; an administrator must act."""
    rival: str | None = None
    """namespace/name of an older ManagedLedger with the same topics' namespace on the same cluster."""
    further_namespaces: tuple[str, ...] = ()
    """While it is being deleted: namespaces of the TopicNamespaces that refer to it, served by its brokers."""
    rejected: Rejection | None = None
    """The write of this reconciliation that the API server or a broker rejected."""
    pod_monitors: bool = False
    unwanted_monitors: tuple[tuple[str, str], ...] = ()
    """Name and uid of our PodMonitors that exist although monitoring is off."""
    jobs: JobsObservation = field(default_factory=JobsObservation)
