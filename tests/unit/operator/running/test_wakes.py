"""Keys that an event enqueues, and events that are the operator's own writes."""

from typing import Any

import pytest

from quire_operator.builders.naming import BOOKIE, BROKER, JOBS, PROXY, labels
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.running.wakes import Matters, Wakes
from quire_operator.running.work_queue import Key, WorkQueue
from tests.support.kube_resources import BOOKIE as POOL
from tests.support.kube_resources import MANAGED_LEDGER, changed, declared

POOL_KEY, LEDGER_KEY = Key("Bookie", "ns", "pool"), Key("ManagedLedger", "ns", "orders")


class Queue(WorkQueue):
    """Records added keys."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[Key] = []

    async def add(self, key: Key, after_s: float = 0.0) -> None:
        self.added.append(key)

    def taken(self) -> list[Key]:
        found, self.added = sorted(set(self.added)), []
        return found


class World:
    """Events of resources as kopf's handlers pass them on: with what the former event of the resource returned."""

    def __init__(self) -> None:
        self.queue, self.index = Queue(), dict[str, dict[tuple[str, str], list[dict[str, Any]]]]()
        resources = Resources(self.index)
        self.memory = Memory(Applied(watched=True), resources)
        self.wakes = Wakes(self.queue, self.memory, resources)
        self._matters: dict[str, Matters] = {}

    async def resource(self, kind: str, item: dict[str, Any]) -> list[Key]:
        """Return what an event of a resource enqueues."""
        self.index.setdefault(kind, {})[item["metadata"]["namespace"], item["metadata"]["name"]] = [item]
        self._matters[kind] = await self.wakes.resource(kind, item, self._matters.get(kind))
        return self.queue.taken()

    async def child(self, version: str, kind: str, item: dict[str, Any], *, gone: bool = False) -> list[Key]:
        """Return what an event of a child enqueues."""
        await self.wakes.child(version, kind, item, gone=gone)
        return self.queue.taken()


@pytest.fixture
def world() -> World:
    return World()


def resource(manifest: dict[str, Any], version: int, *, generation: int = 1, **changes: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "metadata.namespace": "ns",
        "metadata.uid": f"uid of {manifest['metadata']['name']}",
        "metadata.resourceVersion": str(version),
        "metadata.generation": generation,
    }
    return changed(manifest, metadata | changes)


def with_status(**status: Any) -> dict[str, Any]:
    """Return changes of a status."""
    return {f"status.{name}": value for name, value in status.items()}


async def test_a_changed_spec_enqueues_its_resource_and_dependents(world: World) -> None:
    assert await world.resource("Bookie", resource(POOL, 1)) == [POOL_KEY]
    assert await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 2)) == [POOL_KEY, LEDGER_KEY]
    assert await world.resource("Bookie", resource(POOL, 3, generation=2)) == [POOL_KEY, LEDGER_KEY]
    await world.wakes.resource_gone("ManagedLedger", resource(MANAGED_LEDGER, 4))
    assert world.queue.taken() == [POOL_KEY], "it may be deleted now"


async def test_a_changed_status_enqueues_only_affected_resources(world: World) -> None:
    await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 1))
    await world.resource("Bookie", resource(POOL, 2))
    assert await world.resource("Bookie", resource(POOL, 3, **with_status(phase="Creating"))) == []
    assert await world.resource("Bookie", resource(POOL, 4, **with_status(writable=3))) == [LEDGER_KEY]
    assert await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 5, **with_status(state="Open"))) == []


async def test_ready_brokers_enqueue_what_refers_to_them(world: World) -> None:
    tenant = Key("Tenant", "ns", "shop")
    await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 1))
    assert await world.resource("Tenant", declared("Tenant", "shop")) == [tenant]
    assert tenant in await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 2, **with_status(ready=1)))
    other = changed(declared("Tenant", "shop"), {"spec.managedLedgerRef.name": "other"})
    assert await world.resource("Tenant", changed(other, {"metadata.generation": 2})) == [tenant]
    assert tenant not in await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 3, **with_status(ready=0)))


async def test_under_replication_is_read_from_both_kinds(world: World) -> None:
    await world.resource("Bookie", resource(POOL, 1))
    await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 2, **with_status(underReplicated=3)))
    lacking = resource(POOL, 3, **with_status(underReplicated={"count": 3}))
    assert await world.resource("Bookie", lacking) == [LEDGER_KEY]


async def test_a_removed_finalizer_enqueues_the_resource(world: World) -> None:
    await world.resource("Bookie", changed(resource(POOL, 1), {"metadata.finalizers": ["quire.dev/bookie"]}))
    assert await world.resource("Bookie", resource(POOL, 2)) == [POOL_KEY]


def child(part: str, owner: str, version: int) -> dict[str, Any]:
    metadata = {"name": f"{owner}-{part}", "namespace": "ns", "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": labels(owner, part)}}


async def test_a_changed_child_enqueues_its_owner_unless_the_change_is_ours(world: World) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "orders-broker", "namespace": "ns"}}
    world.memory.applied.note(manifest, child(BROKER, "orders", 7), 1.0)
    assert await world.child("v1", "ConfigMap", child(BROKER, "orders", 7)) == []
    assert await world.child("v1", "ConfigMap", child(BROKER, "orders", 8)) == [LEDGER_KEY]
    assert not world.memory.applied.is_fresh(manifest, 1.0)
    assert await world.child("v1", "ConfigMap", child(BROKER, "orders", 9), gone=True) == [LEDGER_KEY]


async def test_every_change_of_a_pod_enqueues_its_pool(world: World) -> None:
    for _ in range(2):
        assert await world.child("v1", "Pod", child(BOOKIE, "pool", 1)) == [POOL_KEY]
    assert await world.child("v1", "Pod", {"metadata": {"name": "others", "namespace": "ns"}}) == []


async def test_every_change_of_a_proxys_pod_enqueues_its_managed_ledger(world: World) -> None:
    for _ in range(2):
        assert await world.child("v1", "Pod", child(PROXY, "orders", 1)) == [LEDGER_KEY]


async def test_runs_drivers_and_requests_enqueue_their_resource(world: World) -> None:
    assert await world.child("batch/v1", "Job", child(JOBS, "orders", 1)) == [LEDGER_KEY]
    await world.resource("ManagedLedger", resource(MANAGED_LEDGER, 1))
    wish = {"metadata.annotations": {"quire.dev/run-job": "offload@2026-01-31T04:00:00Z"}}
    assert LEDGER_KEY in await world.resource("ManagedLedger", changed(resource(MANAGED_LEDGER, 2), wish))
