"""What the operator saw of a ManagedLedger in one look. Values only; `None` means that it could not be found out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.plan.seen import PodSeen, StatefulSetSeen


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic as the brokers have it; its partitions summed up."""

    partitions: int
    """0: not partitioned."""
    cursors: Mapping[str, int] = field(default_factory=dict)
    """Backlog in entries by subscription."""
    entries: int = 0
    size_bytes: int = 0
    position: str | None = None
    owner: str | None = None
    """Pod of the broker that owns it, or its first partition."""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """What the brokers' admin REST says of the namespace."""

    exists: bool
    policies: Mapping[str, Any] = field(default_factory=dict)
    """By path: `persistence`, `retention`."""
    topics: Mapping[str, TopicSeen] = field(default_factory=dict)
    """By name within the namespace."""


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
    pod_monitors: bool = False
