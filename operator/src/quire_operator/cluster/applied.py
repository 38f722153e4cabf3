"""What this process applied lately, so that a pass without changes writes nothing. Forgotten with the process.

A child that somebody changed or deleted by hand is put back when its entry is too old; the StatefulSet, of which every
pass sees the present state, is never passed over.
"""

import hashlib
import json

from quire_operator.builders import ReadManifest
from quire_operator.cluster.paths import manifest_path

KEPT_S = 60.0


class Applied:
    """Digest and time by path; bounded by the number of children."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def is_fresh(self, manifest: ReadManifest, now_s: float) -> bool:
        """The same was applied within `KEPT_S`."""
        digest, at_s = self._known.get(manifest_path(manifest), ("", 0.0))
        return manifest["kind"] != "StatefulSet" and digest == _digest(manifest) and 0 <= now_s - at_s < KEPT_S

    def note(self, manifest: ReadManifest, now_s: float) -> None:
        """It was applied."""
        self._known[manifest_path(manifest)] = (_digest(manifest), now_s)


def _digest(manifest: ReadManifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
