"""Paths of the Kubernetes API for the kinds that the operator uses. Arithmetic on names only."""

from quire_operator.api import API_VERSION
from quire_operator.builders import ReadManifest

_PLURALS = {
    "Bookie": "bookies",
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "Event": "events",
    "Job": "jobs",
    "Lease": "leases",
    "ManagedLedger": "managedledgers",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "Secret": "secrets",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "SparkApplication": "sparkapplications",
    "StatefulSet": "statefulsets",
}


def collection(api_version: str, kind: str, namespace: str | None) -> str:
    """Where objects of a kind are listed and created."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    place = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{root}{place}/{_PLURALS[kind]}"


def object_path(api_version: str, kind: str, namespace: str | None, name: str) -> str:
    """Where one object is."""
    return f"{collection(api_version, kind, namespace)}/{name}"


def manifest_path(manifest: ReadManifest) -> str:
    """Where the object of a manifest is."""
    metadata = manifest["metadata"]
    return object_path(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])


def managed_ledger_path(namespace: str, name: str) -> str:
    """A ManagedLedger."""
    return object_path(API_VERSION, "ManagedLedger", namespace, name)


def bookie_path(namespace: str, name: str) -> str:
    """A Bookie."""
    return object_path(API_VERSION, "Bookie", namespace, name)
