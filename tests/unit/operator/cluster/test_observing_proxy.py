"""Reads of proxies: none without any, their leftovers once they are no longer declared, their token."""

import base64
from typing import Any

import pytest

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.cluster.observing_proxy import lacks_proxy_token, observe_proxy, unwanted_of_proxy
from quire_operator.plan.actions import DeleteChild
from tests.support.kube_resources import changed, managed_ledger

HEAD = {"metadata.namespace": "ns", "metadata.uid": "u-1"}
FORMER = {"status.proxy": {"serviceUrl": "pulsar://orders-proxy.ns.svc:6650"}}
SECURED = {"authentication": {"tokenKeySecret": "tokens"}}
DEPLOYMENT = "/apis/apps/v1/namespaces/ns/deployments/orders-proxy"
SERVICE = "/api/v1/namespaces/ns/services/orders-proxy"
PODS = "/api/v1/namespaces/ns/pods"


class FakeKube:
    """Objects and lists by path; records the paths."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.asked: list[str] = []

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        return self.objects.get(path)

    async def list(self, path: str, selector: str = "") -> list[Any]:
        self.asked.append(f"{path}?{selector}")
        found: list[Any] = self.objects.get(path, [])
        return found


def kube_of(objects: dict[str, Any]) -> Any:
    return FakeKube(objects)


def resource(changes: dict[str, Any] | None = None, **spec: Any) -> ManagedLedger:
    return ManagedLedger.model_validate(changed(managed_ledger(**spec), HEAD | (changes or {})))


def owned(name: str, owner: str = "u-1") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u of {name}", "ownerReferences": [{"uid": owner}]}}


async def test_nothing_is_read_without_proxies() -> None:
    kube, found = kube_of({}), resource()
    assert await observe_proxy(kube, found) is None
    assert await unwanted_of_proxy(kube, found, pod_monitors=True) == ()
    assert not await lacks_proxy_token(kube, found)
    assert kube.asked == []


async def test_the_pods_are_read_only_while_some_are_not_ready() -> None:
    status = {"readyReplicas": 2, "observedGeneration": 1}
    kube = kube_of({DEPLOYMENT: {"metadata": {"generation": 1}, "status": status}})
    found = await observe_proxy(kube, resource(proxy={}))
    assert found is not None and found.ready == 2
    assert kube.asked == [DEPLOYMENT]
    assert await observe_proxy(kube, resource(proxy={"replicas": 3})) is not None
    assert kube.asked[-1].startswith(f"{PODS}?")


async def test_only_objects_of_this_resource_are_deleted() -> None:
    kube = kube_of({DEPLOYMENT: owned("orders-proxy"), SERVICE: owned("orders-proxy", "another")})
    wanted = (DeleteChild("apps/v1", "Deployment", "orders-proxy", "u of orders-proxy"),)
    assert await unwanted_of_proxy(kube, resource(FORMER), pod_monitors=True) == wanted
    assert any("podmonitors" in path for path in kube.asked)
    assert await unwanted_of_proxy(kube, resource(FORMER, proxy={}), pod_monitors=False) == ()


@pytest.mark.parametrize(("token", "lacking"), [(None, True), ("", True), (" ", True), ("t", False)])
async def test_proxies_need_a_token_where_brokers_require_tokens(token: str | None, lacking: bool) -> None:
    data = {} if token is None else {"proxy.token": base64.b64encode(token.encode()).decode()}
    kube = kube_of({"/api/v1/namespaces/ns/secrets/tokens": {"data": data}})
    assert await lacks_proxy_token(kube, resource(proxy={}, brokers=SECURED)) == lacking
    assert not await lacks_proxy_token(kube, resource(proxy={}))
