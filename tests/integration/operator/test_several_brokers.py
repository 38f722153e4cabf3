"""Three brokers of a ManagedLedger, and two again: real processes, each on an address of this machine, as its pods.

Their names do not resolve here, so the operator has to reach the owner of each topic by the address of its pod.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from tests.integration.operator.declared_stack import DeclaredStack, make_broker_pod, running_stack
from tests.integration.operator.kube_api import KubeApi
from tests.support.etcd_server import EtcdServer
from tests.support.quire_pods import HOST, quire, start_of_a_broker, until_well, with_settings

pytestmark = pytest.mark.slow
HOSTS = (HOST, "127.0.0.2", "127.0.0.3")
TOPICS = [{"name": f"topic-{number}", "cursors": [{"name": "billing"}]} for number in range(8)]
PASSES_MAX = 60


def outside(ordinal: int) -> str:
    """The address of a broker for clients outside the cluster."""
    return f"192.0.2.{ordinal}:31650"


class Several:
    """The stack with two more brokers."""

    def __init__(self, stack: DeclaredStack) -> None:
        self.stack = stack
        self.path = stack.path("ManagedLedger", "orders")

    def scale(self, replicas: int) -> None:
        """As `kubectl scale` and an autoscaler do."""
        self.stack.api.merge(f"{self.path}/scale", {"spec": {"replicas": replicas}}).expect()

    def status(self) -> dict[str, Any]:
        return self.stack.status("ManagedLedger", "orders")

    def replicas(self) -> int:
        path = f"/apis/apps/v1/namespaces/{self.stack.namespace}/statefulsets/orders-broker"
        return int(self.stack.api.get(path).expect()["spec"]["replicas"])

    async def drain_of(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.stack.rest("GET", "/admin/quire/drain", host=host)
        return found

    async def lookup(self, topic: str, listener: str) -> str:
        """The address of the topic's owner for clients of a listener, as any broker returns it."""
        url = f"http://{HOST}:{self.stack.http_port}/lookup/v2/topic/persistent/shop/orders/{topic}"
        async with self.stack.session.get(url, headers={"X-Pulsar-ListenerName": listener}) as answer:
            return str((await answer.json())["brokerUrl"])

    async def passes(self, done: Any) -> None:
        """Reconcile until a state is reached; each drain is asked for again, as time passes."""
        for _ in range(PASSES_MAX):
            self.stack.now_s += 60.0
            await self.stack.ledger_passes(1)
            if done(self.status()):
                return
        raise AssertionError(f"not reached: {self.status()}")


@pytest.fixture
async def several(
    kubeconfig: Path, kube: KubeApi, namespace: str, etcd_server: EtcdServer, tmp_path: Path
) -> AsyncIterator[Several]:
    async with (
        running_stack(kubeconfig, kube, namespace, etcd_server.endpoint, tmp_path) as stack,
        AsyncExitStack() as processes,
    ):
        pool = Bookie.model_validate(kube.get(stack.path("Bookie", "pool")).expect())
        resource = ManagedLedger.model_validate(kube.get(stack.path("ManagedLedger", "orders")).expect())
        for ordinal, host in enumerate(HOSTS[1:], start=1):
            words = start_of_a_broker(resource, pool, tmp_path, stack.http_port, stack.port, ordinal)
            file = tmp_path / f"listeners-{ordinal}"
            file.write_text(f"external:pulsar://{outside(ordinal)}")
            own = {"bindAddress": host, "advertisedListenersFile": file}
            await processes.enter_async_context(quire(with_settings(words, own)))
            await until_well(stack.session, stack.http_port, host)
            make_broker_pod(kube, namespace, ordinal, host)
        yield Several(stack)


async def test_brokers_share_the_topics_and_the_last_one_hands_its_over(several: Several) -> None:
    stack = several.stack
    several.scale(3)
    stack.change("ManagedLedger", "orders", topics=TOPICS)
    await several.passes(lambda status: status["state"] == "Open" and len(status.get("topics", ())) == len(TOPICS))
    assert several.replicas() == 3 and several.status()["ready"] == 3
    selector = several.status()["selector"]
    assert selector == "app.kubernetes.io/instance=orders,app.kubernetes.io/name=quire-broker"
    assert sum(row["topics"] for row in several.status()["brokers"]) == len(TOPICS)
    assert several.status()["backlog"] == 0, "the backlog of topics of every broker is known"

    away = next(row for row in several.status()["topics"] if row["owner"] == "orders-broker-1")
    assert await several.lookup(away["name"], "external") == f"pulsar://{outside(1)}"

    assert (await several.drain_of(HOSTS[2]))["bundles"] > 0
    several.scale(2)
    await several.passes(lambda status: several.replicas() == 2)
    there = await several.drain_of(HOSTS[2])
    assert there["draining"] and there["bundles"] == 0, "the StatefulSet shrinks when nothing is left in the broker"
    assert "BrokerDrained" in stack.events("orders")
    stack.api.call("DELETE", f"/api/v1/namespaces/{stack.namespace}/pods/orders-broker-2").expect()
    await several.passes(lambda status: status["state"] == "Open" and status["ready"] == 2)
    assert sum(row["topics"] for row in several.status()["brokers"]) == len(TOPICS)
    assert several.status().get("drain") is None
