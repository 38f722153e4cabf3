"""Whole operations on a modelled pool, and each of them with the operator killed at every step."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quire_operator.plan.actions import SetFinalizer
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.observation import ObservedNamespace, Rejection
from tests.support.kube_resources import bookie
from tests.unit.operator.plan.small_world import Disk, World

STORAGE: dict[str, Any] = {"journal": {"size": "10Gi"}, "ledgers": {"size": "200Gi"}}
MORE_VOLUMES: dict[str, Any] = {"journal": {"size": "10Gi"}, "ledgers": {"size": "100Gi", "volumes": 2}}


def running(replicas: int = 3) -> World:
    """Return a pool that has started."""
    world = World(bookie(replicas=replicas))
    world.run()
    assert world.status()["phase"] == "Running"
    world.events.clear()
    world.done = 0
    return world


def pods_asked_for(world: World) -> int:
    """Return the replicas applied to the StatefulSet."""
    assert world.stateful_set is not None
    return int(world.stateful_set["spec"]["replicas"])


def reasons(world: World) -> list[str]:
    return [event.reason for event in world.events]


def test_a_new_pool_starts_and_reports_that_the_data_are_safe() -> None:
    world = running()
    assert sorted(world.pods) == ["pool-bookie-0", "pool-bookie-1", "pool-bookie-2"]
    assert world.status()["writable"] == 3
    assert world.status()["observedGeneration"] == 1
    for kind in (
        "Ready",
        "FullyReplicated",
        "MetadataReachable",
        "CookiesConsistent",
        "PlacementSatisfied",
        "Quiesced",
    ):
        assert world.condition(kind)["status"] == "True", kind
    for kind in ("Reconciling", "Degraded", "DiskPressure", "ScaleDownBlocked"):
        assert world.condition(kind)["status"] == "False", kind
    assert world.delay_s is None, "no value of the cluster is known; the auditor sets its own"


def test_a_silent_bookie_is_unreachable_if_it_ran_before_and_starting_otherwise() -> None:
    world = running()
    # The API server reports a pod on a failed node as not ready, but its containers as started.
    world.pods["pool-bookie-1"] = replace(world.pods["pool-bookie-1"], ready=False, started=True)
    world.reconcile()
    assert world.condition("Degraded")["status"] == "True"
    assert "pool-bookie-1" in world.condition("Degraded")["message"]
    world.pods["pool-bookie-1"] = replace(world.pods["pool-bookie-1"], started=False)
    world.reconcile()
    assert world.condition("Degraded")["status"] == "False"


def test_without_changes_only_children_are_applied() -> None:
    world = running()
    first, second = world.reconcile(), world.reconcile()
    assert first.actions == second.actions
    assert {pod.zone_annotation for pod in world.pods.values()} == {"z"}
    assert {type(action).__name__ for action in first.actions} == {"Apply"}
    assert first.requeue_s == 20


def test_an_under_replicated_pool_is_reconciled_soon() -> None:
    world = running()
    world.under_replicated = 7
    assert world.reconcile().requeue_s == 5
    assert world.condition("FullyReplicated")["status"] == "False"


@pytest.mark.parametrize(("passed_s", "degraded"), [(30, "False"), (700, "True")])
def test_a_pod_replaced_by_a_roll_is_not_degraded_until_it_takes_too_long(passed_s: int, degraded: str) -> None:
    world = running()
    world.change(image="quire:2")
    for _ in range(20):
        world.reconcile()
        operation = world.status().get("operation") or {}
        if operation.get("step") == "Settling":
            break
        world.settle()
    pod = operation["pod"]
    # The node reports the former process as started until the new one is.
    world.pods[pod] = replace(world.pods.get(pod) or world.pods["pool-bookie-0"], name=pod, ready=False, started=True)
    world.now_s += passed_s
    world.reconcile()
    assert world.condition("Degraded")["status"] == degraded
    world.pods["pool-bookie-0"] = replace(world.pods["pool-bookie-0"], ready=False, started=True)
    world.reconcile()
    assert world.condition("Degraded")["status"] == "True", "another one is unavailable as well"


def test_additional_replicas_start_together() -> None:
    world = running()
    world.change(replicas=6)
    world.reconcile()
    world.settle()
    assert len(world.pods) == 6
    world.run()
    assert world.status()["writable"] == 6


def test_replicas_are_drained_and_removed_one_at_a_time_the_last_first() -> None:
    world = running(5)
    world.change(replicas=3)
    world.run()
    assert sorted(world.pods) == ["pool-bookie-0", "pool-bookie-1", "pool-bookie-2"]
    assert world.cookies == {world.disks[pod].bookie for pod in world.pods}
    assert {claim.pod for claim in world.claims.values()} == set(world.pods)
    assert len(world.retained) == 2, "their volumes stay by default"
    assert reasons(world).count("DrainFinished") == 2
    assert reasons(world)[0] == "DrainStarted"


def test_the_next_drain_begins_at_once_and_the_pool_is_not_quiet_in_between() -> None:
    world = running(5)
    world.change(replicas=3)
    for _ in range(200):
        found = world.reconcile()
        world.settle()
        if len(world.pods) == 3 and "operation" not in world.status():
            break
        assert world.condition("Quiesced")["status"] == "False", world.status()
        assert found.requeue_s == 2
    assert reasons(world).count("DrainFinished") == 2
    world.run()
    assert world.condition("Quiesced")["status"] == "True"


def test_a_cancelled_drain_leaves_the_bookie_unchanged() -> None:
    world = running(4)
    world.change(replicas=3)
    world.reconcile()
    world.reconcile()
    assert world.status()["operation"]["step"] == "Copying"
    assert world.drains
    world.change(replicas=4)
    world.run()
    assert not world.drains
    assert len(world.pods) == 4
    assert "operation" not in world.status()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda world: world.change(scaleDown={"strategy": "Block"}), "StrategyBlock"),
        (lambda world: setattr(world, "namespaces", (ObservedNamespace("wide", 4),)), "BelowEnsemble"),
        (lambda world: setattr(world, "under_replicated", 2), "UnderReplicated"),
        (lambda world: setattr(world, "etcd_away", True), "MetadataUnreachable"),
    ],
)
def test_a_dangerous_drain_is_blocked_with_the_reason(prepare: Callable[[World], None], reason: str) -> None:
    world = running(4)
    prepare(world)
    world.change(replicas=3)
    world.run()
    assert len(world.pods) == 4
    blocked = world.condition("ScaleDownBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", reason)
    assert blocked["message"]


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "is silent"])
def test_a_new_bookie_in_the_pod_of_a_drained_one_is_not_removed(answers: bool) -> None:
    world = running(4)
    last = "pool-bookie-3"
    old = world.disks[last]
    world.change(replicas=3)
    while world.status().get("operation", {}).get("step") != "Verifying":
        world.reconcile()
        world.settle()
    world.lost[old.bookie] = old
    world.disks[last] = Disk("new", 5)
    world.cookies.add("new")
    for _ in range(20):
        seen = world.observe()
        bookies = {pod: one for pod, one in seen.bookies.items() if answers or pod != last}
        found = plan_bookie(replace(seen, bookies=bookies), "quire:1")
        for action in found.actions:
            world.perform(action)
        world.resource["status"] = found.status.plain()
        world.settle()
        assert pods_asked_for(world) == 4, "it has ledgers"
        assert world.pods[last]
        if answers and "new" in world.drains:
            return
    assert not answers, "the new one is drained, too"


def test_a_drain_waits_while_ledgers_are_under_replicated() -> None:
    world = running(4)
    world.change(replicas=3)
    for _ in range(3):
        world.reconcile()
    world.under_replicated = 1
    world.run()
    assert len(world.pods) == 4
    assert world.status()["operation"]["step"] == "Verifying"
    world.under_replicated = 0
    world.run()
    assert len(world.pods) == 3


def test_a_new_image_is_rolled_out_one_pod_at_a_time_the_last_first() -> None:
    world = running()
    world.change(image="quire:2")
    world.run()
    assert world.replaced == ["pool-bookie-2", "pool-bookie-1", "pool-bookie-0"]
    assert all("quire:2" in pod.revision for pod in world.pods.values())
    assert {disk.ledgers for disk in world.disks.values()} == {4}


def test_a_roll_waits_for_full_replication_between_pods() -> None:
    world = running()
    world.change(image="quire:2")
    while not world.replaced:
        world.reconcile()
        world.settle()
    world.under_replicated = 5
    world.run()
    assert world.replaced == ["pool-bookie-2"]
    assert "5 ledgers are under-replicated" in world.condition("Reconciling")["message"]
    world.under_replicated = 0
    world.run()
    assert len(world.replaced) == 3


def test_a_bad_image_breaks_one_pod_and_reverting_it_repairs_that_without_waiting() -> None:
    world = running()
    world.broken.add("quire:bad")
    world.change(image="quire:bad")
    world.run()
    assert world.replaced == ["pool-bookie-2"]
    world.now_s += 3600
    world.run()
    assert world.condition("Stalled")["reason"] == "Stuck"
    world.under_replicated = 3
    world.change(image="quire:1")
    world.run()
    assert world.replaced == ["pool-bookie-2", "pool-bookie-2"]
    assert all(pod.ready for pod in world.pods.values())


def test_each_configuration_has_its_config_map_until_no_pod_uses_it() -> None:
    world = running(4)
    (first,) = (name for name in world.config_maps if name.startswith("pool-bookie"))
    world.change(engine={"flushInterval": "30s"}, update={"partition": 3})
    world.run()
    assert world.replaced == ["pool-bookie-3"]
    assert len([name for name in world.config_maps if name.startswith("pool-bookie")]) == 2, "three pods use the first"
    world.change(update={"partition": 0})
    world.run()
    (second,) = (name for name in world.config_maps if name.startswith("pool-bookie"))
    assert second != first
    assert len(world.replaced) == 4


def test_a_partition_keeps_the_lower_ordinals_on_the_old_template() -> None:
    world = running(4)
    world.change(image="quire:2", update={"partition": 3})
    world.run()
    assert world.replaced == ["pool-bookie-3"]


def test_claims_grow_and_the_stateful_set_is_recreated_around_its_pods() -> None:
    world = running()
    pods, uid = dict(world.pods), (world.stateful_set or {})["metadata"]["uid"]
    world.change(storage=STORAGE)
    world.run()
    assert {claim.size for claim in world.claims.values() if claim.template == "ledgers0"} == {"200Gi"}
    assert world.pods == pods, "nothing was restarted"
    assert (world.stateful_set or {})["metadata"]["uid"] != uid


def test_claims_of_a_deleted_pool_grow_to_the_new_size() -> None:
    world = running()
    world.stateful_set = None
    world.pods.clear()
    world.resource.pop("status")
    world.change(storage=STORAGE)
    world.run()
    assert {claim.size for claim in world.claims.values() if claim.template == "ledgers0"} == {"200Gi"}
    assert world.stateful_set is not None
    uid = world.stateful_set["metadata"]["uid"]
    world.run()
    assert world.stateful_set["metadata"]["uid"] == uid, "its templates were large enough"
    assert "ExpandOrphaning" not in reasons(world)


def test_an_additional_volume_is_rolled_out_to_the_pods() -> None:
    world = running()
    world.change(storage=MORE_VOLUMES)
    world.run()
    assert sum(claim.template == "ledgers1" for claim in world.claims.values()) == 3
    assert len(world.replaced) == 3
    assert {disk.ledgers for disk in world.disks.values()} == {4}


def test_volumes_that_cannot_grow_are_reported_and_left_alone() -> None:
    world = World()
    world.expandable = False
    world.run()
    world.change(storage=STORAGE)
    world.run()
    assert {claim.size for claim in world.claims.values()} == {"10Gi", "100Gi"}
    stalled = world.condition("Stalled")
    assert stalled["reason"] == "VolumesCannotGrow"
    assert "ledgers0-pool-bookie-0" in stalled["message"]


def test_volumes_that_grow_are_reported_until_all_have_their_size() -> None:
    world = running()
    world.grows = False
    world.change(storage=STORAGE)
    world.run()
    assert world.status().get("operation") is None, "the operation does not wait for the storage"
    name = "ledgers0-pool-bookie-0"
    world.claims[name] = replace(world.claims[name], resize_note="FileSystemResizePending")
    world.run()
    growing = world.condition("Reconciling")
    assert (growing["status"], growing["reason"]) == ("True", "VolumesGrow")
    assert growing["message"] == (
        f"3 of 6 volumes have their size; {name} has 100Gi of 200Gi (FileSystemResizePending), "
        "ledgers0-pool-bookie-1 has 100Gi of 200Gi, ledgers0-pool-bookie-2 has 100Gi of 200Gi"
    )
    assert world.condition("Ready")["status"] == "True"
    world.claims = {name: replace(claim, capacity=claim.size) for name, claim in world.claims.items()}
    world.run()
    assert world.condition("Reconciling")["status"] == "False"
    assert reasons(world).count("VolumesGrown") == 1


def test_a_size_that_the_storage_does_not_provide_is_reported() -> None:
    world = running()
    world.grows = False
    world.change(storage=STORAGE)
    world.run()
    name = "ledgers0-pool-bookie-1"
    world.claims[name] = replace(world.claims[name], resize_failed=True, resize_note="quota of the project exceeded")
    world.run()
    stalled = world.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "VolumesCannotGrow")
    assert stalled["message"] == (
        f"the storage does not provide the size of {name}: quota of the project exceeded; correct the storage, "
        "Kubernetes tries again"
    )


def test_a_capacity_in_another_form_is_no_growth() -> None:
    world = running()
    world.claims = {name: replace(claim, capacity="1e9") for name, claim in world.claims.items()}
    world.run()
    assert world.condition("Reconciling")["status"] == "False"


def test_without_the_metadata_store_nothing_is_replaced_or_scaled_down() -> None:
    world = running(4)
    world.etcd_away = True
    world.change(image="quire:2", replicas=3)
    world.run()
    assert world.replaced == []
    assert len(world.pods) == 4
    assert world.condition("FullyReplicated")["status"] == "Unknown"
    world.etcd_away = False
    world.run()
    assert len(world.pods) == 3


def test_a_paused_pool_is_observed_and_not_changed() -> None:
    world = running()
    world.change(paused=True, image="quire:2", replicas=5)
    found = world.reconcile()
    assert found.actions == ()
    assert world.status()["phase"] == "Paused"
    assert world.status()["writable"] == 3


def test_an_unknown_setting_is_reported_and_reaches_no_pod() -> None:
    world = running()
    world.change(engine={"settings": {"longPollMax": "5"}})
    assert world.reconcile().actions == ()
    assert world.status()["phase"] == "Invalid"
    assert "did you mean longPollsMax?" in world.condition("Ready")["message"]


def test_a_recreated_pool_uses_all_existing_claims_even_above_its_replicas() -> None:
    world = running(5)
    world.stateful_set = None
    world.pods.clear()
    world.resource.pop("status")
    world.change(replicas=3)
    world.reconcile()
    assert pods_asked_for(world) == 5
    world.run()
    assert len(world.pods) == 3, "and the two surplus bookies are drained"


def deleting(world: World) -> None:
    world.resource["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"


def test_a_deleted_pool_keeps_its_claims_and_waits_for_its_managed_ledgers() -> None:
    world = running()
    deleting(world)
    world.run()
    assert world.resource["metadata"]["finalizers"] == ["quire.dev/bookie"]
    message = world.condition("Ready")["message"]
    assert "orders still has this pool" in message and "kubectl delete bookie pool --cascade=orphan" in message
    world.namespaces = ()
    world.run()
    assert world.resource["metadata"]["finalizers"] == []
    assert len(world.claims) == 6


def test_a_deleted_pool_with_policy_delete_deletes_its_claims_after_its_pods() -> None:
    world = running()
    world.change(storage={"journal": {"size": "10Gi"}, "ledgers": {"size": "100Gi"}, "reclaimPolicy": "Delete"})
    world.namespaces = ()
    deleting(world)
    world.run()
    assert world.resource["metadata"]["finalizers"] == []
    assert not world.claims
    assert not world.retained


OPERATIONS: dict[str, tuple[int, Callable[[World], None], Callable[[World], bool]]] = {
    "scale up": (3, lambda world: world.change(replicas=5), lambda world: len(world.pods) == 5),
    "scale down": (4, lambda world: world.change(replicas=3), lambda world: len(world.pods) == 3 == len(world.cookies)),
    "roll": (2, lambda world: world.change(image="quire:2"), lambda world: len(set(world.replaced)) == 2),
    "expand": (3, lambda world: world.change(storage=STORAGE), lambda world: not world.replaced),
    "more volumes": (2, lambda world: world.change(storage=MORE_VOLUMES), lambda world: len(world.claims) == 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operator_killed_at_any_step_reaches_the_same_end(name: str) -> None:
    replicas, ask, reached = OPERATIONS[name]
    before = running(replicas)
    whole = copy.deepcopy(before)
    ask(whole)
    whole.run()
    assert reached(whole)
    for step in range(1, whole.done + 1):
        world = copy.deepcopy(before)
        world.kill_at = step
        ask(world)
        world.run()
        assert reached(world), f"killed before step {step}"
        assert world.status()["phase"] == "Running"
        assert "operation" not in world.status()
        assert len(world.replaced) == len(whole.replaced), f"a pod was replaced twice, killed before step {step}"


def test_simultaneous_changes_end_like_sequential_ones() -> None:
    world = running(5)
    world.change(replicas=4, image="quire:2", storage=STORAGE)
    world.run()
    assert len(world.pods) == 4
    assert all("quire:2" in pod.revision for pod in world.pods.values())
    assert {claim.size for claim in world.claims.values() if claim.template == "ledgers0"} == {"200Gi"}


def test_an_operation_says_that_it_waits_for_a_rejected_write_and_stays_at_its_step() -> None:
    world = running()
    world.change(replicas=5)
    world.run()
    world.change(replicas=3)
    world.reconcile()
    before = world.status()["operation"]
    rejection = Rejection("QuotaExceeded", "the API server refused (403): exceeded quota: compute")
    found = plan_bookie(replace(world.observe(), rejected=rejection), "quire:1")
    assert found.actions == ()
    assert found.status.operation is not None
    after = found.status.operation.plain()
    assert after.pop("message") == f"waiting until the API server accepts a write: {rejection.message}"
    before.pop("message", None)
    assert after == before


def test_a_pod_that_cannot_be_scheduled_is_reported_once_as_an_event() -> None:
    world = running()
    blocked = ("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu")
    world.pods["pool-bookie-1"] = replace(world.pods["pool-bookie-1"], ready=False, node=None, blocked=blocked)
    world.reconcile()
    world.reconcile()
    assert reasons(world) == ["Unschedulable"]
    assert world.condition("PodsBlocked")["reason"] == "Unschedulable"
    assert blocked[1] in world.condition("Ready")["message"]
    (row,) = [one for one in world.status()["bookies"] if one["pod"] == "pool-bookie-1"]
    assert (row["state"], row["reason"]) == ("Failing", "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu")


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_blocked_deletion_is_undone_by_orphaning_and_creating_the_pool_again(policy: str) -> None:
    world = running()
    world.change(storage={**STORAGE, "ledgers": {"size": "100Gi"}, "reclaimPolicy": policy})
    world.run()
    deleting(world)
    world.run()
    before = (dict(world.pods), dict(world.claims), set(world.cookies))
    world.resource["metadata"]["finalizers"].append("orphan")
    found = world.reconcile()
    assert found.actions == (SetFinalizer(False),)
    assert (world.pods, world.claims, world.cookies) == before
    world.resource = bookie(storage=world.resource["spec"]["storage"])
    world.resource["metadata"] |= {"namespace": "ns", "uid": "u2", "generation": 1}
    world.run()
    assert world.status()["phase"] == "Running"
    assert (world.pods, world.claims, world.cookies) == before


def test_orphaning_cancels_a_drain_that_has_removed_nothing() -> None:
    world = running(5)
    world.change(replicas=3)
    world.reconcile()
    world.reconcile()
    assert world.drains
    deleting(world)
    world.resource["metadata"]["finalizers"].append("orphan")
    world.run()
    assert not world.drains
    assert len(world.pods) == 5
