"""A whole zone is away: nothing is replaced, drained, rolled or evicted, for hours, and all continues afterwards."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_operator.plan import actions as act
from quire_operator.plan.observation import ObservedDrain, ObservedLoad
from quire_operator.plan.zones import lost_zone
from tests.support.kube_resources import bookie
from tests.unit.operator.plan.small_world import World
from tests.unit.operator.plan.test_bookie import pods_asked_for, reasons

ZONES = ("a", "b", "c")
WAYS = [
    "operator is cut off",
    pytest.param("pods are not ready", marks=pytest.mark.slow),
    pytest.param("pods are evicted", marks=pytest.mark.slow),
    "nodes are deleted",
]
HARMFUL = act.DeletePod | act.ReleaseClaim | act.Decommission | act.SetReplicas | act.DeleteStatefulSet
SLOW = "pool-bookie-0"


def pool(replicas: int = 6) -> World:
    """Return a pool with two bookies in each of three zones."""
    world = World(bookie(replicas=replicas), zones=ZONES)
    world.run()
    world.events.clear()
    world.now_s += 700
    return world


def hours(world: World, count: int) -> None:
    """Reconcile for hours, and check each plan."""
    for _ in range(6 * count):
        world.now_s += 600
        found = world.reconcile()
        assert [action for action in found.actions if isinstance(action, HARMFUL)] == []
        (budget,) = [
            action.manifest
            for action in found.actions
            if isinstance(action, act.Apply) and action.manifest["kind"] == "PodDisruptionBudget"
        ]
        assert budget["spec"]["maxUnavailable"] == 0
        world.settle()


def nothing(world: World) -> None:
    pass


def fewer(world: World) -> None:
    world.change(replicas=5)


def image(world: World) -> None:
    world.change(image="quire:2")


def image_without_waiting(world: World) -> None:
    world.change(image="quire:2", update={"waitFor": "Writable", "maxUnavailable": 5})


def autoscale(world: World) -> None:
    world.change(autoscale={"min": 3, "max": 9, "highWatermark": 50, "lowWatermark": 49})


def slow(world: World) -> None:
    world.change(slowBookies={"action": "Replace", "windows": 1})
    world.loads = {
        disk.bookie: ObservedLoad(60.0, 1000, 0.5 if pod == SLOW else 0.002, 1000, 0.01)
        for pod, disk in world.disks.items()
    }


@pytest.mark.parametrize("wish", [nothing, fewer, image, image_without_waiting, autoscale, slow])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_done_to_a_pool_that_lost_a_zone(way: str, wish: Callable[[World], None]) -> None:
    world = pool()
    before = {pod: disk.bookie for pod, disk in world.disks.items()}
    pods = world.lose_zone("b", way)
    assert pods == ["pool-bookie-1", "pool-bookie-4"]
    wish(world)
    hours(world, 1)
    world.under_replicated = 7  # after lostBookieDelay
    hours(world, 5)
    world.under_replicated = 0  # auto-recovery has copied everything
    hours(world, 5)
    assert pods_asked_for(world) == 6
    degraded = world.condition("Degraded")
    assert degraded["status"] == "True"
    assert "zone b is lost: none of its bookies responds (pool-bookie-1, pool-bookie-4)" in degraded["message"]
    rows = {row["pod"]: row for row in world.status()["bookies"]}
    assert {rows[pod]["zone"] for pod in pods} == {"b"}, "it is still known after the node is gone"
    world.loads = {}
    world.change(autoscale=None, slowBookies={"action": "Report"})
    world.bring_zone_back(pods)
    world.run()
    assert lost_zone(world.observe()) is None
    there = {pod: disk.bookie for pod, disk in world.disks.items()}
    assert there == {pod: one for pod, one in before.items() if pod in there}, "each came back with its volumes"
    assert world.condition("Degraded")["status"] == "False"
    assert world.condition("Quiesced")["status"] == "True"
    assert len(world.pods) == (5 if wish is fewer else 6), "the wish is fulfilled now"


def test_the_reasons_are_reported() -> None:
    world = pool()
    world.lose_zone("b", "nodes are deleted")
    fewer(world)
    hours(world, 1)
    assert world.condition("ReplaceBlocked")["reason"] == "ZoneLost"
    assert world.condition("ScaleDownBlocked")["reason"] == "ZoneLost"
    assert world.condition("Degraded")["reason"] == "ZoneLost"
    assert world.condition("Ready")["status"] == "False"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", ["Copying", "Verifying"])
def test_a_drain_removes_nothing_while_a_zone_is_lost(way: str, step: str) -> None:
    world = pool(7)
    world.change(replicas=6)
    while (world.status().get("operation") or {}).get("step") != step:
        world.reconcile()
        world.settle()
    pods = world.lose_zone("b", way)
    for _ in range(200):
        world.reconcile()
        world.settle()
    assert len(world.pods) == 7 and pods_asked_for(world) == 7
    waits = "every ledger has its replicas elsewhere" if way == "nodes are deleted" else "zone b is lost"
    assert waits in world.condition("Reconciling")["message"]
    world.bring_zone_back(pods)
    world.run()
    assert len(world.pods) == 6


def test_a_lost_bookie_that_is_copied_keeps_its_claims_while_a_zone_is_lost() -> None:
    world = pool()
    world.lose_node("pool-bookie-0")
    old = world.disks["pool-bookie-0"]
    world.run()
    world.now_s += 700
    world.reconcile()
    assert world.status()["operation"]["step"] == "Copying"
    world.reconcile()
    pods = world.lose_zone("b", "pods are not ready")
    world.audited, old.ledgers = False, 0
    for check in range(100):
        world.drains[old.bookie] = ObservedDrain(old.bookie, emptied=True, ledgers_left=0, checked_at_s=float(check))
        world.reconcile()
        world.settle()
    assert world.status()["operation"]["step"] == "Copying"
    assert "zone b is lost" in world.condition("Reconciling")["message"]
    assert not any(claim.deleting for claim in world.claims.values())
    world.bring_zone_back(pods)
    world.audited = True
    world.run()
    assert world.disks["pool-bookie-0"].bookie != old.bookie


def test_a_slow_bookie_becomes_writable_again_when_a_zone_is_lost() -> None:
    world = pool()
    slow(world)
    world.now_s += 61
    world.reconcile()
    world.reconcile()
    assert world.status()["operation"]["pod"] == SLOW and world.drains
    world.lose_zone("b", "pods are not ready")
    world.reconcile()
    assert not world.drains and "operation" not in world.status()


def test_bookies_that_are_declared_lost_are_replaced_one_after_the_other() -> None:
    world = pool()
    pods = world.lose_zone("b", "nodes are deleted")
    old = {world.disks[pod].bookie for pod in pods}
    world.run()
    world.zones = ("a", "c")  # new volumes are elsewhere
    world.silent.clear()
    for pod in pods:
        world.ask_to_replace(pod)
    world.run()
    assert not old & world.cookies and not old & {disk.bookie for disk in world.disks.values()}
    assert world.status()["writable"] == 6 and lost_zone(world.observe()) is None
    assert reasons(world).count("ReplaceFinished") >= 2


@pytest.mark.parametrize(
    ("zones", "silent", "lost"),
    [
        (ZONES, set(), None),
        (ZONES, {"pool-bookie-1"}, None),  # a bookie, not its zone
        (ZONES, {"pool-bookie-1", "pool-bookie-4"}, "b"),
        (ZONES, {"pool-bookie-1", "pool-bookie-3"}, None),  # two bookies of two zones
        (ZONES, {"pool-bookie-0", "pool-bookie-1", "pool-bookie-3", "pool-bookie-4"}, "a"),
        (ZONES, {f"pool-bookie-{number}" for number in range(6)}, None),  # the operator itself is cut off
        (("a",), {"pool-bookie-1", "pool-bookie-4"}, None),  # there is one zone
        (("",), {"pool-bookie-1", "pool-bookie-4"}, None),  # nodes without zones
        (tuple("abcdef"), {"pool-bookie-1"}, None),  # a zone with one bookie
    ],
)
def test_a_zone_is_lost_if_two_of_its_bookies_and_no_others_are_away(
    zones: tuple[str, ...], silent: set[str], lost: str | None
) -> None:
    world = World(bookie(replicas=6), zones=zones)
    world.run()
    world.silent = silent
    found = lost_zone(world.observe())
    assert (None if found is None else found.zone) == lost


def test_a_new_pool_with_a_bad_image_has_not_lost_a_zone() -> None:
    world = World(bookie(replicas=6, image="bad"), zones=ZONES, broken={"bad"})
    for _ in range(5):
        world.reconcile()
        world.settle()
    world.pods[SLOW] = replace(world.pods[SLOW], ready=True)
    assert lost_zone(world.observe()) is None
    world.change(image="quire:2")
    world.run()
    assert world.status()["writable"] == 6
