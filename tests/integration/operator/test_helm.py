"""`helm install`, `upgrade`, `rollback`, `uninstall` themselves, on a real API server without nodes."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.operator.kube_api import KubeApi
from tests.unit.charts.rendering import CHART, tool

pytestmark = pytest.mark.slow
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def helm(kubeconfig: Path, namespace: str, *words: str) -> str:
    """What it says. AssertionError when it refuses."""
    command = [tool("helm"), *words, "--kubeconfig", str(kubeconfig), "--namespace", namespace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled_and_the_definitions_stay(
    kubeconfig: Path, kube: KubeApi, namespace: str
) -> None:
    # The other tests' definitions are there already, and belong to nobody.
    said = helm(kubeconfig, namespace, "install", "quire", str(CHART), "--take-ownership")
    assert f'endpoints: ["quire-etcd.{namespace}.svc:2379"]' in said and "secretName: quire-etcd-client" in said
    assert "The metadata is not backed up" in said
    sets, deployments = (f"/apis/apps/v1/namespaces/{namespace}/{kind}" for kind in ("statefulsets", "deployments"))
    etcd = kube.get(f"{sets}/quire-etcd").expect()
    assert etcd["spec"]["replicas"] == 3
    for name in ("bookies.quire.dev", "managedledgers.quire.dev"):
        labels = kube.get(f"{CRDS}/{name}").expect()["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"

    backup = "etcd.backup.enabled=true,etcd.backup.to=s3://bucket/folder"
    helm(kubeconfig, namespace, "upgrade", "quire", str(CHART), "--set", f"images.tag=v9,{backup}")
    changed = kube.get(f"{deployments}/quire-operator").expect()["spec"]["template"]["spec"]["containers"][0]
    assert changed["image"] == "quire-operator:v9" and "--bookie-image=quire-bookie:v9" in changed["args"]
    after = kube.get(f"{sets}/quire-etcd").expect()
    assert after["spec"]["template"] == etcd["spec"]["template"], "an upgrade of Quire restarts no etcd"
    assert kube.get(f"/apis/batch/v1/namespaces/{namespace}/cronjobs/quire-etcd-backup").ok

    helm(kubeconfig, namespace, "rollback", "quire", "1")
    assert not kube.get(f"/apis/batch/v1/namespaces/{namespace}/cronjobs/quire-etcd-backup").ok

    helm(kubeconfig, namespace, "uninstall", "quire")
    assert not kube.get(f"{deployments}/quire-operator").ok
    for name in ("bookies.quire.dev", "managedledgers.quire.dev"):
        assert kube.get(f"{CRDS}/{name}").ok
    # The same release finds its own definitions again.
    helm(kubeconfig, namespace, "install", "quire", str(CHART))
    helm(kubeconfig, namespace, "uninstall", "quire")
