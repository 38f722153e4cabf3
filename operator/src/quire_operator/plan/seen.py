"""What the operator saw of a pool in one look. Values only; `None` means that it could not be found out, never zero."""

from dataclasses import dataclass, field

from quire_operator.api.bookie import Bookie
from quire_operator.builders import Manifest


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of the pool's StatefulSet."""

    name: str
    uid: str = ""
    revision: str = ""
    """`controller-revision-hash`: which template it was made of."""
    ready: bool = False
    started: bool = False
    """Its process was well once since it was started; of a machine that is away: by what was last heard of it."""
    deleting: bool = False
    node: str | None = None
    zone: str | None = None
    """Of its node, by the first of placement.topologyKeys; empty: the node has none; None: not known."""
    zone_annotation: str | None = None
    """What the pod was told of it."""
    failure: str | None = None
    """Last words of its process, which ended and does not stay up."""
    replace_asked: bool = False
    """A person annotated it: its volumes are lost."""


@dataclass(frozen=True, slots=True)
class BookieSeen:
    """What a bookie said of itself over HTTP."""

    id: str
    writable: bool
    read_only_reasons: tuple[str, ...] = ()
    in_limbo: bool = False
    total_bytes: int = 0
    free_bytes: int = 0
    scrub_ended_s: float | None = None
    """When its last round of checks ended, in seconds since the epoch; None: none has."""
    scrub_damages: int = 0
    """Stretches of entries that were found damaged and are not mended."""


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A volume claim of the pool."""

    name: str
    template: str
    """The claim template it was made from, `ledgers0`."""
    pod: str
    size: str
    """What it asks for."""
    capacity: str | None = None
    """What it has; None while it is not bound."""
    uid: str = ""
    volume: str | None = None
    expandable: bool = False
    """Its storage class allows expansion."""
    deleting: bool = False
    gone: str | None = None
    """Why its volume cannot come back by itself, in a sentence; looked at only for a pod without a node."""


@dataclass(frozen=True, slots=True)
class StatefulSetSeen:
    """The pool's StatefulSet."""

    name: str
    uid: str
    replicas: int
    """What its spec asks for."""
    update_revision: str = ""
    """The revision of its present template; empty until its controller has looked at the last change."""
    claim_templates: tuple[Manifest, ...] = ()
    current: bool = True
    """Its controller has seen the last change of its spec."""
    deleting: bool = False
    credentials: str | None = None
    """The digest of credentials that its pods are told."""


@dataclass(frozen=True, slots=True)
class DrainSeen:
    """What the auditor says of emptying a bookie."""

    bookie: str
    emptied: bool
    ledgers_left: int
    eta_s: int | None = None
    looked_at_s: float = 0.0
    """When the auditor looked, in seconds since the epoch."""
    blocked_by: tuple[str, ...] = ()
    leaving: bool = True
    """The auditor let it go: enough others stay for the ledgers that there are. False: it waits, and may for ever."""

    @property
    def look(self) -> int:
        """Tells this look of the auditor from its others, whatever its clock says."""
        return round(self.looked_at_s * 1000)


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """What the metadata says, asked of a bookie or of auto-recovery."""

    under_replicated: int
    """Ledgers that lack a replica, but for those whose loss a person accepted: they stay marked for good."""
    unrecoverable: int = 0
    """Ledgers with entries that no replica could serve."""
    accepted: int = 0
    """How many of these a person gave up; nothing waits for them."""
    known: frozenset[str] = frozenset()
    """Ids with a cookie or a registration."""
    writable: frozenset[str] = frozenset()
    auditor: str | None = None
    recovery_enabled: bool = True
    oldest_mark_s: float | None = None
    """When the first of those that lack a replica was marked, in seconds since the epoch; None: nobody said."""
    drains: tuple[DrainSeen, ...] = ()

    @property
    def unaccepted(self) -> int:
        """Ledgers with entries that no replica could serve, about which nobody has decided."""
        return max(0, self.unrecoverable - self.accepted)

    def drain_of(self, bookie: str) -> DrainSeen | None:
        """The drain of a bookie."""
        return next((drain for drain in self.drains if drain.bookie == bookie), None)


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    """A ManagedLedger that keeps its data on this pool's cluster."""

    name: str
    ensemble: int
    uses_this_pool: bool = True
    """Its `bookieRef` names this pool, not another one of the cluster."""


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """One look."""

    resource: Bookie
    now_s: float
    """Seconds since the epoch."""
    stateful_set: StatefulSetSeen | None = None
    pods: tuple[PodSeen, ...] = ()
    claims: tuple[ClaimSeen, ...] = ()
    bookies: dict[str, BookieSeen] = field(default_factory=dict)
    """By pod; those that did not answer are missing."""
    cluster: ClusterSeen | None = None
    """None: the metadata could not be asked, or nobody who could ask it answers yet."""
    namespaces: tuple[NamespaceSeen, ...] = ()
    known_ids: dict[str, str] = field(default_factory=dict)
    """Bookie ids by pod, as the last status had them: also of those that do not answer now."""
    lost_bookie_delay_s: int | None = None
    """The cluster's value; None: none is set, or not known."""
    pod_monitors: bool = False
    unwanted_monitors: tuple[tuple[str, str], ...] = ()
    """Name and uid of PodMonitors of ours that are there although monitoring is switched off."""
    recovery_ready: bool = False
    certificate_fault: str | None = None
    """Why the operator cannot make the certificates; a person must act."""
    lacking_secret_keys: frozenset[str] = frozenset()
    """Keys that the Secret of `authentication` should have and has not."""
    hosts: tuple[str, ...] = ()
    """Addresses of bookies and auto-recovery, those first that answered for the metadata."""

    @property
    def fully_replicated(self) -> bool:
        """For sure: an unknown count is not zero."""
        return self.cluster is not None and self.cluster.under_replicated == 0 and self.cluster.unaccepted == 0

    def pod(self, name: str) -> PodSeen | None:
        """A pod by name."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def id_of(self, pod: str) -> str | None:
        """The id of the bookie in a pod, as it says itself or as was known."""
        bookie = self.bookies.get(pod)
        return bookie.id if bookie is not None else self.known_ids.get(pod)
