"""`kopf run -m quire_operator.development` against a real API server, by kopf's own runner."""

from pathlib import Path

import kopf
import pytest
from kopf.testing import KopfRunner

from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import BOOKIE, MANAGED_LEDGER
from tests.support.polling import until

pytestmark = pytest.mark.slow
TIMEOUT_S = 60.0
FINALIZER_OF_KOPF = kopf.OperatorSettings().persistence.finalizer
OF_ANOTHER_OPERATOR = {
    "metadata": {
        "name": "others",
        "labels": {"app.kubernetes.io/managed-by": "quire-operator"},
        "finalizers": [FINALIZER_OF_KOPF],
    }
}
"""An object that this operator watches, with the finalizer of another kopf operator."""


def test_kopf_run_reconciles_and_leaves_nothing_of_its_own_in_a_resource(
    kubeconfig: Path, kube: KubeApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("QUIRE_BOOKIE_IMAGE", "quire-bookie:1")
    monkeypatch.setenv("QUIRE_BROKER_IMAGE", "quire-broker:1")
    monkeypatch.setenv("QUIRE_OPERATOR_NAMESPACE", namespace)
    resources = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    pool, stateful = f"{resources}/bookies/pool", f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie"
    others = f"/api/v1/namespaces/{namespace}/configmaps"
    kube.create(others, OF_ANOTHER_OPERATOR).expect()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/quire-operator"
    with KopfRunner(["run", "-m", "quire_operator.development", "-n", namespace], timeout=30) as runner:
        kube.create(f"{resources}/bookies", BOOKIE).expect()
        kube.create(f"{resources}/managedledgers", MANAGED_LEDGER).expect()
        until(lambda: kube.get(stateful).ok, lambda: kube.get(pool).body, timeout_s=TIMEOUT_S)
        until(
            lambda: "status" in kube.get(pool).body and "status" in kube.get(f"{resources}/managedledgers/orders").body,
            lambda: kube.get(pool).body,
            timeout_s=TIMEOUT_S,
        )
        for path in (pool, f"{resources}/managedledgers/orders", stateful):
            metadata = kube.get(path).expect()["metadata"]
            assert {one["manager"] for one in metadata["managedFields"]} <= {"quire-operator", "Python-urllib"}
            assert "kopf" not in str(metadata.get("annotations", {}))
        assert kube.get(pool).body["metadata"]["finalizers"] == ["quire.dev/bookie"]
        assert kube.get(f"{others}/others").expect()["metadata"]["finalizers"] == [FINALIZER_OF_KOPF]
        kube.call("DELETE", f"{resources}/managedledgers/orders").expect()
        kube.call("DELETE", pool).expect()
        until(lambda: kube.get(pool).status == 404, lambda: kube.get(pool).body, timeout_s=TIMEOUT_S)
        assert kube.get(lease).expect()["spec"]["holderIdentity"]
    assert runner.exit_code == 0
    assert not kube.get(lease).expect()["spec"].get("holderIdentity")


@pytest.mark.filterwarnings("ignore:coroutine 'authenticator' was never awaited:RuntimeWarning")
def test_kopf_run_names_the_variables_that_it_lacks(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv("QUIRE_BOOKIE_IMAGE", raising=False)
    monkeypatch.setenv("QUIRE_BROKER_IMAGE", "quire-broker:1")
    runner = KopfRunner(["run", "-m", "quire_operator.development", "-A"], timeout=30, reraise=False)
    with runner:
        runner.future.result(timeout=TIMEOUT_S)
    assert runner.exit_code != 0
    assert "QUIRE_BOOKIE_IMAGE must name an image" in runner.output
