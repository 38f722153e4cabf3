"""State that the process keeps between reconciliations. All of it may be lost: it only saves requests.

It has recently read nodes, storage classes and installed APIs, and reads resources from the indices of the watches.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api import API_VERSION
from quire_operator.builders import Manifest
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.ledger_reads import LedgerReads
from quire_operator.cluster.paths import collection
from quire_operator.plan.jobs_observation import Refusal

QUIET_REQUEUE_S_MAX = 15.0
"""Maximum interval of reconciliations for a waiting resource; watches wake it for changes in Kubernetes."""
READ_AGAIN_S = 60.0


Indexed = Mapping[tuple[str, str], Collection[Manifest]]
"""Resources of one kind by namespace and name, as the watches last reported them."""


class Resources:
    """Our resources in the indices that kopf maintains.

    kopf does not report a deletion during an interruption of a watch that is so long that kopf lists again. Such a
    resource stays in its index: `hide` omits it once a reconciliation has found that it does not exist.
    """

    def __init__(self, indices: Mapping[str, Indexed] | None = None) -> None:
        """Read these indices by kind; none yet if omitted."""
        self.indices: Mapping[str, Indexed] = {} if indices is None else indices
        self._hidden: frozenset[str] = frozenset()

    def all(self, kind: str) -> list[Manifest]:
        """Return all resources of a kind."""
        return [item for item in self._indexed(kind) if item["metadata"]["uid"] not in self._hidden]

    def uids(self, kind: str, namespace: str, name: str) -> frozenset[str]:
        """Return the uids under which a resource is indexed. Read them before asking whether the resource exists."""
        return frozenset(item["metadata"]["uid"] for item in self.indices.get(kind, {}).get((namespace, name), ()))

    def hide(self, uids: frozenset[str]) -> None:
        """Omit resources that no longer exist."""
        if uids:
            every = (items for index in self.indices.values() for items in index.values())
            there = {item["metadata"]["uid"] for items in every for item in items}
            self._hidden = (self._hidden | uids) & there

    def _indexed(self, kind: str) -> Iterator[Manifest]:
        """Yield one resource for each name: a former one may still be indexed, too."""
        for items in self.indices.get(kind, {}).values():
            yield max(items, key=lambda item: int(item["metadata"]["resourceVersion"]))


class Paces:
    """Determines when a resource is reconciled again: at growing intervals while nothing changes."""

    def __init__(self) -> None:
        self._quiet: dict[str, int] = {}

    def next_s(self, path: str, requeue_s: float, *, quiet: bool) -> float:
        """Return the seconds until the next reconciliation, for a plan that requests `requeue_s`."""
        streak = self._quiet.get(path, 0) + 1 if quiet else 0
        self._quiet[path] = streak
        return max(requeue_s, min(QUIET_REQUEUE_S_MAX, requeue_s * (1 << min(streak, 10))))

    def forget(self, path: str) -> None:
        """Forget a deleted resource."""
        self._quiet.pop(path, None)


@dataclass(slots=True)
class _Read:
    value: Any
    at_s: float


class Cache:
    """Caches responses that rarely change, for a minute."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}

    def __len__(self) -> int:
        """Return the number of cached responses."""
        return len(self._read)

    async def get(self, kube: Kube, path: str, now_s: float) -> Manifest | None:
        """Return an object, or None. Raises KubeError, UnreachableError."""
        known = self._read.get(path)
        if known is None or not 0 <= now_s - known.at_s < READ_AGAIN_S:
            known = self._keep(path, await kube.get(path), now_s)
        found: Manifest | None = known.value
        return found

    async def list(self, kube: Kube, path: str, now_s: float) -> list[Manifest]:
        """Return the objects of a collection. Raises KubeError, UnreachableError."""
        known = self._read.get(path)
        if known is None or not 0 <= now_s - known.at_s < READ_AGAIN_S:
            known = self._keep(path, await kube.list(path), now_s)
        found: list[Manifest] = known.value
        return found

    def _keep(self, path: str, value: Any, now_s: float) -> _Read:
        """Store a value and remove expired ones, because nodes come and go."""
        self._read = {path: each for path, each in self._read.items() if 0 <= now_s - each.at_s < READ_AGAIN_S}
        self._read[path] = found = _Read(value, now_s)
        return found


@dataclass(slots=True)
class Memory:
    """The state of one process."""

    applied: Applied = field(default_factory=Applied)
    resources: Resources | None = None
    """None if there are no watches; resources are listed then."""
    paces: Paces = field(default_factory=Paces)
    cache: Cache = field(default_factory=Cache)
    reads: LedgerReads = field(default_factory=LedgerReads)
    refusals: dict[str, dict[str, Refusal]] = field(default_factory=dict)
    """Refusals of runs, by the resource's path and the job, so that they are not created in each reconciliation."""

    def forget(self, path: str) -> None:
        """Forget a deleted resource."""
        self.paces.forget(path)
        self.refusals.pop(path, None)

    async def all(
        self, kube: Kube, kind: str, *, for_certain: bool = False, namespace: str | None = None
    ) -> Iterable[Manifest]:
        """Return the resources of a kind, in all watched namespaces or one. Raises KubeError, UnreachableError.

        `for_certain`: read them now, from all namespaces. A watch may be behind, so nothing is removed based on it.
        """
        if self.resources is not None and not for_certain:
            found = self.resources.all(kind)
            return found if namespace is None else [one for one in found if one["metadata"]["namespace"] == namespace]
        return await kube.list(collection(API_VERSION, kind, namespace))
