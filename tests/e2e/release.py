"""The chart on the cluster: installs, tests and uninstalls it with helm, as a user does."""

import json
import os
import subprocess

from tests.e2e import manifests
from tests.e2e.kube import Cluster

CHART = manifests.ROOT / "charts" / "quire"
PATIENCE = "300s"
TIMEOUT_S = 400


def helm(cluster: Cluster, *words: str, stdin: str = "") -> str:
    """Run helm and return its output. AssertionError with its error if it fails."""
    place = ["--kubeconfig", str(cluster.api.kubeconfig), "--namespace", cluster.namespace]
    done = subprocess.run(
        ["helm", *words, *place], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"helm {words[0]}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


def install(cluster: Cluster, **changes: manifests.Manifest) -> None:
    """Install operator, definitions and etcd and wait for them, or upgrade an existing release to changed values."""
    labels = [node["metadata"]["labels"] for node in cluster.items("v1", "Node")]
    zones = {str(one[manifests.ZONE]) for one in labels if manifests.ZONE in one}
    values = manifests.chart_values(zones, _api_server(cluster))
    for part, more in changes.items():
        values[part] = values.get(part, {}) | more
    words = ["upgrade", "--install", manifests.RELEASE, str(CHART), "--values", "-", "--wait", "--timeout", PATIENCE]
    # The definitions of an uninstalled release remain, with the name of that release.
    helm(cluster, *words, "--take-ownership", stdin=json.dumps(values))
    if os.environ.get("QUIRE_E2E_CODE"):
        cluster.apply(manifests.operator_with_code())
        kubectl(cluster, "rollout", "status", f"deployment/{manifests.OPERATOR}", f"--timeout={PATIENCE}")


def _api_server(cluster: Cluster) -> list[str]:
    """Return the API server's addresses, from which its proxy connects to pods."""
    slices = cluster.within("default").items(
        "discovery.k8s.io/v1", "EndpointSlice", "kubernetes.io/service-name=kubernetes"
    )
    return [address for one in slices for endpoint in one["endpoints"] for address in endpoint["addresses"]]


def uninstall(cluster: Cluster) -> None:
    """Uninstall the release if it exists."""
    helm(cluster, "uninstall", manifests.RELEASE, "--ignore-not-found")


def kubectl(cluster: Cluster, *words: str, stdin: str = "") -> str:
    """Run kubectl and return its output. AssertionError with its error if it fails."""
    place = ["--kubeconfig", str(cluster.api.kubeconfig), "--namespace", cluster.namespace]
    done = subprocess.run(
        ["kubectl", *place, *words], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"kubectl {' '.join(words[:4])}: {done.stderr.strip()}\n{done.stdout[-2000:]}"
    return done.stdout
