"""Applies children of both resources. What only observes must not keep back what serves."""

import logging

from quire_operator.builders import ReadManifest
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import manifest_path
from quire_operator.errors import ConflictError, KubeError

_log = logging.getLogger("quire.operator")
OBSERVING = frozenset({"PodMonitor"})


async def apply_child(kube: Kube, applied: Applied, manifest: ReadManifest, now_s: float) -> None:
    """Unless the same was applied lately and nobody changed it since. KubeError, UnreachableError.

    A PodMonitor that is refused (no rights to the kind, another version of it) is logged and tried again later.
    """
    if applied.is_fresh(manifest, now_s):
        return
    try:
        answer = await kube.apply(manifest)
    except ConflictError:
        raise
    except KubeError as error:
        if manifest["kind"] not in OBSERVING:
            raise
        _log.warning("%s was refused, the rest goes on without it: %s", manifest_path(manifest), error)
        answer = {}
    applied.note(manifest, answer, now_s)
