"""Records events on resources, as shown by `kubectl describe`. Writes only."""

from quire_operator.api import API_VERSION
from quire_operator.api.shared import Metadata
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection
from quire_operator.plan.actions import Emit
from quire_operator.plan.operations import rfc3339

MESSAGE_MAX = 1024


async def emit(kube: Kube, kind: str, meta: Metadata, event: Emit, now_s: float) -> None:
    """Record an event on the resource. Raises KubeError, UnreachableError."""
    now = rfc3339(now_s)
    await kube.create(
        collection("v1", "Event", meta.namespace),
        {
            "metadata": {"generateName": f"{meta.name}.", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": kind,
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
            },
            "reason": event.reason,
            "message": event.message[:MESSAGE_MAX],
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": "quire-operator"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        },
    )
