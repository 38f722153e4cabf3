"""A ManagedLedger with a real bookie and broker, and reconciliations of the resources that declare their objects.

Nothing runs pods here, so the test starts the processes that they would run, and makes the pod's object.
"""

import base64
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jwt

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.naming import BROKER, labels
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Memory
from quire_operator.reconcile import reconcile_managed_ledger
from quire_operator.reconcile_declared import RECONCILES, DeclaredContext
from quire_operator.running.handlers import RESOURCES
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import bookie, managed_ledger, of_orders
from tests.support.ports import free_port
from tests.support.quire_pods import HOST, quire, start_of_a_bookie, start_of_a_broker, until_well, with_settings

ONE = {"ensemble": 1, "writeQuorum": 1, "ackQuorum": 1}
PASSES_MAX = 12


def make_broker_pod(api: KubeApi, namespace: str, ordinal: int = 0, host: str = HOST) -> None:
    """Make a broker's pod of the ManagedLedger `orders` as the StatefulSet's controller and a kubelet would."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    containers = [{"name": "quire", "image": "quire-broker:1"}]
    metadata = {"name": f"orders-broker-{ordinal}", "labels": labels("orders", BROKER)}
    api.create(path, {"metadata": metadata, "spec": {"containers": containers}}).expect()
    ready = [{"type": "Ready", "status": "True"}]
    status = {"podIP": host, "podIPs": [{"ip": host}], "phase": "Running", "conditions": ready}
    api.merge(f"{path}/orders-broker-{ordinal}/status", {"status": status}).expect()


class DeclaredStack:
    """The ManagedLedger `orders` of the topics' namespace `shop/orders`, with processes; only tests move its time."""

    def __init__(self, api: KubeApi, kube: Kube, session: aiohttp.ClientSession, namespace: str) -> None:
        self.api, self.kube, self.session, self.namespace = api, kube, session, namespace
        self.http_port, self.port = free_port(), free_port()
        self.now_s = 1_900_000_000.0
        self.token: str | None = None
        self._rest = BrokerRest(session, self.http_port)
        self.context = DeclaredContext(kube, self._rest, Memory())

    def path(self, kind: str, name: str = "") -> str:
        """Of a resource, or of the collection."""
        root = f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/{RESOURCES[kind]}"
        return f"{root}/{name}" if name else root

    def declare(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        """Make a resource that refers to the ManagedLedger."""
        return self.api.create(self.path(kind), of_orders(kind, name, **spec)).expect()

    def change(self, kind: str, name: str, **spec: Any) -> None:
        """Change fields of a spec."""
        self.api.merge(self.path(kind, name), {"spec": spec}).expect()

    def remove(self, kind: str, name: str) -> None:
        """Delete a resource."""
        self.api.call("DELETE", self.path(kind, name)).expect()

    def exists(self, kind: str, name: str) -> bool:
        """Whether the resource still exists."""
        return self.api.get(self.path(kind, name)).ok

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Its status."""
        found: dict[str, Any] = self.api.get(self.path(kind, name)).expect()["status"]
        return found

    def condition(self, kind: str, name: str, about: str = "Ready") -> tuple[str, str]:
        """Status and reason of one condition."""
        found = {one["type"]: one for one in self.status(kind, name)["conditions"]}[about]
        return found["status"], found["reason"]

    def message(self, kind: str, name: str) -> str:
        """The message of Ready."""
        return str(next(one for one in self.status(kind, name)["conditions"] if one["type"] == "Ready")["message"])

    def events(self, name: str) -> list[str]:
        """The reasons of the events of a resource."""
        found = self.api.get(f"/api/v1/namespaces/{self.namespace}/events").expect()["items"]
        return [one["reason"] for one in found if one["involvedObject"]["name"] == name]

    async def settle(self, kind: str, name: str) -> None:
        """Reconcile until nothing is left to do at once. The clock moves past earlier reads."""
        for _ in range(PASSES_MAX):
            self.now_s += 60.0
            again_s = await RECONCILES[kind](self.context, self.namespace, name, self.now_s)
            if again_s is None or again_s >= 10:
                return
        raise AssertionError(f"{kind} {name} does not settle: {self.status(kind, name)}")

    async def ledger_passes(self, count: int) -> None:
        """Reconcile the ManagedLedger."""
        for _ in range(count):
            await reconcile_managed_ledger(
                self.kube, self._rest, self.namespace, "orders", default_image="quire-broker:1", now_s=self.now_s
            )

    def make_keys(self, folder: Path) -> None:
        """The Secret with the key of the brokers and the operator's token, and the key as a file."""
        key = os.urandom(32)
        (folder / "token.key").write_bytes(key)
        self.token = jwt.encode({"sub": "quire-operator"}, key, "HS256")
        data = {"token.key": key, "operator.token": self.token.encode()}
        texts = {name: base64.b64encode(value).decode() for name, value in data.items()}
        made = {"metadata": {"name": "keys"}, "data": texts}
        self.api.create(f"/api/v1/namespaces/{self.namespace}/secrets", made).expect()

    def secret(self, name: str) -> dict[str, bytes]:
        """The values of a Secret."""
        found = self.api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}").expect()
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    async def rest(self, method: str, path: str, body: object = None, host: str = HOST) -> Any:
        """Call the REST API of a broker as an administrator does."""
        url = f"http://{host}:{self.http_port}{path}"
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        async with self.session.request(method, url, json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json(content_type=None)


@asynccontextmanager
async def running_stack(
    kubeconfig: Path, api: KubeApi, namespace: str, etcd: str, folder: Path, *, secured: bool = False
) -> AsyncIterator[DeclaredStack]:
    """A stack whose ManagedLedger has a ready broker. `secured`: clients must have a token."""
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(await Kube.open(str(kubeconfig)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        found = DeclaredStack(api, kube, session, namespace)
        pool = bookie(replicas=1, metadata={"endpoints": [etcd]})
        api.create(found.path("Bookie"), pool).expect()
        listener = {"name": "test", "host": HOST, "port": found.port}
        brokers: dict[str, Any] = {"advertisedListeners": [listener]}
        if secured:
            found.make_keys(folder)
            brokers["authentication"] = {"tokenKeySecret": "keys"}
        wanted = managed_ledger(replication=ONE, brokers=brokers)
        declared = api.create(found.path("ManagedLedger"), wanted).expect()
        resources = Bookie.model_validate(pool), ManagedLedger.model_validate(declared)
        bookie_http = free_port()
        await stack.enter_async_context(quire(start_of_a_bookie(resources[0], folder, bookie_http)))
        await until_well(session, bookie_http)
        words = start_of_a_broker(resources[1], resources[0], folder, found.http_port, found.port)
        words = with_settings(words, {"bindAddress": HOST})  # others may listen beside it
        if secured:  # the file that the pod mounts is here
            words = with_settings(words, {"tokenSecretKey": f"file://{folder / 'token.key'}"})
        await stack.enter_async_context(quire(words))
        await until_well(session, found.http_port)
        await found.ledger_passes(2)
        make_broker_pod(api, namespace)
        await found.ledger_passes(2)
        yield found
