"""Changes of the brokers on a real API server with Kubernetes' own StatefulSet controller; only kubelets are ours."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from quire_operator.builders.naming import BROKER, selector_text
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.reconcile import reconcile_managed_ledger
from tests.integration.operator.conftest import api_server, with_crds
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import bookie, managed_ledger
from tests.support.polling import until
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
NOW_S = 1_900_000_000.0
PASS_S = 5.0
PASSES_MAX = 200
NAMESPACE = "default"
BAD = "quire:bad"
WORDS = "quire: metadataStoreUrl: etcd-9:2379 is not reachable"


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """An API server whose StatefulSets make pods."""
    with api_server(tmp_path_factory.mktemp("controlled"), controllers=True) as kubeconfig:
        yield with_crds(KubeApi(kubeconfig))


class Brokers:
    """A ManagedLedger, its reconciliations, and the kubelets of its pods."""

    def __init__(self, api: KubeApi, kube: Kube, session: aiohttp.ClientSession, name: str) -> None:
        self.api = api
        self.name = name
        self.now_s = NOW_S
        self.path = f"/apis/quire.dev/v1alpha1/namespaces/{NAMESPACE}/managedledgers/{name}"
        self._kube = kube
        self._rest = BrokerRest(session, free_port())

    def declare(self, replicas: int) -> None:
        collection = self.path.rpartition("/")[0]
        made = managed_ledger(brokers={"replicas": replicas}, namespace=f"shop/{self.name}")
        self.api.create(collection, made | {"metadata": {"name": self.name}}).expect()

    def change(self, **brokers: Any) -> None:
        self.api.merge(self.path, {"spec": {"brokers": brokers}}).expect()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(self.path).expect().get("status", {})
        return found

    def pods(self) -> list[dict[str, Any]]:
        query = {"labelSelector": selector_text(self.name, BROKER)}
        found = self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods", query=query).expect()["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.pods()]

    def config_maps(self) -> list[str]:
        query = {"labelSelector": selector_text(self.name, BROKER)}
        found = self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps", query=query).expect()["items"]
        return [one["metadata"]["name"] for one in found]

    def stateful_set(self) -> dict[str, Any]:
        return self.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{self.name}-broker").expect()

    def _kubelet(self) -> None:
        """Report each pod as ready; one with the bad image as failing, with its last words."""
        for pod in self.pods():
            main = pod["spec"]["containers"][0]
            is_bad = main["image"] == BAD
            ended = {"terminated": {"exitCode": 1, "message": WORDS, "reason": "Error"}}
            waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}}
            state = {"name": main["name"], "image": main["image"], "imageID": "", "restartCount": 0}
            state |= {"ready": not is_bad, "started": not is_bad, "state": waits if is_bad else {"running": {}}}
            state |= {"lastState": ended} if is_bad else {}
            ready = {"type": "Ready", "status": "False" if is_bad else "True"}
            ready["lastTransitionTime"] = pod["metadata"]["creationTimestamp"]
            status = {"phase": "Running", "containerStatuses": [state], "conditions": [ready]}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
            self.api.merge(path, {"status": status})  # a pod that is gone meanwhile has no kubelet

    def _is_controlled(self) -> bool:
        """Whether the controller has done what it can until pods change."""
        there = self.stateful_set()
        status, spec = there.get("status", {}), there["spec"]
        pods = self.pods()
        if status.get("observedGeneration") != there["metadata"]["generation"] or len(pods) != spec["replicas"]:
            return False
        for pod in pods[: spec["updateStrategy"]["rollingUpdate"].get("partition", 0) or None : -1]:
            if pod["metadata"]["labels"]["controller-revision-hash"] != status["updateRevision"]:
                return False
            if not any(one["status"] == "True" for one in pod.get("status", {}).get("conditions", ())):
                break
        return not any("deletionTimestamp" in pod["metadata"] for pod in pods)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Reconcile, let Kubernetes work, and pass time, until a state is reached."""
        for _ in range(PASSES_MAX):
            await reconcile_managed_ledger(
                self._kube, self._rest, NAMESPACE, self.name, default_image="quire:1", now_s=self.now_s
            )
            self.now_s += PASS_S
            if not self.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{self.name}-broker").ok:
                continue
            await asyncio.to_thread(until, self._is_controlled, self.stateful_set)
            self._kubelet()
            if reached():
                return
        raise AssertionError(f"not reached: {self.status()}, {self.images()}")

    def step(self) -> str | None:
        found: str | None = self.status().get("rollout", {}).get("step")
        return found


@pytest.fixture
async def brokers(controlled: KubeApi) -> AsyncIterator[Callable[[str], Brokers]]:
    async with await Kube.open(str(controlled.kubeconfig)) as kube, aiohttp.ClientSession() as session:
        pools = f"/apis/quire.dev/v1alpha1/namespaces/{NAMESPACE}/bookies"
        if not controlled.get(f"{pools}/pool").ok:
            controlled.create(pools, bookie()).expect()
        yield lambda name: Brokers(controlled, kube, session, name)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_change_goes_to_one_pod_first_and_back_if_it_fails(
    brokers: Callable[[str], Brokers], replicas: int
) -> None:
    world = brokers(f"orders{replicas}")
    world.declare(replicas)
    await world.until(lambda: world.step() == "Done")
    first = world.stateful_set()["status"]["updateRevision"]
    assert world.images() == ["quire:1"] * replicas

    world.change(image=BAD)
    await world.until(lambda: BAD in world.images())
    assert world.images() == ["quire:1"] * (replicas - 1) + [BAD]
    assert len(world.config_maps()) == 2
    await world.until(lambda: world.step() == "RolledBack")
    assert world.images() == ["quire:1"] * (replicas - 1) + [BAD], "never more than one"
    await world.until(lambda: len(world.config_maps()) == 1)
    assert world.images() == ["quire:1"] * replicas
    assert world.stateful_set()["status"]["updateRevision"] == first, "the pods are exactly the former ones"
    found = {one["type"]: one for one in world.status()["conditions"]}
    assert found["RolledBack"]["status"] == "True" and found["RolledBack"]["reason"] == "CrashLoopBackOff"
    assert (
        f"orders{replicas}-broker-{replicas - 1}: CrashLoopBackOff: metadataStoreUrl" in found["RolledBack"]["message"]
    )
    events = world.api.get(f"/api/v1/namespaces/{NAMESPACE}/events").expect()["items"]
    ours = [one["reason"] for one in events if one["involvedObject"]["name"] == world.name]
    assert (ours.count("RolloutStarted"), ours.count("RolledBack")) == (1, 1)

    world.change(image="quire:2")
    await world.until(lambda: world.step() == "Done")
    assert world.images() == ["quire:2"] * replicas
    assert len(world.config_maps()) == 1
    found = {one["type"]: one["status"] for one in world.status()["conditions"]}
    assert found["RolledBack"] == "False"


async def test_each_pod_keeps_the_settings_of_its_revision(brokers: Callable[[str], Brokers]) -> None:
    world = brokers("settings")
    world.declare(2)
    await world.until(lambda: world.step() == "Done")
    (before,) = world.config_maps()
    world.change(settings={"maxMessageSize": "1000"})
    await world.until(lambda: world.step() == "Settling")
    mounted = [pod["spec"]["volumes"][0]["configMap"]["name"] for pod in world.pods()]
    assert mounted[0] == before and mounted[1] != before
    texts = [
        world.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}").expect()["data"]["quire.toml"]
        for name in mounted
    ]
    assert "maxMessageSize" not in texts[0] and "maxMessageSize" in texts[1]
    await world.until(lambda: world.step() == "Done")
    assert world.config_maps() == [mounted[1]]
