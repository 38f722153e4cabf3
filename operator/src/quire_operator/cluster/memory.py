"""What the process remembers from one pass to the next. All of it may be forgotten: it only saves requests.

Of resources it has what the watches last told, of nodes, storage classes and installed APIs what was read lately.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api import API_VERSION
from quire_operator.builders import Manifest
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection
from quire_operator.plan.jobs_seen import Refusal

QUIET_REQUEUE_S_MAX = 15.0
"""A resource that waits for something is looked at at least so often; watches wake it for what Kubernetes knows."""
READ_AGAIN_S = 60.0


class Resources:
    """Bookies and ManagedLedgers as they were last seen; by namespace and name."""

    def __init__(self) -> None:
        self._items: dict[str, dict[tuple[str, str], Manifest]] = {"Bookie": {}, "ManagedLedger": {}}

    def put(self, kind: str, item: Manifest) -> None:
        """It is there, or has changed."""
        self._items[kind][(item["metadata"]["namespace"], item["metadata"]["name"])] = item

    def drop(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """It is gone; as it was last seen."""
        return self._items[kind].pop((namespace, name), None)

    def all(self, kind: str) -> Iterable[Manifest]:
        """All of a kind."""
        return list(self._items[kind].values())


class Paces:
    """How soon a resource is looked at again: less and less often while its passes find nothing new and do nothing."""

    def __init__(self) -> None:
        self._quiet: dict[str, int] = {}

    def next_s(self, path: str, requeue_s: float, *, quiet: bool) -> float:
        """Seconds until the next pass, for one that wants to be back after `requeue_s`."""
        streak = self._quiet.get(path, 0) + 1 if quiet else 0
        self._quiet[path] = streak
        return max(requeue_s, min(QUIET_REQUEUE_S_MAX, requeue_s * (1 << min(streak, 10))))

    def forget(self, path: str) -> None:
        """The resource is gone."""
        self._quiet.pop(path, None)


@dataclass(slots=True)
class _Read:
    value: Any
    at_s: float


class Cache:
    """Answers that hardly ever change, kept for a minute."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}

    def __len__(self) -> int:
        """Answers that are kept."""
        return len(self._read)

    async def get(self, kube: Kube, path: str, now_s: float) -> Manifest | None:
        """An object. KubeError, UnreachableError."""
        known = self._read.get(path)
        if known is None or not 0 <= now_s - known.at_s < READ_AGAIN_S:
            known = self._keep(path, await kube.get(path), now_s)
        found: Manifest | None = known.value
        return found

    async def list(self, kube: Kube, path: str, now_s: float) -> list[Manifest]:
        """A collection. KubeError, UnreachableError."""
        known = self._read.get(path)
        if known is None or not 0 <= now_s - known.at_s < READ_AGAIN_S:
            known = self._keep(path, await kube.list(path), now_s)
        found: list[Manifest] = known.value
        return found

    def _keep(self, path: str, value: Any, now_s: float) -> _Read:
        """What is too old goes: nodes come and go."""
        self._read = {path: each for path, each in self._read.items() if 0 <= now_s - each.at_s < READ_AGAIN_S}
        self._read[path] = found = _Read(value, now_s)
        return found


@dataclass(slots=True)
class Memory:
    """Of one process."""

    applied: Applied = field(default_factory=Applied)
    resources: Resources | None = None
    """None: nobody watches, they are listed."""
    paces: Paces = field(default_factory=Paces)
    cache: Cache = field(default_factory=Cache)
    refusals: dict[str, dict[str, Refusal]] = field(default_factory=dict)
    """Of runs, by the resource's path and the job: so that they are not asked for in each pass."""

    def forget(self, path: str) -> None:
        """The resource is gone."""
        self.paces.forget(path)
        self.refusals.pop(path, None)

    async def all(self, kube: Kube, kind: str, *, for_certain: bool = False) -> Iterable[Manifest]:
        """Resources of a kind, of all namespaces that are watched. KubeError, UnreachableError.

        `for_certain`: of now, in all namespaces. A watch may be behind: nothing is taken away by what it told.
        """
        if self.resources is not None and not for_certain:
            return self.resources.all(kind)
        return await kube.list(collection(API_VERSION, kind, None))
