"""Proxies on a real API server with Kubernetes' controllers, and an autoscaler of brokers; only kubelets are ours."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_operator.builders.naming import BROKER, PROXY, selector_text
from quire_operator.builders.proxy import KINDS
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import object_path
from quire_operator.cluster.readiness import is_ready
from quire_operator.reconcile import reconcile_managed_ledger
from tests.integration.operator.conftest import api_server, with_crds
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import bookie, managed_ledger
from tests.support.polling import until
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
NOW_S = 1_900_000_000.0
NAMESPACE = "default"
LEDGER = f"/apis/quire.dev/v1alpha1/namespaces/{NAMESPACE}/managedledgers/orders"
PASSES_MAX = 50
SCALER_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An API server whose Deployments make pods, with the controller of autoscalers."""
    with api_server(tmp_path_factory.mktemp("controlled"), controllers=True) as found:
        yield found


class Proxied:
    """The ManagedLedger `orders` with proxies, its reconciliations, and the kubelets of the proxies."""

    def __init__(self, api: KubeApi, kube: Kube, rest: BrokerRest) -> None:
        self.api = api
        self._kube = kube
        self._rest = rest

    def resource(self) -> dict[str, Any]:
        return self.api.get(LEDGER).expect()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.resource().get("status", {})
        return found

    def proxy_ready(self) -> str | None:
        found = [one["status"] for one in self.status()["conditions"] if one["type"] == "ProxyReady"]
        return found[0] if found else None

    def there(self) -> set[str]:
        """Return the kinds of the proxies' objects that exist."""
        return {
            kind for version, kind in KINDS if self.api.get(object_path(version, kind, NAMESPACE, "orders-proxy")).ok
        }

    def _pods(self) -> list[dict[str, Any]]:
        query = {"labelSelector": selector_text("orders", PROXY)}
        found: list[dict[str, Any]] = self.api.call(
            "GET", f"/api/v1/namespaces/{NAMESPACE}/pods", query=query
        ).expect()["items"]
        return found

    def _is_controlled(self) -> bool:
        """Return whether the controller of the Deployment has done what it can until pods change."""
        found = self.api.get(object_path("apps/v1", "Deployment", NAMESPACE, "orders-proxy"))
        if not found.ok:
            return True
        there, pods = found.body, self._pods()
        status, ready = there.get("status", {}), sum(is_ready(pod) for pod in pods)
        return status.get("observedGeneration") == there["metadata"]["generation"] and (
            len(pods),
            status.get("readyReplicas", 0),
        ) == (there["spec"]["replicas"], ready)

    def _kubelet(self) -> None:
        """Report each pod of a proxy as ready."""
        for pod in self._pods():
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": pod["metadata"]["creationTimestamp"]}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
            self.api.merge(path, {"status": {"phase": "Running", "conditions": [ready]}})

    async def passed(self) -> None:
        """Reconcile once."""
        await reconcile_managed_ledger(
            self._kube, self._rest, NAMESPACE, "orders", default_image="quire-broker:1", now_s=NOW_S
        )

    async def until(self, reached: Callable[[], bool]) -> None:
        """Reconcile, and let Kubernetes work, until a state is reached."""
        for _ in range(PASSES_MAX):
            await self.passed()
            await asyncio.to_thread(until, self._is_controlled, self.status)
            self._kubelet()
            if reached():
                return
        raise AssertionError(f"not reached: {self.status()}")


@pytest.fixture
async def proxied(kubeconfig: Path) -> AsyncIterator[Proxied]:
    api = with_crds(KubeApi(kubeconfig))
    root = f"/apis/quire.dev/v1alpha1/namespaces/{NAMESPACE}"
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session:
        api.apply(f"{root}/bookies/pool", bookie()).expect()
        api.apply(LEDGER, managed_ledger(proxy={"service": {"type": "LoadBalancer"}})).expect()
        yield Proxied(api, client, BrokerRest(session, free_port()))


async def test_proxies_come_as_declared_and_go_with_the_field(proxied: Proxied) -> None:
    await proxied.until(lambda: proxied.status().get("proxy", {}).get("ready") == 2)
    await proxied.passed()
    assert proxied.proxy_ready() == "True"
    assert proxied.there() == {kind for _, kind in KINDS}
    assert proxied.resource()["spec"]["proxy"]["replicas"] == 2, "the default is in the CRD"
    proxied.api.merge(LEDGER, {"spec": {"proxy": None}}).expect()
    await proxied.until(lambda: not proxied.there())
    await proxied.until(lambda: "proxy" not in proxied.status())
    assert proxied.proxy_ready() is None


async def test_a_horizontal_pod_autoscaler_scales_the_brokers(proxied: Proxied) -> None:
    """Without metrics it keeps to its bounds: that alone scales from 1 to its minimum of 2."""
    await proxied.until(lambda: "selector" in proxied.status())
    path = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers/orders"
    target = {"apiVersion": "quire.dev/v1alpha1", "kind": "ManagedLedger", "name": "orders"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
    }
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 4, "metrics": [metric]}
    scaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "orders"}}
    proxied.api.apply(path, scaler | {"spec": spec}).expect()

    def has_scaled() -> bool:
        return bool(proxied.resource()["spec"]["brokers"]["replicas"] == 2)

    await asyncio.to_thread(
        until, has_scaled, lambda: proxied.api.get(path).body.get("status"), timeout_s=SCALER_TIMEOUT_S
    )
    scale = proxied.api.get(f"{LEDGER}/scale").expect()
    assert scale["status"]["selector"] == selector_text("orders", BROKER)
    conditions = {one["type"]: one["status"] for one in proxied.api.get(path).expect()["status"]["conditions"]}
    assert conditions["AbleToScale"] == "True"
