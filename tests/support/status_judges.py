"""The rules by which other tools judge a resource, as their documentation and sources describe them.

* kstatus (Flux, kpt, `kustomize`): sigs.k8s.io/cli-utils, `pkg/kstatus/status/generic.go` and its README.
* Argo CD: a resource that is being deleted is Progressing; other kinds need a script. The script is that of
  `docs/kubernetes/operations.md`, in the form that Argo CD documents for cert-manager's Certificate.
* `kubectl wait --for=condition=Ready`: the condition counts if its observedGeneration is the current generation.
"""

from collections.abc import Mapping
from typing import Any

Resource = Mapping[str, Any]


def _conditions(resource: Resource) -> list[Mapping[str, Any]]:
    return list((resource.get("status") or {}).get("conditions") or ())


def kstatus(resource: Resource) -> str:
    """Return Terminating, InProgress, Failed or Current. The first of Reconciling and Stalled that is True decides."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != metadata["generation"]:
        return "InProgress"
    for one in _conditions(resource):
        if one["status"] == "True" and one["type"] in ("Reconciling", "Stalled"):
            return "InProgress" if one["type"] == "Reconciling" else "Failed"
    for one in _conditions(resource):
        if one["type"] == "Ready":
            return "Current" if one["status"] == "True" else "InProgress"
    return "Current"


def argo_health(resource: Resource) -> str:
    """Return Healthy, Progressing or Degraded."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp") or status.get("observedGeneration") != metadata["generation"]:
        return "Progressing"
    truths = {one["type"]: one["status"] for one in _conditions(resource)}
    if truths.get("Stalled") == "True":
        return "Degraded"
    if truths.get("Ready") == "True" and truths.get("Reconciling") != "True":
        return "Healthy"
    return "Progressing"


def kubectl_waits_no_more(resource: Resource) -> bool:
    """Return whether `kubectl wait --for=condition=Ready` ends."""
    return any(
        one["type"] == "Ready"
        and one["status"] == "True"
        and one.get("observedGeneration", resource["metadata"]["generation"]) >= resource["metadata"]["generation"]
        for one in _conditions(resource)
    )
