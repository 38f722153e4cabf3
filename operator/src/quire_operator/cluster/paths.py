"""Builds paths of the Kubernetes API for the kinds that the operator uses. Performs no requests.

A name that would lead to another path is refused: names come from resources, statuses and user input.
"""

import re

from quire_operator.api import API_VERSION
from quire_operator.builders import ReadManifest
from quire_operator.errors import OperatorError

_PLAIN = re.compile(r"[A-Za-z0-9:_-](?:[A-Za-z0-9:._-]*[A-Za-z0-9:_-])?")

_PLURALS = {
    "Bookie": "bookies",
    "ClientRole": "clientroles",
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
    "Tenant": "tenants",
    "Topic": "topics",
    "TopicNamespace": "topicnamespaces",
}


def collection(api_version: str, kind: str, namespace: str | None) -> str:
    """Return the path of a kind's collection. OperatorError if the namespace is not a valid name."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    place = f"/namespaces/{plain(namespace)}" if namespace is not None else ""
    return f"{root}{place}/{_PLURALS[kind]}"


def object_path(api_version: str, kind: str, namespace: str | None, name: str) -> str:
    """Return the path of one object. OperatorError if a name is invalid."""
    return f"{collection(api_version, kind, namespace)}/{plain(name)}"


def plain(name: str) -> str:
    """Return the name if it is a single path component. OperatorError otherwise."""
    if _PLAIN.fullmatch(name) is None:
        raise OperatorError(f"{name!r} is not a name of a Kubernetes object: use letters, digits, `-` and `.`")
    return name


def manifest_path(manifest: ReadManifest) -> str:
    """Return the path of a manifest's object."""
    metadata = manifest["metadata"]
    return object_path(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])


def managed_ledger_path(namespace: str, name: str) -> str:
    """Return the path of a ManagedLedger."""
    return object_path(API_VERSION, "ManagedLedger", namespace, name)


def bookie_path(namespace: str, name: str) -> str:
    """Return the path of a Bookie."""
    return object_path(API_VERSION, "Bookie", namespace, name)
