"""Addresses of brokers outside the cluster, on a real API server: it allocates node ports, and we the others."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_broker.ownership.listeners import Listener, parse_listeners
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.reconcile import reconcile_managed_ledger
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import bookie, managed_ledger
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
NOW_S = 1_900_000_000.0


@dataclasses.dataclass
class Outside:
    """The ManagedLedger `orders`, whose brokers do not run, and its reconciliations."""

    api: KubeApi
    kube: Kube
    rest: BrokerRest
    namespace: str

    def path(self, api: str, plural: str, name: str = "") -> str:
        return f"/{api}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    @property
    def ledger(self) -> str:
        return self.path("apis/quire.dev/v1alpha1", "managedledgers", "orders")

    def change(self, **brokers: Any) -> None:
        self.api.merge(self.ledger, {"spec": {"brokers": brokers}}).expect()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(self.ledger).expect()["status"]
        return found

    def service(self, name: str) -> dict[str, Any] | None:
        found = self.api.get(self.path("api/v1", "services", name))
        return found.expect() if found.ok else None

    def balance(self, name: str, address: str) -> None:
        """Give a Service an address, as the controller of a load balancer does."""
        ingress = {"loadBalancer": {"ingress": [{"ip": address}]}}
        self.api.merge(self.path("api/v1", "services", name) + "/status", {"status": ingress}).expect()

    def listeners(self) -> dict[str, tuple[Listener, ...]]:
        found = self.api.get(self.path("api/v1", "configmaps", "orders-external")).expect()
        return {name: parse_listeners(text) for name, text in found.get("data", {}).items()}

    def template(self) -> dict[str, Any]:
        found = self.api.get(self.path("apis/apps/v1", "statefulsets", "orders-broker")).expect()
        template: dict[str, Any] = found["spec"]["template"]["spec"]
        return template

    async def passes(self, count: int) -> None:
        for _ in range(count):
            await reconcile_managed_ledger(
                self.kube, self.rest, self.namespace, "orders", default_image="quire-broker:1", now_s=NOW_S
            )


@pytest.fixture
async def outside(kubeconfig: Path, kube: KubeApi, namespace: str) -> AsyncIterator[Outside]:
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session:
        found = Outside(kube, client, BrokerRest(session, free_port()), namespace)
        kube.create(found.path("apis/quire.dev/v1alpha1", "bookies"), bookie()).expect()
        declared = managed_ledger(
            namespace=f"shop/{namespace}", brokers={"replicas": 2, "external": {"type": "LoadBalancer"}}
        )
        kube.create(found.path("apis/quire.dev/v1alpha1", "managedledgers"), declared).expect()
        yield found


async def test_brokers_read_the_addresses_of_their_load_balancers(outside: Outside) -> None:
    await outside.passes(3)
    assert outside.listeners() == {} and not outside.status()["external"]
    assert "external" not in {one["name"] for one in outside.template()["volumes"]}
    outside.balance("orders-broker-0", "192.0.2.1")
    outside.balance("orders-broker-1", "192.0.2.2")
    await outside.passes(2)
    assert outside.listeners() == {
        "orders-broker-0": (Listener("external", "pulsar://192.0.2.1:6650"),),
        "orders-broker-1": (Listener("external", "pulsar://192.0.2.2:6650"),),
    }
    (volume,) = [one for one in outside.template()["volumes"] if one["name"] == "external"]
    assert volume["configMap"]["name"] == "orders-external"
    assert [row["host"] for row in outside.status()["external"]] == ["192.0.2.1", "192.0.2.2"]


async def test_node_ports_are_those_that_the_api_server_allocated(outside: Outside) -> None:
    outside.change(external={"type": "NodePort"})
    await outside.passes(3)
    service = outside.service("orders-broker-1")
    assert service is not None
    port = service["spec"]["ports"][0]["nodePort"]
    text = outside.api.get(outside.path("api/v1", "configmaps", "orders-external")).expect()["data"]["orders-broker-1"]
    assert text == f"external:pulsar://$(NODE_IP):{port}"


async def test_services_go_with_their_brokers_and_with_the_field(outside: Outside) -> None:
    await outside.passes(3)
    outside.balance("orders-broker-0", "192.0.2.1")
    outside.balance("orders-broker-1", "192.0.2.2")
    await outside.passes(2)
    outside.change(replicas=1)
    await outside.passes(3)
    assert outside.service("orders-broker-1") is None, "its pod does not exist, so it left without a drain"
    assert outside.service("orders-broker-0") is not None
    outside.change(external=None)
    await outside.passes(3)
    assert outside.service("orders-broker-0") is None and not outside.status()["external"]
    assert outside.service("orders-broker") is not None, "that of all brokers stays"
