"""A ManagedLedger from its resource to a namespace: a real API server, etcd, bookie and broker; only pods are ours.

Nothing runs pods here, so the test starts the processes that they would run, and makes the pod's object.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.reconcile import reconcile_managed_ledger
from tests.integration.operator.declared_stack import make_broker_pod
from tests.integration.operator.kube_api import KubeApi
from tests.support.etcd_server import EtcdServer
from tests.support.kube_resources import bookie, managed_ledger
from tests.support.ports import free_port
from tests.support.quire_pods import HOST, quire, start_of_a_bookie, start_of_a_broker, until_well

pytestmark = pytest.mark.slow
NOW_S = 1_900_000_000.0
TOPICS: list[dict[str, Any]] = [
    {"name": "placed", "partitions": 2, "cursors": [{"name": "billing"}, {"name": "audit"}]},
    {"name": "plain", "cursors": [{"name": "tail", "initialPosition": "Latest"}]},
]
ONE = {"ensemble": 1, "writeQuorum": 1, "ackQuorum": 1}


class Stack:
    """A pool of one bookie and a broker, as processes, and passes over the ManagedLedger that they are of."""

    def __init__(self, api: KubeApi, kube: Kube, session: aiohttp.ClientSession, namespace: str) -> None:
        self.api = api
        self.session = session
        self.namespace = namespace
        self.http_port = free_port()
        self.path = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/managedledgers/orders"
        self._kube = kube
        self._brokers = BrokerRest(session, self.http_port)

    async def passes(self, count: int) -> float | None:
        """The last one's requeue."""
        found: float | None = None
        for _ in range(count):
            found = await reconcile_managed_ledger(
                self._kube, self._brokers, self.namespace, "orders", default_image="quire-broker:1", now_s=NOW_S
            )
        return found

    def declare(self, kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Make a resource."""
        path = f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/{kind}"
        return self.api.create(path, manifest).expect()

    def resource(self) -> dict[str, Any]:
        """As it is now."""
        return self.api.get(self.path).expect()

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """What a person asks the broker."""
        url = f"http://{HOST}:{self.http_port}{path}"
        async with self.session.request(method, url, json=body) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json(content_type=None)


@pytest.fixture
async def stack(
    kubeconfig: Path, kube: KubeApi, namespace: str, etcd_server: EtcdServer, tmp_path: Path
) -> AsyncIterator[Stack]:
    pool = bookie(replicas=1, metadata={"endpoints": [etcd_server.endpoint]})
    wanted = managed_ledger(
        topics=TOPICS,
        replication=ONE,
        retention={"time": "90m", "size": "1Gi", "ttl": "1h"},
        backlogQuota={"size": "1Gi", "policy": "ConsumerBacklogEviction"},
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await Kube.open(str(kubeconfig)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        found = Stack(kube, client, session, namespace)
        found.declare("bookies", pool)
        declared = found.declare("managedledgers", wanted)
        bookie_http = free_port()
        resources = Bookie.model_validate(pool), ManagedLedger.model_validate(declared)
        await stack.enter_async_context(quire(start_of_a_bookie(resources[0], tmp_path, bookie_http)))
        await until_well(session, bookie_http)
        await stack.enter_async_context(quire(start_of_a_broker(resources[1], resources[0], tmp_path, found.http_port)))
        await until_well(session, found.http_port)
        yield found


def conditions(resource: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["status"] for one in resource["status"]["conditions"]}


async def test_a_namespace_comes_to_be_as_declared_and_goes_with_its_resource(stack: Stack) -> None:
    assert await stack.passes(1) == 0, "the finalizer first"
    await stack.passes(1)
    assert stack.resource()["status"]["state"] == "Creating"
    assert stack.api.get(f"/apis/apps/v1/namespaces/{stack.namespace}/statefulsets/orders-broker").ok
    make_broker_pod(stack.api, stack.namespace)
    await stack.passes(2)
    found = stack.resource()
    assert found["status"]["state"] == "Open", found["status"]
    assert found["status"]["topicCount"] == 2
    assert [row["slowestCursor"]["name"] for row in found["status"]["topics"]] == ["billing", "tail"]
    assert found["status"]["brokers"] == [{"pod": "orders-broker-0", "ready": True, "topics": 2}]
    assert {row["owner"] for row in found["status"]["topics"]} == {"orders-broker-0"}
    isolation = await stack.rest("GET", "/admin/v2/clusters/quire/namespaceIsolationPolicies")
    assert isolation["shop~orders"]["namespaces"] == ["shop/orders"]
    assert conditions(found) == {
        **dict.fromkeys(("CursorsHealthy", "PolicyApplied", "Ready", "Writable"), "True"),
        **dict.fromkeys(("Degraded", "PodsBlocked", "RolledBack", "Stalled", "WriteRejected"), "False"),
        "FullyReplicated": "Unknown",
        "Reconciling": "True",  # no controller reports that it has observed the StatefulSet
    }
    policies = await stack.rest("GET", "/admin/v2/namespaces/shop/orders")
    assert policies["retention_policies"] == {"retentionTimeInMinutes": 90, "retentionSizeInMB": 1024}
    assert policies["message_ttl_in_seconds"] == 3600
    quota = {"limitSize": 2**30, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    assert policies["backlog_quota_map"] == {"destination_storage": quota, "message_age": quota}
    names = await stack.rest("GET", "/admin/v2/persistent/shop/orders")
    assert names == [
        f"persistent://shop/orders/{name}" for name in ("placed-partition-0", "placed-partition-1", "plain")
    ]
    assert await stack.passes(1) == 60, "nothing is left to do"

    access = [{"role": "keeper", "actions": ["Admin"]}]
    assert stack.api.merge(stack.path, {"spec": {"access": access}}).ok
    await stack.passes(2)
    assert await stack.rest("GET", "/admin/quire/namespaces/shop/orders/admins") == ["keeper"]
    assert await stack.passes(1) == 60, "nothing is left to do"

    await stack.rest("DELETE", "/admin/v2/persistent/shop/orders/plain/subscription/tail")
    assert stack.api.merge(stack.path, {"spec": {"topics": [TOPICS[0] | {"partitions": 3}, TOPICS[1]]}}).ok
    await stack.passes(3)
    assert conditions(stack.resource())["CursorsHealthy"] == "True"
    assert (await stack.rest("GET", "/admin/v2/persistent/shop/orders/placed/partitions"))["partitions"] == 3
    assert await stack.rest("GET", "/admin/v2/persistent/shop/orders/placed-partition-2/subscriptions") == [
        *("audit", "billing"),
    ]

    stack.api.merge(stack.path, {"spec": {"deletionPolicy": "Delete"}}).expect()
    stack.api.call("DELETE", stack.path).expect()
    await stack.passes(2)
    assert stack.api.get(stack.path).status == 404
    assert await stack.rest("GET", "/admin/v2/namespaces/shop") == []
    assert await stack.rest("GET", "/admin/v2/clusters/quire/namespaceIsolationPolicies") == {}


async def test_the_load_of_a_broker_recommends_a_number_of_brokers(stack: Stack) -> None:
    make_broker_pod(stack.api, stack.namespace)
    async with asyncio.timeout(60):
        while stack.resource().get("status", {}).get("brokerLoad") is None:
            await stack.passes(1)
            await asyncio.sleep(0.2)
    found = stack.resource()["status"]["brokerLoad"]
    assert (found["recommended"], found["replicas"]) in ((1, 1), (2, 1)), "it is busy with its start, or idle"
    assert 0 <= found["usagePercent"] <= 110 and "brokers.targetUsage is 60" in found["message"]
