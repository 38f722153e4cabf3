"""Remembers recently applied children, so that a reconciliation without changes writes nothing. In memory only.

Each child is remembered with the version that the API server assigned. A watch that reports a later version, or a
deletion, makes the entry stale: the next reconciliation applies it again. A watch that had to list again may have
missed deletions, which makes every entry stale. Entries also expire, in case a watch missed an event.
"""

import hashlib
import json
from typing import Any

from quire_operator.builders import ReadManifest
from quire_operator.cluster.paths import manifest_path

KEPT_S = 600.0
KEPT_UNWATCHED_S = 60.0
RELISTED_S = 10.0
"""The objects of a repeated list arrive one by one within this time."""
_WITHOUT_GENERATION = frozenset({"ConfigMap", "Service", "ServiceAccount"})


def child_version(kind: str, metadata: dict[str, Any]) -> int:
    """Return a number that rises when a client changes the spec: the generation if the kind has one.

    Otherwise it is the resourceVersion. Both only rise while an object exists.
    """
    name = "resourceVersion" if kind in _WITHOUT_GENERATION else "generation"
    return int(metadata.get(name) or 0)


class Applied:
    """The recently applied children by path. Bounded by the number of children."""

    def __init__(self, *, watched: bool = False) -> None:
        """Create it empty. `watched`: `saw` and `lost` receive every change, so that entries may be kept longer."""
        self._kept_s = KEPT_S if watched else KEPT_UNWATCHED_S
        self._watched = watched
        self._known: dict[str, tuple[str, float, int]] = {}
        self._seen: dict[str, int] = {}
        self._relisted_s: float | None = None

    def is_fresh(self, manifest: ReadManifest, now_s: float) -> bool:
        """Return whether the same manifest was applied recently and has not been changed since."""
        if not self._watched and manifest["kind"] == "StatefulSet":
            return False
        path = manifest_path(manifest)
        digest, at_s, version = self._known.get(path, ("", 0.0, 0))
        fresh = 0 <= now_s - at_s < self._kept_s and self._seen.get(path, 0) <= version
        return fresh and digest == _digest(manifest)

    def note(self, manifest: ReadManifest, answer: ReadManifest, now_s: float) -> None:
        """Record an applied manifest. `answer`: the resulting object of the API server."""
        version = child_version(manifest["kind"], answer.get("metadata", {}))
        self._known[manifest_path(manifest)] = (_digest(manifest), now_s, version)

    def saw(self, path: str, version: int) -> bool:
        """Record a child reported by a watch. Return whether another client changed it."""
        self._seen[path] = version
        return version > self._known.get(path, ("", 0.0, 0))[2]

    def lost(self, path: str) -> None:
        """Forget a child that a watch reports as deleted."""
        self._seen.pop(path, None)
        self._known.pop(path, None)

    def relisted(self, now_s: float) -> None:
        """Forget all children, once per repeated list: kopf does not report deletions that the watch missed."""
        if self._relisted_s is None or now_s - self._relisted_s >= RELISTED_S:
            self._relisted_s = now_s
            self._known.clear()


def _digest(manifest: ReadManifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
