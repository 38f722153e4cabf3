"""Finds why a StatefulSet cannot create its pods: only events report this. Reads only.

A quota, a webhook or Pod Security may reject a pod that the StatefulSet's controller creates. The StatefulSet itself
was accepted, and its status has no reason.
"""

from quire_operator.builders import Manifest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Cache
from quire_operator.cluster.paths import collection
from quire_operator.errors import KubeError
from quire_operator.plan.rejections import MESSAGE_MAX

_ENDS = {"FailedCreate": True, "SuccessfulCreate": False}
"""Reasons of the controller's events, and whether each reports a rejection."""


async def rejected_pod(
    kube: Kube, cache: Cache, namespace: str, there: Manifest, pods: int, now_s: float
) -> str | None:
    """Return why the StatefulSet's missing pods are not created; None if none is missing. Raises UnreachableError.

    The events are read only while pods are missing, at most once a minute.
    """
    if pods >= there["spec"]["replicas"]:
        return None
    try:
        events = await cache.list(kube, collection("v1", "Event", namespace), now_s)
    except KubeError:
        return None  # without permission to read them, the cause stays unknown
    return last_rejection(events, there["metadata"]["uid"])


def last_rejection(events: list[Manifest], uid: str) -> str | None:
    """Return the message of the latest event about pods of the StatefulSet, unless it reports a success."""
    ours = [one for one in events if one.get("involvedObject", {}).get("uid") == uid and one.get("reason") in _ENDS]
    latest = max(ours, key=_time, default=None)
    return None if latest is None or not _ENDS[latest["reason"]] else str(latest.get("message", ""))[:MESSAGE_MAX]


def _time(event: Manifest) -> tuple[str, bool]:
    """Return when it happened last, in whole seconds. In the same second a success is later: it ends the retries."""
    at = event.get("lastTimestamp") or event.get("eventTime") or event.get("metadata", {}).get("creationTimestamp")
    return str(at)[:19], not _ENDS[event["reason"]]
