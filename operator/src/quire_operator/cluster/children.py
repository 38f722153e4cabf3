"""Applies children of both resources. Failures of monitoring children never block the others."""

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
    """Apply a child unless the same was applied recently and not changed since. Raises KubeError, UnreachableError.

    A refused PodMonitor (missing permissions, another version of the kind) is logged and retried later.
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
        _log.warning("%s was refused, continuing without it: %s", manifest_path(manifest), error)
        answer = {}
    applied.note(manifest, answer, now_s)


async def delete_monitor(kube: Kube, applied: Applied, namespace: str, name: str, uid: str) -> None:
    """Delete a PodMonitor of ours. Raises UnreachableError.

    A refusal (missing permissions) is logged, and the next reconciliation retries.
    """
    path = object_path(MONITORING_VERSION, "PodMonitor", namespace, name)
    try:
        await delete_child(kube, applied, path, uid)
    except KubeError as error:
        _log.warning("%s could not be deleted, continuing: %s", path, error)


async def delete_child(kube: Kube, applied: Applied, path: str, uid: str) -> None:
    """Delete an object of ours. Raises KubeError, UnreachableError."""
    applied.lost(path)
    await kube.delete(path, uid)
