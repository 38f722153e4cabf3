"""What the operator saw of a ManagedLedger in one look. Values only; `None` means that it could not be found out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.plan.jobs_seen import JobsSeen
from quire_operator.plan.seen import PodSeen, StatefulSetSeen


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic as the brokers have it; its partitions summed up."""

    partitions: int
    """0: not partitioned."""
    cursors: Mapping[str, int | None] = field(default_factory=dict)
    """Backlog in entries by subscription; None: not known while the topic is not loaded."""
    entries: int = 0
    size_bytes: int = 0
    position: str | None = None
    owner: str | None = None
    """Pod of the broker that owns it, or its first partition."""
    loaded: bool = True
    """Some broker has it in memory: its counts are those of now."""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """What the brokers' admin REST says of the namespace."""

    exists: bool
    policies: Mapping[str, Any] = field(default_factory=dict)
    """By path, query included: `persistence`, `retention`, `messageTTL`, `backlogQuota?...`."""
    grants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What roles may do in the namespace."""
    admins: tuple[str, ...] = ()
    """Roles that may do everything there."""
    isolation: Mapping[str, Any] | None = None
    """The namespace isolation policy of our name."""
    topics: Mapping[str, TopicSeen] = field(default_factory=dict)
    """By name within the namespace."""
    writable_bookies: int | None = None
    """How many bookies of the cluster take new ledgers, as the broker knows."""


@dataclass(frozen=True, slots=True)
class LedgerSeen:
    """One look."""

    resource: ManagedLedger
    now_s: float
    """Seconds since the epoch."""
    pool: Bookie | None
    """What `bookieRef` names."""
    bookies: int | None = None
    """How many the cluster has, writable or not."""
    writable_bookies: int | None = None
    stateful_set: StatefulSetSeen | None = None
    pods: tuple[PodSeen, ...] = ()
    namespace: NamespaceState | None = None
    """None: no broker answered."""
    under_replicated: int | None = None
    certificate_fault: str | None = None
    password_fault: str | None = None
    """Why the operator cannot make the certificates; a person must act."""
    rival: str | None = None
    """namespace/name of an older ManagedLedger with the same topics' namespace on the same cluster."""
    refused: str | None = None
    """What the API server or a broker refused in this pass, in its words."""
    pod_monitors: bool = False
    unwanted_monitors: tuple[tuple[str, str], ...] = ()
    """Name and uid of PodMonitors of ours that are there although monitoring is switched off."""
    jobs: JobsSeen = field(default_factory=JobsSeen)
