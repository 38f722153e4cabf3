"""What the operator does with pods and claims on a real API server: zones, and a bookie whose volumes are lost."""

from typing import Any

import pytest

from tests.integration.operator.kube_api import KubeApi
from tests.integration.operator.test_reconcile import Operator, condition, operator, path
from tests.support.kube_resources import BOOKIE, changed

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


async def test_larger_volumes_are_requested_and_their_growth_is_reported(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    storage_class = f"grows-{namespace}"
    provisioned = {"provisioner": "quire.dev/test", "allowVolumeExpansion": True}
    kube.create("/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": storage_class}, **provisioned}).expect()
    volumes = {"size": "10Gi", "storageClassName": storage_class}
    pool = changed(BOOKIE, {"spec.replicas": 1, "spec.storage": {"journal": volumes, "ledgers": volumes}})
    kube.create(path(namespace), pool).expect()
    await operator.passes(3)
    make_pod(kube, namespace, nodeName=f"n-{namespace}")
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"

    def report(name: str, **status: Any) -> None:
        kube.merge(f"{claims}/{name}/status", {"status": {"phase": "Bound", **status}}).expect()

    for kind in ("journal0", "ledgers0"):
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "volumeName": f"v-{kind}",
            "resources": {"requests": {"storage": "10Gi"}},
        }
        made = {"metadata": {"name": f"{kind}-{POD}", "labels": LABELS}, "spec": spec}
        kube.create(claims, made).expect()
        report(f"{kind}-{POD}", capacity={"storage": "10Gi"})
    smaller = kube.merge(f"{path(namespace)}/pool", {"spec": {"storage": {"ledgers": {"size": "5Gi"}}}})
    assert not smaller.ok and "sizes only grow" in smaller.message
    kube.merge(f"{path(namespace)}/pool", {"spec": {"storage": {"ledgers": {"size": "20Gi"}}}}).expect()
    await operator.passes(3)
    wanted = kube.get(f"{claims}/ledgers0-{POD}").expect()["spec"]["resources"]["requests"]["storage"]
    assert wanted == "20Gi"

    infeasible = {"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}
    error = {"type": "ControllerResizeError", "status": "True", "message": "no space in the pool"}
    report(f"ledgers0-{POD}", **infeasible, allocatedResources={"storage": "20Gi"}, conditions=[error])
    await operator.passes(2)
    stalled = condition(kube.get(f"{path(namespace)}/pool").expect(), "Stalled")
    assert stalled["reason"] == "VolumesCannotGrow" and "no space in the pool" in stalled["message"]

    report(f"ledgers0-{POD}", capacity={"storage": "20Gi"}, allocatedResourceStatuses=None, conditions=[])
    await operator.passes(4)
    stalled = condition(kube.get(f"{path(namespace)}/pool").expect(), "Stalled")
    assert stalled["status"] == "False"
    stateful = kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").expect()
    assert "deletionTimestamp" in stateful["metadata"], "recreated with the larger template; nothing collects here"
