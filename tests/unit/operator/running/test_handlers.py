"""kopf's handlers: what an event enqueues, with what kopf remembers of its object."""

from typing import Any, cast

import kopf
import pytest

from quire_operator.builders.naming import BROKER, labels
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.plan import declared, managed_ledger
from quire_operator.plan import deletion as bookie
from quire_operator.running import handlers
from quire_operator.running.wakes import Wakes
from quire_operator.running.work_queue import WorkQueue
from tests.support.kube_resources import BOOKIE, changed


def item(version: int, **changes: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "uid": "1", "resourceVersion": str(version), "generation": 1}
    return changed(BOOKIE, {f"metadata.{name}": value for name, value in metadata.items()} | changes)


def config_map(version: int) -> dict[str, Any]:
    metadata = {"name": "orders-broker", "namespace": "ns", "labels": labels("orders", BROKER)}
    return {"metadata": metadata | {"resourceVersion": str(version)}}


class World:
    """The memo of an operator, and that of one object, which kopf copies from it."""

    def __init__(self) -> None:
        self.queue, resources = WorkQueue(), Resources()
        self.memory = Memory(Applied(watched=True), resources)
        self.memo = kopf.Memo(wakes=Wakes(self.queue, self.memory, resources), resources=resources)

    async def resource(self, kind: Any, body: Any) -> int:
        """Return how many keys are queued after an event of a Bookie."""
        event = kopf.RawEvent(type=kind, object=body)
        await handlers.resource_event(event=event, body=kopf.Body(event["object"]), memo=self.memo, param="Bookie")
        return len(self.queue)

    async def child(self, kind: Any, version: int) -> int:
        """Return how many keys are queued after an event of a ConfigMap."""
        event = kopf.RawEvent(type=kind, object=cast(Any, config_map(version)))
        await handlers.child_event(event=event, body=kopf.Body(event["object"]), memo=self.memo, param="ConfigMap")
        return len(self.queue)


@pytest.fixture
def world() -> World:
    return World()


async def test_the_operators_own_status_enqueues_nothing_again(world: World) -> None:
    assert await world.resource("ADDED", item(1)) == 1
    world.queue._due.clear()
    assert await world.resource("MODIFIED", item(2, **{"status.phase": "Running"})) == 0
    assert await world.resource("MODIFIED", item(3, **{"metadata.generation": 2})) == 1


async def test_a_child_that_is_listed_again_makes_all_children_stale(world: World) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap"} | config_map(7)
    await world.child(None, 7)
    world.memory.applied.note(manifest, config_map(7), 1.0)
    world.queue._due.clear()
    assert await world.child("MODIFIED", 7) == 0
    assert world.memory.applied.is_fresh(manifest, 1.0)
    assert await world.child(None, 7) == 1, "another child may have been deleted meanwhile"
    assert not world.memory.applied.is_fresh(manifest, 1.0)


async def test_a_deleted_child_enqueues_its_owner(world: World) -> None:
    assert await world.child("DELETED", 7) == 1


async def test_indices_hold_the_resource_as_it_is() -> None:
    body = kopf.Body(cast(Any, item(4)))
    assert await handlers.index("ns", "pool", body) == {("ns", "pool"): item(4)}


async def test_the_start_gives_reconciliations_the_indices(world: World) -> None:
    found: Any = {plural: {} for plural in handlers.RESOURCES.values()} | {"bookies": {("ns", "pool"): [item(4)]}}
    await handlers.start(kopf.OperatorSettings(), world.memo, **found)
    assert world.memo.resources.all("Bookie") == [item(4)]


def test_kopf_removes_no_finalizer_of_ours_or_of_another_operator() -> None:
    settings = kopf.OperatorSettings()
    default = settings.persistence.finalizer
    handlers.configure(settings)
    assert settings.persistence.finalizer not in {
        default,
        bookie.FINALIZER,
        managed_ledger.FINALIZER,
        declared.FINALIZER,
    }
