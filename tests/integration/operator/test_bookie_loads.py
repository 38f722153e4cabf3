"""Figures of real bookies against a real API server: a slow disk is found and replaced, a busy pool gets a bookie.

The bookies run in this process on simulated disks, of which one may be slow, and talk over real ports.
The test acts as the controller of StatefulSets. Time of the operator is a number; the window of the bookies is short.
"""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_bookie.admin.listening import listen
from quire_bookie.admin.web import BookieWeb
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.recovery import start_auto_recovery
from quire_bookie.settings.recovery import RecoverySettings
from quire_operator.builders.naming import ordinal_of
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.kube import Kube
from quire_operator.reconcile import reconcile_bookie
from tests.integration.operator.kube_api import KubeApi
from tests.integration.operator.test_pods import LABELS
from tests.integration.operator.test_reconcile import condition, path
from tests.sim.disk import SimDisk
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.bookie_world import SETTINGS, BookieWorld
from tests.support.kube_resources import bookie
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SLOW, REPLICAS, SLOW_S = 1, 4, 0.3
PASSES_MAX = 300


def host(pod: str) -> str:
    """An address of this machine for each pod."""
    return f"127.0.0.{11 + ordinal_of(pod)}"


@dataclass
class Pods:
    """Acts as the controller of the StatefulSet, and as the machines: each pod is a bookie in this process."""

    kube: KubeApi
    namespace: str
    port: int
    undo: AsyncExitStack
    metadata: SimMetadata = field(default_factory=lambda: SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    running: dict[str, tuple[str, BookieWorld, BookieWeb]] = field(default_factory=dict)
    """Uid, bookie and admin server by pod."""
    latencies_s: dict[str, float] = field(default_factory=dict)
    """Of the disks of new pods."""

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def control(self) -> None:
        """Create missing pods and end deleted ones."""
        sets = f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/pool-bookie"
        there = self.kube.get(sets)
        if not there.ok:
            return
        generation = there.body["metadata"]["generation"]
        seen = {"observedGeneration": generation, "replicas": there.body["spec"]["replicas"], "updateRevision": "r"}
        self.kube.merge(f"{sets}/status", {"status": seen}).expect()
        for ordinal in range(there.body["spec"]["replicas"]):
            pod = f"pool-bookie-{ordinal}"
            found = self.kube.get(f"{self._pods}/{pod}")
            uid = found.body["metadata"]["uid"] if found.ok else None
            if pod in self.running and self.running[pod][0] != uid:
                await self._end(pod)
            if uid is None:
                await self._start(pod)

    async def _start(self, pod: str) -> None:
        labels = LABELS | {"controller-revision-hash": "r"}
        spec = {"containers": [{"name": "quire", "image": "q"}], "nodeName": f"n-{pod}", "schedulerName": "none"}
        made = {"metadata": {"name": pod, "labels": labels}, "spec": spec | {"automountServiceAccountToken": False}}
        uid = self.kube.create(self._pods, made).expect()["metadata"]["uid"]
        ready = [{"type": "Ready", "status": "True"}]
        self.kube.merge(f"{self._pods}/{pod}/status", {"status": {"podIP": host(pod), "conditions": ready}}).expect()
        world = BookieWorld(SimDisk(latency_s=self.latencies_s.pop(pod, 0.0)), self.metadata, SETTINGS)
        world.with_settings(listen=host(pod), advertise=host(pod), http_port=self.port)
        running = await world.start()
        assert world.session is not None
        web = BookieWeb(world.session, world.disk, {}, clock=SystemClock(), chance=SystemChance())
        await web.open(listen(host(pod), self.port))
        web.serve(running)
        self.running[pod] = (uid, world, web)

    async def _end(self, pod: str) -> None:
        _, world, web = self.running.pop(pod)
        await web.close()
        await world.stop()

    async def close(self) -> None:
        """End all bookies."""
        for pod in list(self.running):
            await self._end(pod)


@pytest.fixture
async def pods(kube: KubeApi, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    monkeypatch.setattr("quire_operator.cluster.observing.bookie_host", lambda _, pod: host(pod))
    monkeypatch.setattr("quire_bookie.admin.load_window.SPAN_S", 0.2)
    monkeypatch.setattr("quire_bookie.recovery.drainage.DRAIN_TICK_S", 0.3)
    async with AsyncExitStack() as undo:
        pods = Pods(kube, namespace, free_port(), undo)
        undo.push_async_callback(pods.close)
        yield pods


@dataclass
class Operator:
    """Passes over the pool, a minute apart, while a client writes ledgers."""

    kube: Kube
    http: BookieHttp
    pods: Pods
    client: LedgerClient | None = None
    now_s: float = 1_900_000_000.0
    written: dict[LedgerId, int] = field(default_factory=dict)

    async def minute(self) -> dict[str, Any]:
        """Write a ledger, reconcile twice with a load in between, and return the resource."""
        self.now_s += 61
        for _ in range(2):
            await self._write()
            await reconcile_bookie(
                self.kube, self.http, self.pods.namespace, "pool", default_image="q", now_s=self.now_s
            )
            await self.pods.control()
        return self.pods.kube.get(f"{path(self.pods.namespace)}/pool").expect()

    async def _write(self) -> None:
        if self.client is None:
            return
        writer = await self.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for number in range(20):
            await writer.append(b"%d" % number)
        await writer.close()
        self.written[writer.ledger_id] = 20

    async def until(self, what: str, done: Any) -> dict[str, Any]:
        """Pass until the condition on the resource holds; AssertionError with its status if it never does."""
        for _ in range(PASSES_MAX):
            pool = await self.minute()
            if done(pool):
                return pool
        raise AssertionError(f"never {what}: {pool['status']}")


async def test_a_bookie_with_a_slow_disk_is_reported_then_copied_and_replaced(
    kubeconfig: Path, kube: KubeApi, namespace: str, pods: Pods
) -> None:
    slow = f"pool-bookie-{SLOW}"
    pods.latencies_s[slow] = SLOW_S
    rules = {"windows": 3, "minAdds": 5}
    kube.create(path(namespace), bookie(replicas=REPLICAS, slowBookies=rules)).expect()
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session, AsyncExitStack() as undo:
        operator = Operator(client, BookieHttp(session, pods.port), pods)
        await operator.until("started", lambda pool: pool["status"].get("writable") == REPLICAS)
        metadata = SimMetadataStore(pods.metadata)
        recovery = await start_auto_recovery(
            RecoverySettings(), metadata=metadata, clock=SystemClock(), chance=SystemChance(), name="ar"
        )
        undo.push_async_callback(recovery.stop)
        operator.client = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
        undo.push_async_callback(operator.client.close)

        pool = await operator.until("reported", lambda pool: condition(pool, "SlowBookie")["status"] == "True")
        (row,) = pool["status"]["slowBookies"]
        old = row["id"]
        assert (row["pod"], row["slow"]) == (slow, True) and row["peers"] >= 2, row
        assert row["journalMicros"] >= SLOW_S * 500_000 > 2 * row["peersJournalMicros"], row
        assert condition(pool, "Ready")["status"] == "True" and "operation" not in pool["status"]
        message = condition(pool, "SlowBookie")["message"]
        assert f"{slow} ({old})" in message and "not replaced: slowBookies.action is Report" in message
        events = kube.get(f"/api/v1/namespaces/{namespace}/events").expect()["items"]
        assert [one["message"] for one in events if one["reason"] == "SlowBookie"] == [message.partition("; not")[0]]

        kube.merge(f"{path(namespace)}/pool", {"spec": {"slowBookies": {"action": "Replace"}}}).expect()
        pool = await operator.until("begun", lambda pool: pool["status"].get("operation"))
        writes, operator.client = operator.client, None
        operation = pool["status"]["operation"]
        assert (operation["type"], operation["pod"], operation["avoidNode"]) == ("Replace", slow, f"n-{slow}")

        await operator.minute()
        template = kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").expect()["spec"][
            "template"
        ]
        (preferred,) = template["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred["preference"]["matchFields"][0]["values"] == [f"n-{slow}"]

        pool = await operator.until(
            "replaced", lambda pool: "operation" not in pool["status"] and pool["status"]["writable"] == REPLICAS
        )
        ids = {row["pod"]: row["id"] for row in pool["status"]["bookies"]}
        assert ids[slow] != old and pool["status"]["slowBookies"] == []
        assert condition(pool, "SlowBookie")["status"] == "False"
        assert condition(pool, "FullyReplicated")["status"] == "True"
        for ledger, entries in operator.written.items():
            async with writes.open_ledger(ledger, recover=False) as reader:
                found = await reader.read(EntryId(0), EntryId(entries - 1))
                assert [bytes(one.payload) for one in found] == [b"%d" % number for number in range(entries)]


async def test_a_busy_pool_gets_another_bookie_and_says_why(
    kubeconfig: Path, kube: KubeApi, namespace: str, pods: Pods
) -> None:
    auto = {"min": 3, "max": 4, "load": {"adds": 1, "bytes": "1Gi"}, "scaleUpWindow": "1m"}
    kube.create(path(namespace), bookie(replicas=3, autoscale=auto)).expect()
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session, AsyncExitStack() as undo:
        operator = Operator(client, BookieHttp(session, pods.port), pods)
        await operator.until("started", lambda pool: pool["status"].get("writable") == 3)
        metadata = SimMetadataStore(pods.metadata)
        operator.client = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
        undo.push_async_callback(operator.client.close)

        pool = await operator.until("recommended", lambda pool: pool["status"]["autoscale"].get("moreSince"))
        found = pool["status"]["autoscale"]
        figures = {one["name"]: one for one in found["figures"]}
        assert found["desired"] == 4 and set(figures) == {"space", "adds", "bytes"}
        assert figures["adds"]["current"] > figures["adds"]["target"] == 1
        assert figures["bytes"]["desired"] == 1, "the largest wins"

        pool = await operator.until("scaled", lambda pool: pool["status"].get("writable") == 4)
        assert pool["spec"]["replicas"] == 4
        events = kube.get(f"/api/v1/namespaces/{namespace}/events").expect()["items"]
        (event,) = [one["message"] for one in events if one["reason"] == "ScaledUp"]
        assert event.startswith("4 bookies: ") and "adds per second and bookie, the target is 1" in event
