"""The cluster of the end-to-end tests: applies, reads and awaits objects; reaches pods through the API server's proxy.

Uses plain paths and JSON as tests/integration/operator does, and knows nothing of Quire.
"""

import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.integration.operator.kube_api import Answer, KubeApi

Manifest = dict[str, Any]
CLUSTER_WIDE = frozenset(
    (
        *("Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding"),
        *("CustomResourceDefinition", "APIService"),
    )
)
NOT_FOUND = 404
T = TypeVar("T")
POLL_S = 0.5


def collection(api_version: str, kind: str, namespace: str | None) -> str:
    """Return the path of all objects of a kind."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    place = "" if namespace is None or kind in CLUSTER_WIDE else f"/namespaces/{namespace}"
    plural = kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"
    return f"{root}{place}/{plural}"


class WaitedTooLongError(AssertionError):
    """A condition did not become true in time; the text has the last state."""


def until(what: str, look: Callable[[], T | None], timeout_s: float, poll_s: float = POLL_S) -> T:
    """Return the first truthy result of `look`; errors are retried. WaitedTooLongError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    found: T | Exception | None = None
    while True:
        try:
            found = look()
        except WaitedTooLongError:
            raise
        except (OSError, AssertionError) as error:
            found = error
        if found and not isinstance(found, Exception):
            return found
        if time.monotonic() > deadline_s:
            raise WaitedTooLongError(f"not within {timeout_s:.0f} s: {what}; last: {found!r}")
        time.sleep(poll_s)


class Cluster:
    """An API server and one namespace of it."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.api = KubeApi(kubeconfig)
        self.namespace = namespace

    def within(self, namespace: str) -> "Cluster":
        """Return the same cluster with another namespace."""
        return Cluster(self.api.kubeconfig, namespace)

    def path(self, api_version: str, kind: str, name: str) -> str:
        """Return the path of an object."""
        return f"{collection(api_version, kind, self.namespace)}/{name}"

    def apply(self, *manifests: Manifest) -> None:
        """Apply on the server side; manifests without a namespace go into this one."""
        for manifest in manifests:
            metadata = manifest["metadata"]
            place = self.within(metadata["namespace"]) if "namespace" in metadata else self
            path = place.path(manifest["apiVersion"], manifest["kind"], metadata["name"])
            self.api.apply(path, manifest).expect()

    def get(self, api_version: str, kind: str, name: str) -> Manifest | None:
        """Return an object, or None."""
        answer = self.api.get(self.path(api_version, kind, name))
        return None if answer.status == NOT_FOUND else answer.expect()

    def items(self, api_version: str, kind: str, selector: str = "", field: str = "") -> list[Manifest]:
        """Return objects of this namespace."""
        query = {key: value for key, value in (("labelSelector", selector), ("fieldSelector", field)) if value}
        path = collection(api_version, kind, self.namespace)
        found: list[Manifest] = self.api.call("GET", path, query=query).expect()["items"]
        return found

    def pods(self, selector: str = "") -> list[Manifest]:
        """Return pods in the order of their names."""
        return sorted(self.items("v1", "Pod", selector), key=lambda pod: str(pod["metadata"]["name"]))

    def merge(self, api_version: str, kind: str, name: str, patch: Manifest) -> None:
        """Apply a merge patch, as `kubectl patch --type merge` does."""
        self.api.merge(self.path(api_version, kind, name), patch).expect()

    def delete(self, api_version: str, kind: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object; a missing one is not an error. With `grace_s` 0 the API server removes a pod at once."""
        body = {"propagationPolicy": "Background"} | ({} if grace_s is None else {"gracePeriodSeconds": grace_s})
        answer = self.api.call("DELETE", self.path(api_version, kind, name), body)
        assert answer.ok or answer.status == NOT_FOUND, answer.message

    def ask_pod(self, pod: str, port: int, path: str, **query: str) -> Answer:
        """Send a GET to a port of a pod, through the API server."""
        proxy = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy{path}"
        return self.api.call("GET", proxy, query=query)

    def logs(self, pod: str, container: str = "", previous: bool = False) -> str:
        """Return the log of a container."""
        query = ({"container": container} if container else {}) | ({"previous": "true"} if previous else {})
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        return self.api.text(path + ("?" + urllib.parse.urlencode(query) if query else ""))


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod's condition is ready."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def condition(resource: Manifest, kind: str) -> Manifest | None:
    """Return a condition of the status, or None."""
    found: list[Manifest] = resource.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), None)


def holds(resource: Manifest, kind: str) -> bool:
    """Return whether a condition is True for the current generation."""
    one = condition(resource, kind)
    return one is not None and one["status"] == "True"
