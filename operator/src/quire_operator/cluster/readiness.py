"""Reads from pods whether they are ready. Pure."""

from quire_operator.builders import Manifest


def readiness(pod: Manifest) -> Manifest:
    """Return the condition Ready of a pod; empty if it has none."""
    conditions = pod.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Ready"), {})


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod is ready."""
    return readiness(pod).get("status") == "True"


def is_started(pod: Manifest) -> bool:
    """Return whether the process of a pod was ready at least once since it started."""
    return any(one.get("started") for one in pod.get("status", {}).get("containerStatuses", ()))
