"""What the operator does with pods and claims on a real API server: zones, and a bookie whose volumes are lost."""

from typing import Any

import pytest

from tests.integration.operator.kube_api import KubeApi
from tests.integration.operator.test_reconcile import Operator, condition, operator, path
from tests.support.kube_resources import BOOKIE

__all__ = ["operator"]
pytestmark = pytest.mark.slow
LABELS = {"app.kubernetes.io/name": "quire-bookie", "app.kubernetes.io/instance": "pool"}
POD = "pool-bookie-0"


def make_node(kube: KubeApi, name: str, zone: str) -> None:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    kube.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}}).expect()


def make_pod(kube: KubeApi, namespace: str, **spec: Any) -> str:
    main = {"name": "quire", "image": "quire:1"}
    found = {"containers": [main], "automountServiceAccountToken": False} | spec
    made = {"metadata": {"name": POD, "labels": LABELS}, "spec": found}
    kube.create(f"/api/v1/namespaces/{namespace}/pods", made).expect()
    return f"/api/v1/namespaces/{namespace}/pods/{POD}"


def make_claim(kube: KubeApi, namespace: str, host: str) -> tuple[str, str]:
    """A claim of the pod that is bound to a local volume of a host; paths of both."""
    volume, size = f"pv-{namespace}", {"storage": "100Gi"}
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    kube.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": volume},
            "spec": {
                **shared,
                "capacity": size,
                "local": {"path": "/disk"},
                "persistentVolumeReclaimPolicy": "Delete",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}},
            },
        },
    ).expect()
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    name = f"ledgers0-{POD}"
    spec = {**shared, "resources": {"requests": size}, "volumeName": volume}
    kube.create(claims, {"metadata": {"name": name, "labels": LABELS}, "spec": spec}).expect()
    return f"{claims}/{name}", f"/api/v1/persistentvolumes/{volume}"


async def test_a_pod_is_told_the_zone_of_its_node(operator: Operator, kube: KubeApi, namespace: str) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    make_node(kube, f"n-{namespace}", "eu-1a")
    pod = make_pod(kube, namespace, nodeName=f"n-{namespace}")
    await operator.passes(2)
    assert kube.get(pod).expect()["metadata"]["annotations"]["quire.dev/zone"] == "eu-1a"
    await operator.passes(1)
    row = kube.get(f"{path(namespace)}/pool").expect()["status"]["bookies"][0]
    assert (row["node"], row["zone"]) == (f"n-{namespace}", "eu-1a")


async def test_a_lost_volume_is_given_up_on_a_persons_word_and_kept(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    pod = make_pod(kube, namespace)
    claim, volume = make_claim(kube, namespace, f"gone-{namespace}")
    await operator.passes(3)
    pool = kube.get(f"{path(namespace)}/pool").expect()
    assert condition(pool, "ReplaceBlocked")["reason"] == "WaitingForItsReturn"
    row = pool["status"]["bookies"][0]
    assert row["state"] == "Lost"
    assert f"gone-{namespace}" in row["reason"]
    kube.merge(pod, {"metadata": {"annotations": {"quire.dev/replace": "yes"}}}).expect()
    await operator.passes(1)
    operation = kube.get(f"{path(namespace)}/pool").expect()["status"]["operation"]
    assert (operation["type"], operation["step"]) == ("Replace", "Unbinding")
    assert len(operation["uids"]) == 2
    await operator.passes(1)
    gone = kube.get(claim)
    assert not gone.ok or "deletionTimestamp" in gone.body["metadata"], "what protects it goes with the pod"
    assert kube.get(volume).expect()["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    ended = kube.get(pod)
    assert not ended.ok or "deletionTimestamp" in ended.body["metadata"]
