"""The observation of a pool. Values only; `None` means not known, never zero."""

from dataclasses import dataclass, field

from quire_operator.api.bookie import Bookie
from quire_operator.builders import Manifest
from quire_operator.plan.metadata_target import ObservedTarget

UNSCHEDULABLE = "Unschedulable"
"""Reason of a pod that no node can take, as in its condition `PodScheduled`."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A write that the API server or a broker rejected."""

    reason: str
    """In CamelCase."""
    message: str
    """The message of the server, bounded."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod of the pool's StatefulSet."""

    name: str
    uid: str = ""
    revision: str = ""
    """`controller-revision-hash`: the template that it was created from."""
    ready: bool = False
    ready_since: str | None = None
    """When it became ready, according to its kubelet's clock."""
    started: bool = False
    """Its process was ready at least once since it started; on an unreachable node, according to the last report."""
    deleting: bool = False
    node: str | None = None
    node_address: str | None = None
    """Address of its node."""
    zone: str | None = None
    """Zone of its node, by the first of placement.topologyKeys. Empty if the node has none, None if not known."""
    zone_annotation: str | None = None
    """Zone in the annotation of the pod."""
    failure: str | None = None
    """Termination message of its process, which keeps failing."""
    blocked: tuple[str, str] | None = None
    """Reason and message if the pod cannot be scheduled, or its container cannot start: `Unschedulable`, ..."""
    replace_asked: bool = False
    """An administrator declared its volumes lost, by annotation."""
    ports: frozenset[str] = frozenset()
    """The names of its ports."""


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """What a bookie did in about the last minute. Latencies are the 99th percentile; None if there was nothing."""

    window_s: float
    journal_writes: int = 0
    journal_write_p99_s: float | None = None
    adds: int = 0
    add_p99_s: float | None = None
    added_bytes: int = 0
    read_bytes: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ObservedBookie:
    """The state that a bookie reports over HTTP."""

    id: str
    writable: bool
    read_only_reasons: tuple[str, ...] = ()
    in_limbo: bool = False
    total_bytes: int = 0
    free_bytes: int = 0
    scrub_ended_s: float | None = None
    """When its last scrub ended, in seconds since the epoch; None if none has."""
    scrub_damages: int = 0
    """Ranges of entries that were found damaged and are not repaired."""
    load: ObservedLoad | None = None
    """None until it is known, and of an earlier version."""


@dataclass(frozen=True, slots=True)
class ObservedClaim:
    """A volume claim of the pool."""

    name: str
    template: str
    """The claim template it was made from, `ledgers0`."""
    pod: str
    size: str
    """The requested size."""
    capacity: str | None = None
    """The actual size; None while it is not bound."""
    uid: str = ""
    volume: str | None = None
    expandable: bool = False
    """Its storage class allows expansion."""
    deleting: bool = False
    gone: str | None = None
    """Why its volume cannot come back by itself; observed only for a pod without a node."""
    resize_note: str | None = None
    """What Kubernetes reports on an expansion that is not complete."""
    resize_failed: bool = False
    """The storage cannot provide the requested size; Kubernetes tries again, rarely."""


@dataclass(frozen=True, slots=True)
class ObservedConfigMap:
    """A ConfigMap of the bookies."""

    name: str
    uid: str
    used: bool
    """A pod, or the template of the StatefulSet, mounts it."""


@dataclass(frozen=True, slots=True)
class ObservedStatefulSet:
    """The pool's StatefulSet."""

    name: str
    uid: str
    replicas: int
    """The replicas in its spec."""
    update_revision: str = ""
    """The revision of its current template; empty until its controller has observed the last change."""
    claim_templates: tuple[Manifest, ...] = ()
    current: bool = True
    """Its controller has observed the last change of its spec."""
    deleting: bool = False
    is_complete: bool = False
    """Its controller would create every pod from the current template, also a pod that is lost."""
    revision: str | None = None
    """Our revision in its pod template, if it has one."""
    credentials: str | None = None
    """The digest of credentials in its pod template."""
    rejected_pod: str | None = None
    """Why its controller cannot create a missing pod, as the API server reported it."""


@dataclass(frozen=True, slots=True)
class ObservedDrain:
    """The drain of a bookie as reported by the auditor."""

    bookie: str
    emptied: bool
    ledgers_left: int
    eta_s: int | None = None
    checked_at_s: float = 0.0
    """When the auditor checked the bookie, in seconds since the epoch."""
    blocked_by: tuple[str, ...] = ()
    leaving: bool = True
    """The auditor released it: enough others stay for the existing ledgers. False: it waits, perhaps indefinitely."""

    @property
    def check_id(self) -> int:
        """Identifies this check of the auditor among its others, independent of clocks."""
        return round(self.checked_at_s * 1000)


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """The state of the cluster in the metadata, as reported by a bookie or by auto-recovery."""

    under_replicated: int
    """Under-replicated ledgers, without those whose loss was accepted: these stay marked permanently."""
    unrecoverable: int = 0
    """Ledgers with entries that no replica can serve."""
    accepted: int = 0
    """How many of the unrecoverable ledgers an administrator accepted as lost; nothing waits for them."""
    known: frozenset[str] = frozenset()
    """Ids with a cookie or a registration."""
    writable: frozenset[str] = frozenset()
    auditor: str | None = None
    recovery_enabled: bool = True
    oldest_mark_s: float | None = None
    """When the oldest under-replicated ledger was marked, in seconds since the epoch; None if not reported."""
    drains: tuple[ObservedDrain, ...] = ()

    @property
    def unaccepted(self) -> int:
        """Number of ledgers with entries that no replica can serve and whose loss was not accepted."""
        return max(0, self.unrecoverable - self.accepted)

    def drain_of(self, bookie: str) -> ObservedDrain | None:
        """Return the drain of a bookie, or None."""
        return next((drain for drain in self.drains if drain.bookie == bookie), None)


@dataclass(frozen=True, slots=True)
class ObservedNamespace:
    """A ManagedLedger whose data are on the cluster of this pool."""

    name: str
    ensemble: int
    uses_this_pool: bool = True
    """Its `bookieRef` names this pool, not another pool of the cluster."""


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """A pool and its children, observed once."""

    resource: Bookie
    now_s: float
    """Seconds since the epoch."""
    stateful_set: ObservedStatefulSet | None = None
    pods: tuple[ObservedPod, ...] = ()
    claims: tuple[ObservedClaim, ...] = ()
    bookies: dict[str, ObservedBookie] = field(default_factory=dict)
    """Bookies by pod; those that did not respond are missing."""
    cluster: ObservedCluster | None = None
    """None if the metadata store is unreachable, or if no process that can query it responds yet."""
    namespaces: tuple[ObservedNamespace, ...] = ()
    known_ids: dict[str, str] = field(default_factory=dict)
    """Bookie ids by pod from the last status, including those that do not respond now."""
    lost_bookie_delay_s: int | None = None
    """The value in the metadata; None if it is not set, or not known."""
    config_maps: tuple[ObservedConfigMap, ...] = ()
    """Observed only during a roll, which deletes unused ones at its end."""
    pod_monitors: bool = False
    unwanted_monitors: tuple[tuple[str, str], ...] = ()
    """Name and uid of our PodMonitors that exist although monitoring is off."""
    recovery_ready: bool = False
    target: ObservedTarget | None = None
    """The metadata store in the spec, if the children use another one."""
    certificate_fault: str | None = None
    """Why the operator cannot create the certificates; an administrator must act."""
    lacking_secret_keys: frozenset[str] = frozenset()
    """Keys that the Secret of `authentication` lacks."""
    rejected: Rejection | None = None
    """The write of this reconciliation that the API server rejected."""
    hosts: tuple[str, ...] = ()
    """Addresses of bookies and auto-recovery; those that reported on the metadata come first."""

    @property
    def fully_replicated(self) -> bool:
        """Whether all ledgers are known to be fully replicated; an unknown count is not zero."""
        return self.cluster is not None and self.cluster.under_replicated == 0 and self.cluster.unaccepted == 0

    def pod(self, name: str) -> ObservedPod | None:
        """Return a pod by name, or None."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def id_of(self, pod: str) -> str | None:
        """Return the id of the bookie in a pod, as it reports or as last known."""
        bookie = self.bookies.get(pod)
        return bookie.id if bookie is not None else self.known_ids.get(pod)
