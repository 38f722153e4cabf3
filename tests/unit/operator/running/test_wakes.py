"""Keys that an event enqueues, and events that are the operator's own writes."""

from typing import Any

import pytest

from quire_operator.builders.naming import BOOKIE, BROKER, JOBS, labels
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.running.wakes import CHILDREN, Wakes
from quire_operator.running.work_queue import Key, WorkQueue
from tests.support.kube_resources import BOOKIE as POOL
from tests.support.kube_resources import MANAGED_LEDGER, changed

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


@pytest.fixture
def world() -> tuple[Wakes, Queue, Memory]:
    queue, resources = Queue(), Resources()
    memory = Memory(Applied(watched=True), resources)
    return Wakes(queue, memory, resources), queue, memory


def resource(manifest: dict[str, Any], version: int, *, generation: int = 1, **changes: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "metadata.namespace": "ns",
        "metadata.resourceVersion": str(version),
        "metadata.generation": generation,
    }
    return changed(manifest, metadata | changes)


def with_status(**status: Any) -> dict[str, Any]:
    """Return changes of a status."""
    return {f"status.{name}": value for name, value in status.items()}


async def test_a_changed_spec_enqueues_its_resource_and_dependents(world: tuple[Wakes, Queue, Memory]) -> None:
    wakes, queue, _ = world
    await wakes.resource("Bookie", resource(POOL, 1), False)
    assert queue.taken() == [POOL_KEY]
    await wakes.resource("ManagedLedger", resource(MANAGED_LEDGER, 2), False)
    assert queue.taken() == [POOL_KEY, LEDGER_KEY]
    await wakes.resource("Bookie", resource(POOL, 3, generation=2), False)
    assert queue.taken() == [POOL_KEY, LEDGER_KEY]
    await wakes.resource("ManagedLedger", resource(MANAGED_LEDGER, 4), True)
    assert queue.taken() == [POOL_KEY], "it may be deleted now"


async def test_a_changed_status_enqueues_only_affected_resources(world: tuple[Wakes, Queue, Memory]) -> None:
    wakes, queue, _ = world
    await wakes.resource("ManagedLedger", resource(MANAGED_LEDGER, 1), False)
    await wakes.resource("Bookie", resource(POOL, 2), False)
    queue.taken()
    await wakes.resource("Bookie", resource(POOL, 3, **with_status(phase="Creating")), False)
    assert queue.taken() == []
    await wakes.resource("Bookie", resource(POOL, 4, **with_status(writable=3)), False)
    assert queue.taken() == [LEDGER_KEY]
    await wakes.resource("ManagedLedger", resource(MANAGED_LEDGER, 5, **with_status(state="Open")), False)
    assert queue.taken() == []


async def test_under_replication_is_read_from_both_kinds(
    world: tuple[Wakes, Queue, Memory],
) -> None:
    wakes, queue, _ = world
    await wakes.resource("Bookie", resource(POOL, 1), False)
    await wakes.resource("ManagedLedger", resource(MANAGED_LEDGER, 2, **with_status(underReplicated=3)), False)
    queue.taken()
    await wakes.resource("Bookie", resource(POOL, 3, **with_status(underReplicated={"count": 3})), False)
    assert queue.taken() == [LEDGER_KEY]


async def test_a_removed_finalizer_enqueues_the_resource(world: tuple[Wakes, Queue, Memory]) -> None:
    wakes, queue, _ = world
    await wakes.resource("Bookie", changed(resource(POOL, 1), {"metadata.finalizers": ["quire.dev/bookie"]}), False)
    queue.taken()
    await wakes.resource("Bookie", resource(POOL, 2), False)
    assert queue.taken() == [POOL_KEY]


def child(part: str, owner: str, version: int) -> dict[str, Any]:
    metadata = {"name": f"{owner}-{part}", "namespace": "ns", "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": labels(owner, part)}}


async def test_a_changed_child_enqueues_its_owner_unless_the_change_is_ours(world: tuple[Wakes, Queue, Memory]) -> None:
    wakes, queue, memory = world
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "orders-broker", "namespace": "ns"}}
    memory.applied.note(manifest, child(BROKER, "orders", 7), 1.0)
    await wakes.child("v1", "ConfigMap", child(BROKER, "orders", 7), False)
    assert queue.taken() == []
    await wakes.child("v1", "ConfigMap", child(BROKER, "orders", 8), False)
    assert queue.taken() == [LEDGER_KEY]
    assert not memory.applied.is_fresh(manifest, 1.0)
    await wakes.child("v1", "ConfigMap", child(BROKER, "orders", 9), True)
    assert queue.taken() == [LEDGER_KEY]


async def test_every_change_of_a_pod_enqueues_its_pool(world: tuple[Wakes, Queue, Memory]) -> None:
    wakes, queue, _ = world
    await wakes.pod(child(BOOKIE, "pool", 1), False)
    assert queue.taken() == [POOL_KEY]
    await wakes.pod({"metadata": {"name": "others", "namespace": "ns"}}, False)
    assert queue.taken() == []


async def test_runs_drivers_and_requests_enqueue_their_resource(world: tuple[Wakes, Queue, Memory]) -> None:
    wakes, queue, _ = world
    assert ("batch/v1", "Job") in CHILDREN
    await wakes.pod(child(JOBS, "orders", 1), False)
    assert queue.taken() == [LEDGER_KEY]
    await wakes.resource("ManagedLedger", resource(MANAGED_LEDGER, 1), False)
    queue.taken()
    wish = {"metadata.annotations": {"quire.dev/run-job": "offload@2026-01-31T04:00:00Z"}}
    await wakes.resource("ManagedLedger", changed(resource(MANAGED_LEDGER, 2), wish), False)
    assert LEDGER_KEY in queue.taken()
