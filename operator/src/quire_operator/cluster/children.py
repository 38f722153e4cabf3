"""Applies children of both resources. What only observes must not keep back what serves."""

import logging

from quire_operator.builders import ReadManifest
from quire_operator.builders.naming import MONITORING_VERSION
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import manifest_path, object_path
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


async def delete_monitor(kube: Kube, applied: Applied, namespace: str, name: str, uid: str) -> None:
    """A PodMonitor of ours goes. UnreachableError.

    When that is refused (no rights to delete the kind), it is logged and asked for again in the next pass.
    """
    path = object_path(MONITORING_VERSION, "PodMonitor", namespace, name)
    applied.lost(path)
    try:
        await kube.delete(path, uid)
    except KubeError as error:
        _log.warning("%s could not be deleted, the rest goes on beside it: %s", path, error)
