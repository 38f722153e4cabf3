"""The children of both resources before a real API server: it takes all of them, and the same again changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.auto_recovery import recovery_children
from quire_operator.builders.bookie import BookieFacts, bookie_children
from quire_operator.builders.broker import BrokerFacts
from tests.integration.operator.kube_api import KubeApi
from tests.support.broker_pods import declared_children
from tests.support.kube_resources import BOOKIE, MANAGED_LEDGER, changed

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "kubernetes"
PLURALS = {
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
    "Service": "services",
    "StatefulSet": "statefulsets",
    "Deployment": "deployments",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Bookie": "bookies",
    "ManagedLedger": "managedledgers",
}
EVERYTHING: dict[str, Any] = {
    "spec.storage": {
        "journal": {"size": "1Gi", "volumes": 2, "storageClassName": "nvme"},
        "ledgers": {"size": "2Gi", "volumes": 2, "dirsPerVolume": 2},
        "index": {"size": "1Gi"},
    },
    "spec.metadata.tls": {"secretName": "etcd-tls"},
    "spec.tls": {"secretName": "certs", "clientAuthentication": True, "authorizedRoles": ["broker"]},
    "spec.placement": {"enforce": True, "minZones": 3, "topologyKeys": ["topology.kubernetes.io/zone", "rack"]},
    "spec.resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "spec.podTemplate": {
        "metadata": {"labels": {"team": "logs"}, "annotations": {"a.b/c": "d"}},
        "spec": {
            "tolerations": [{"key": "storage", "operator": "Exists"}],
            "containers": [
                {"name": "quire", "env": [{"name": "TZ", "value": "UTC"}]},
                {"name": "shipper", "image": "shipper:1", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
            ],
        },
    },
}


def path_of(manifest: Manifest, namespace: str) -> str:
    version = manifest["apiVersion"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/{namespace}/{PLURALS[manifest['kind']]}/{manifest['metadata']['name']}"


def made(kube: KubeApi, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """The resource as the API server has it: with defaults and a uid."""
    return kube.apply(path_of(manifest, namespace), manifest).expect()


def apply_twice(kube: KubeApi, namespace: str, children: list[Manifest]) -> None:
    for child in children:
        path = path_of(child, namespace)
        first = kube.apply(path, child, "quire-operator").expect()
        second = kube.apply(path, child, "quire-operator").expect()
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], child["kind"]


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_children_of_a_bookie_are_taken_and_applying_them_again_changes_nothing(
    kube: KubeApi, namespace: str, changes: dict[str, Any]
) -> None:
    resource = Bookie.model_validate(made(kube, namespace, changed(BOOKIE, changes)))
    apply_twice(kube, namespace, bookie_children(resource, BookieFacts(3, "quire:1")))
    apply_twice(kube, namespace, recovery_children(resource, "quire:1", pod_monitors=False))


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_children_of_a_managed_ledger_are_taken_and_applying_them_again_changes_nothing(
    kube: KubeApi, namespace: str, changes: dict[str, Any]
) -> None:
    pool = Bookie.model_validate(made(kube, namespace, changed(BOOKIE, changes)))
    resource = ManagedLedger.model_validate(made(kube, namespace, MANAGED_LEDGER))
    apply_twice(kube, namespace, declared_children(resource, BrokerFacts(pool, "quire:1")))


def test_a_field_that_was_changed_by_hand_is_put_back(kube: KubeApi, namespace: str) -> None:
    resource = Bookie.model_validate(made(kube, namespace, BOOKIE))
    children = bookie_children(resource, BookieFacts(3, "quire:1"))
    apply_twice(kube, namespace, children)
    budget = next(child for child in children if child["kind"] == "PodDisruptionBudget")
    path = path_of(budget, namespace)
    kube.merge(path, {"spec": {"maxUnavailable": 3}, "metadata": {"labels": {"mine": "x"}}}).expect()
    after = kube.apply(path, budget, "quire-operator").expect()
    assert after["spec"]["maxUnavailable"] == 0
    assert after["metadata"]["labels"]["mine"] == "x", "what we say nothing about is left alone"


def test_a_grown_claim_size_is_refused_by_kubernetes_in_a_set_that_is_there(kube: KubeApi, namespace: str) -> None:
    """Why an expansion makes the StatefulSet anew."""
    resource = Bookie.model_validate(made(kube, namespace, BOOKIE))
    for facts, ok in ((BookieFacts(3, "quire:1"), True), (BookieFacts(3, "quire:1", ledger_size="200Gi"), False)):
        child = next(c for c in bookie_children(resource, facts) if c["kind"] == "StatefulSet")
        answer = kube.apply(path_of(child, namespace), child, "quire-operator")
        assert answer.ok is ok
    assert "updates to statefulset spec for fields other than" in answer.message


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_of_the_manual_is_taken(kube: KubeApi, namespace: str, path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        kube.apply(path_of(manifest, namespace), manifest).expect()
