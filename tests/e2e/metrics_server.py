"""A metrics-server on the cluster, which reports CPU and memory of pods to autoscalers."""

import os

from tests.e2e.kube import Cluster, Manifest, condition, until

NAME, PORT = "metrics-server", 10250
API = "v1beta1.metrics.k8s.io"
READY_S = 180.0
RBAC = "rbac.authorization.k8s.io"


def image() -> str:
    """Return the image's name as images/build.sh tags it."""
    return "quire-e2e-metrics-server:" + os.environ.get("METRICS_SERVER_VERSION", "v0.8.0")


def start(cluster: Cluster) -> None:
    """Start it in the namespace of the cluster, and wait until the API server reaches it."""
    cluster.apply(*_objects(cluster.namespace), *_bindings(cluster.namespace))

    def is_available() -> bool:
        found = condition(cluster.get("apiregistration.k8s.io/v1", "APIService", API) or {}, "Available")
        return found is not None and found["status"] == "True"

    until("the API server reaches the metrics-server", is_available, READY_S)


def stop(cluster: Cluster) -> None:
    """Delete everything that is not deleted with the namespace."""
    cluster.delete("apiregistration.k8s.io/v1", "APIService", API)
    cluster.delete("apps/v1", "Deployment", NAME)
    cluster.within("kube-system").delete(f"{RBAC}/v1", "RoleBinding", NAME)
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        cluster.delete(f"{RBAC}/v1", kind, NAME)
    cluster.delete(f"{RBAC}/v1", "ClusterRoleBinding", f"{NAME}-delegator")


def _objects(namespace: str) -> list[Manifest]:
    """Return the pod with its Service, and the API of which it is the server."""
    arguments = [
        *(f"--secure-port={PORT}", "--cert-dir=/tmp", "--metric-resolution=15s"),
        # Kubelets have certificates that they signed themselves.
        *("--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP"),
    ]
    container = {
        "name": NAME,
        "image": image(),
        "args": arguments,
        "ports": [{"name": "https", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "https", "scheme": "HTTPS"}, "periodSeconds": 5},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    labels = {"app": NAME}
    pod = {"serviceAccountName": NAME, "containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}
    served = {"service": {"name": NAME, "namespace": namespace}, "group": "metrics.k8s.io", "version": "v1beta1"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"selector": labels, "ports": [{"name": "https", "port": 443, "targetPort": "https"}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API},
            "spec": served | {"insecureSkipTLSVerify": True, "groupPriorityMinimum": 100, "versionPriority": 100},
        },
    ]


def _bindings(namespace: str) -> list[Manifest]:
    """Return its permissions: to read metrics of nodes, and to check the clients of its API."""
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    head = {"apiVersion": f"{RBAC}/v1"}
    role = {"apiGroup": RBAC, "kind": "ClusterRole"}
    reader = {"apiGroup": RBAC, "kind": "Role", "name": "extension-apiserver-authentication-reader"}
    return [
        head | {"kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        head
        | {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role | {"name": NAME},
            "subjects": [subject],
        },
        head
        | {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{NAME}-delegator"},
            "roleRef": role | {"name": "system:auth-delegator"},
            "subjects": [subject],
        },
        head
        | {
            "kind": "RoleBinding",
            "metadata": {"name": NAME, "namespace": "kube-system"},
            "roleRef": reader,
            "subjects": [subject],
        },
    ]
