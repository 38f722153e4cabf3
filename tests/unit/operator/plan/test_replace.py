"""Bookies whose volumes are lost: when they are replaced, by annotation or not, and what happens to their data."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_operator.api.operations import Step
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.observation import ObservedDrain
from tests.unit.operator.plan.small_world import World
from tests.unit.operator.plan.test_bookie import reasons, running

LOST = "pool-bookie-1"
STORAGE = {"journal": {"size": "10Gi"}, "ledgers": {"size": "100Gi"}}


def lost_node() -> World:
    world = running(4)
    world.lose_node(LOST)
    return world


def row(world: World, pod: str = LOST) -> dict[str, object]:
    return next(row for row in world.status()["bookies"] if row["pod"] == pod)


def wait_long(world: World) -> None:
    """Wait longer than lostBookieDelay."""
    world.run()
    world.now_s += 700
    world.run()


def replaced(world: World, old: str) -> bool:
    """Return whether another bookie runs in the pod, and the cookie of the old one is removed."""
    pod = world.pods[LOST]
    there = world.disks[LOST].bookie
    return pod.ready and there != old and world.cookies >= {there} and old not in world.cookies


def test_a_lost_bookie_has_time_to_come_back_and_the_status_shows_the_problem() -> None:
    world = lost_node()
    claims = dict(world.claims)
    world.run()
    assert world.claims == claims
    assert row(world)["state"] == "Lost"
    assert "not a node of the cluster" in str(row(world)["reason"])
    blocked = world.condition("ReplaceBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", "WaitingForItsReturn")
    assert "quire.dev/replace" in blocked["message"]
    assert world.status()["lost"] == 1
    assert world.condition("Degraded")["status"] == "True"


def test_after_the_delay_its_ledgers_are_copied_before_its_claims_are_deleted() -> None:
    world = lost_node()
    old = world.disks[LOST]
    wait_long(world)
    assert replaced(world, old.bookie)
    assert world.retained == [old], "its volumes stay by default"
    assert old.ledgers == 0
    assert world.status()["phase"] == "Running"
    assert reasons(world) == [
        *("ReplaceStarted", "ReplaceUnbinding", "ReplaceRejoining", "ReplaceRemovingCookie", "ReplaceFinished"),
    ]


def test_nothing_is_released_while_a_ledger_has_no_other_replica() -> None:
    world = lost_node()
    world.lost[world.disks[LOST].bookie].ledgers = 10**6
    claims = dict(world.claims)
    world.run()
    world.now_s += 700
    for _ in range(50):
        world.reconcile()
        world.settle()
    assert world.claims == claims
    assert world.status()["operation"]["step"] == "Copying"
    assert "ledgers are still on it" in world.condition("Reconciling")["message"]


def test_if_no_other_bookie_can_take_its_replicas_the_annotation_is_suggested() -> None:
    world = lost_node()
    world.audited = False
    old, blocked = world.disks[LOST].bookie, "2 other bookies are writable, fewer than the ensemble of 3 of ledger 7"
    world.drains[old] = ObservedDrain(old, emptied=False, ledgers_left=4, blocked_by=(blocked,), leaving=False)
    world.reconcile()
    world.now_s += 700
    for _ in range(3):
        world.reconcile()
    message = world.condition("Reconciling")["message"]
    assert message.startswith(
        f"Replace: Copying, 4 ledgers are still on it; {blocked}; or annotate {LOST} with quire.dev/replace"
    )
    world.drains[old] = ObservedDrain(old, emptied=False, ledgers_left=3, blocked_by=("ledger 9 is open on it",))
    world.reconcile()
    assert "annotate" not in world.condition("Reconciling")["message"], (
        "the drain makes progress: no need to release anything"
    )
    # Ledgers that were created on the other two need a third bookie, which only a new one in its place can be.
    world.lost[old].ledgers, world.under_replicated = 0, 2
    world.drains[old] = ObservedDrain(old, emptied=True, ledgers_left=0)
    world.reconcile()
    message = world.condition("Reconciling")["message"]
    assert "2 ledgers of the cluster are under-replicated" in message and "annotate" in message
    assert world.status()["operation"]["step"] == "Copying"


def test_an_operation_beyond_its_deadline_is_reported_once_and_continues() -> None:
    world = lost_node()
    world.lost[world.disks[LOST].bookie].ledgers = 10**6
    world.run()
    world.now_s += 700
    for _ in range(5):
        world.reconcile()
        world.settle()
    world.now_s += 25 * 3600
    for _ in range(5):
        world.reconcile()
        world.settle()
    late = [event for event in world.events if event.reason == "ReplaceLate"]
    assert len(late) == 1
    assert late[0].warning
    assert world.status()["operation"]["step"] == "Copying"


def test_a_node_that_comes_back_during_copying_keeps_its_bookie() -> None:
    world = lost_node()
    old = world.disks[LOST].bookie
    world.run()
    world.now_s += 700
    world.reconcile()
    world.reconcile()
    assert world.drains
    world.bring_node_back(LOST)
    world.run()
    assert world.disks[LOST].bookie == old
    assert not world.drains
    assert world.pods[LOST].ready


def test_the_annotation_releases_the_volumes_at_once_and_retains_them() -> None:
    world = lost_node()
    old = world.disks[LOST]
    world.change(storage=STORAGE | {"reclaimPolicy": "Delete"})
    world.ask_to_replace(LOST)
    world.reconcile()
    assert world.status()["operation"]["step"] == "Unbinding"
    world.run()
    assert replaced(world, old.bookie)
    assert world.retained == [old], "even if drained ones are deleted: its data were not copied yet"


def test_an_id_is_kept_while_its_pod_is_between_two_nodes() -> None:
    world = running(4)
    old = world.disks[LOST].bookie
    del world.pods[LOST]
    world.reconcile()
    assert (row(world)["id"], row(world)["state"]) == (old, "Starting")
    world.settle()
    world.lose_node(LOST)
    wait_long(world)
    assert replaced(world, old)


def test_with_the_manual_policy_nothing_happens_without_the_annotation() -> None:
    world = lost_node()
    world.change(storage=STORAGE | {"lostVolumePolicy": "Manual"})
    old = world.disks[LOST].bookie
    wait_long(world)
    assert world.condition("ReplaceBlocked")["reason"] == "ManualPolicy"
    assert old in world.cookies
    world.ask_to_replace(LOST)
    world.run()
    assert replaced(world, old)


@pytest.mark.parametrize("away", ["etcd", "auditor"])
def test_a_blocked_replacement_is_a_condition(away: str) -> None:
    world = lost_node()
    world.run()
    world.now_s += 700
    if away == "etcd":
        world.etcd_away = True
    else:
        world.auditor = None
    world.run()
    expected = {"etcd": "MetadataUnreachable", "auditor": "AutoRecoveryOff"}[away]
    assert world.condition("ReplaceBlocked")["reason"] == expected
    assert "operation" not in world.status()


def test_an_annotated_serving_bookie_is_drained_first() -> None:
    world = running(4)
    old = world.disks[LOST]
    world.ask_to_replace(LOST)
    for _ in range(3):
        world.reconcile()
        world.settle()
    assert world.status()["operation"]["step"] == "Copying"
    assert old.ledgers > 0
    world.run()
    assert replaced(world, old.bookie)
    assert old.ledgers == 0


def test_an_annotated_bookie_that_only_the_operator_cannot_reach_is_not_released() -> None:
    world = running(4)
    world.ask_to_replace(LOST)
    claims = dict(world.claims)
    for _ in range(4):
        seen = world.observe()
        silent = {pod: one for pod, one in seen.bookies.items() if pod != LOST}
        found = plan_bookie(replace(seen, bookies=silent), "quire:1")
        for action in found.actions:
            world.perform(action)
        world.resource["status"] = found.status.plain()
        assert found.status.operation is not None
        assert found.status.operation.step is Step.COPYING, "its pod is ready, so it serves"
    assert world.claims == claims


def test_new_volumes_that_are_lost_before_a_start_are_released_by_the_annotation() -> None:
    world = lost_node()
    old = world.disks[LOST].bookie
    world.change(storage=STORAGE | {"reclaimPolicy": "Delete"})
    world.ask_to_replace(LOST)
    world.broken.add("quire:1")
    for _ in range(6):
        world.reconcile()
        world.settle()
    assert world.status()["operation"]["step"] == "Rejoining"
    second = world.disks[LOST]
    world.lose_node(LOST)
    world.broken.clear()
    world.ask_to_replace(LOST)
    world.run()
    assert replaced(world, old)
    assert second in world.retained, "their content is unknown"


def test_a_removed_annotation_leaves_a_serving_bookie_unchanged() -> None:
    world = running(4)
    old = world.disks[LOST].bookie
    world.ask_to_replace(LOST)
    for _ in range(3):
        world.reconcile()
        world.settle()
    world.pods[LOST] = replace(world.pods[LOST], replace_asked=False)
    world.run()
    assert world.disks[LOST].bookie == old
    assert not world.drains


def test_the_id_of_emptied_volumes_is_removed_when_no_ledger_names_it() -> None:
    world = running(4)
    old = world.disks[LOST].bookie
    world.wipe(LOST)
    world.reconcile()
    world.settle()
    world.reconcile()
    assert [lost["id"] for lost in world.status()["lostBookies"]] == [old]
    world.run()
    assert replaced(world, old)
    assert world.status()["lostBookies"] == []


def test_the_status_shows_why_a_bookie_refuses_its_folders() -> None:
    world = running()
    failure = "the folder /var/lib/quire/ledgers0/0 of bookie b is empty: its volume is missing or lost; mount it"
    world.pods[LOST] = replace(world.pods[LOST], ready=False, zone_annotation=None, failure=failure)
    world.broken.add("quire:1")
    world.run()
    assert (row(world)["state"], row(world)["reason"]) == ("Failing", failure)
    assert world.condition("Degraded")["status"] == "True"
    world.broken.clear()
    world.ask_to_replace(LOST)
    world.run()
    assert row(world)["state"] == "Writable"


def test_a_roll_does_not_wait_forever_for_a_lost_bookie() -> None:
    world = running(4)
    world.change(image="quire:2")
    while not world.replaced:
        world.reconcile()
        world.settle()
    world.lose_node(LOST)
    wait_long(world)
    world.run()
    assert all("quire:2" in pod.revision and pod.ready for pod in world.pods.values())
    assert not world.lost[next(iter(world.lost))].ledgers


def slow_to_die(world: World) -> World:
    world.ask_to_replace(LOST)
    return world


WAYS: dict[str, Callable[[], World]] = {
    "by itself": lost_node,
    "by annotation": lambda: slow_to_die(lost_node()),
    "while it serves": lambda: slow_to_die(running(4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_operator_killed_at_any_step_of_a_replacement_reaches_the_same_end(way: str) -> None:
    before = WAYS[way]()
    before.done = 0
    whole = copy.deepcopy(before)
    old = whole.disks[LOST].bookie
    wait_long(whole)
    assert replaced(whole, old)
    for step in range(1, whole.done + 1):
        world = copy.deepcopy(before)
        world.kill_at = step
        wait_long(world)
        assert replaced(world, old), f"killed before step {step}"
        assert world.status()["phase"] == "Running"
        assert len(world.retained) == 1, f"the claims were deleted twice, killed before step {step}"
