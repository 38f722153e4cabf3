"""What this process applied lately, so that a pass without changes writes nothing. Forgotten with the process.

Each child is remembered with the version that the API server gave it. A watch that reports a later one, or that the
child is gone, makes it stale: the next pass applies it again. Entries also end by age, for a watch that missed one.
"""

import hashlib
import json
from typing import Any

from quire_operator.builders import ReadManifest
from quire_operator.cluster.paths import manifest_path

KEPT_S = 600.0
KEPT_UNWATCHED_S = 60.0
_WITHOUT_GENERATION = frozenset({"ConfigMap", "Service", "ServiceAccount"})


def child_version(kind: str, metadata: dict[str, Any]) -> int:
    """What moves when somebody changes what we apply: the generation, where there is one that status leaves alone.

    Both numbers only grow while an object lives.
    """
    name = "resourceVersion" if kind in _WITHOUT_GENERATION else "generation"
    return int(metadata.get(name) or 0)


class Applied:
    """By path; bounded by the number of children."""

    def __init__(self, *, watched: bool = False) -> None:
        """`watched`: `saw` and `lost` are told of every change, so that entries may be kept for longer."""
        self._kept_s = KEPT_S if watched else KEPT_UNWATCHED_S
        self._watched = watched
        self._known: dict[str, tuple[str, float, int]] = {}
        self._seen: dict[str, int] = {}

    def is_fresh(self, manifest: ReadManifest, now_s: float) -> bool:
        """The same was applied lately and nobody changed it since."""
        if not self._watched and manifest["kind"] == "StatefulSet":
            return False
        path = manifest_path(manifest)
        digest, at_s, version = self._known.get(path, ("", 0.0, 0))
        fresh = 0 <= now_s - at_s < self._kept_s and self._seen.get(path, 0) <= version
        return fresh and digest == _digest(manifest)

    def note(self, manifest: ReadManifest, answer: ReadManifest, now_s: float) -> None:
        """It was applied; `answer`: as the API server has it now."""
        version = child_version(manifest["kind"], answer.get("metadata", {}))
        self._known[manifest_path(manifest)] = (_digest(manifest), now_s, version)

    def saw(self, path: str, version: int) -> bool:
        """A watch reports a child; whether that is a change that is not ours."""
        self._seen[path] = version
        return version > self._known.get(path, ("", 0.0, 0))[2]

    def lost(self, path: str) -> None:
        """A watch reports that a child is gone."""
        self._seen.pop(path, None)
        self._known.pop(path, None)


def _digest(manifest: ReadManifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
