"""The recommended number of bookies: by load and space, since when, why, and which steps follow."""

from dataclasses import replace
from typing import Any

import pytest

from quire_operator.plan import actions as act
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.observation import ObservedLoad, PoolObservation
from quire_operator.plan.recommending import by_load
from tests.unit.operator.plan.small_world import GIB, World
from tests.unit.operator.plan.test_bookie import reasons, running

AUTO = {"min": 3, "max": 6, "load": {"adds": 1000}}


def load(adds_s: float = 0, bytes_s: float = 0, cores: float = 0) -> ObservedLoad:
    return ObservedLoad(
        60.0, 500, 0.002, round(60 * adds_s), 0.003, round(20 * bytes_s), round(40 * bytes_s), 60 * cores
    )


def quiet(replicas: int = 4, **auto: Any) -> World:
    world = running(replicas)
    world.change(autoscale=AUTO | auto)
    world.run()
    world.now_s += 700
    world.events.clear()
    return world


def minutes(world: World, count: int, each: ObservedLoad | None) -> None:
    """Reconcile each minute while every bookie has this load."""
    for _ in range(count):
        world.loads = {disk.bookie: each for disk in world.disks.values()}
        world.now_s += 61
        world.reconcile()
        world.settle()


def replicas(world: World) -> int:
    return int(world.resource["spec"]["replicas"])


def filled(world: World, used_percent: int) -> PoolObservation:
    seen = world.observe()
    bookies = {
        pod: replace(one, total_bytes=100 * GIB, free_bytes=(100 - used_percent) * GIB)
        for pod, one in seen.bookies.items()
    }
    return replace(seen, bookies=bookies)


@pytest.mark.parametrize(
    ("total", "target", "now", "wanted"),
    [
        (4000, 1000, 4, 4),
        (4399, 1000, 4, 4),  # within a tenth
        (4401, 1000, 4, 5),
        (9500, 1000, 4, 10),
        (2701, 1000, 4, 4),  # three would be loaded by more than nine tenths
        (2699, 1000, 4, 3),
        (100, 1000, 4, 1),
        (0, 1000, 4, 1),
        (0, 1000, 1, 1),
    ],
)
def test_a_load_asks_for_bookies(total: float, target: int, now: int, wanted: int) -> None:
    assert by_load(total, target, now) == wanted


@pytest.mark.parametrize(
    ("targets", "each", "name", "current", "desired"),
    [
        ({"adds": 1000}, load(adds_s=1500), "adds", 1500, 6),
        ({"bytes": "10Mi"}, load(bytes_s=15 * 2**20), "bytes", 15 * 2**20, 6),
        ({"cpuMillicores": 500}, load(cores=0.6), "cpu", 600, 5),
    ],
)
def test_each_figure_is_explained_in_the_status(
    targets: dict[str, Any], each: ObservedLoad, name: str, current: int, desired: int
) -> None:
    world = quiet(load=targets)
    minutes(world, 1, each)
    found = world.status()["autoscale"]
    figures = {one["name"]: one for one in found["figures"]}
    assert set(figures) == {"space", name}
    assert (figures[name]["current"], figures[name]["desired"], found["desired"]) == (current, desired, desired)
    assert figures["space"]["current"] == 40 and figures["space"]["desired"] == 4
    assert found["message"].startswith(f"{current} ") and f"the target is {figures[name]['target']}" in found["message"]


def test_bookies_are_added_one_by_one_after_the_window_up_to_the_maximum() -> None:
    world = quiet()
    minutes(world, 3, load(adds_s=1500))
    assert replicas(world) == 4
    minutes(world, 1, load(adds_s=1500))
    assert replicas(world) == 5
    (event,) = [event for event in world.events if event.reason == "ScaledUp"]
    assert event.message == "5 bookies: 1500 adds per second and bookie, the target is 1000"
    minutes(world, 8, load(adds_s=1200))
    assert replicas(world) == 5, "the figures must show the effect first"
    minutes(world, 30, load(adds_s=1200))
    assert replicas(world) == 6
    minutes(world, 30, load(adds_s=1900))
    assert replicas(world) == 6
    assert world.status()["autoscale"]["message"].endswith("; autoscale.max is 6")
    assert world.status()["autoscale"]["desired"] == 6


def test_a_peak_adds_nothing_and_a_pause_removes_nothing() -> None:
    world = quiet()
    for _ in range(20):
        minutes(world, 2, load(adds_s=5000))
        minutes(world, 1, load(adds_s=900))
    assert replicas(world) == 4
    for _ in range(5):
        minutes(world, 25, load())
        minutes(world, 1, load(adds_s=900))
    assert replicas(world) == 4


def test_a_bookie_that_is_not_needed_is_drained_after_the_window() -> None:
    world = quiet()
    world.resource["spec"]["autoscale"] |= {"lowWatermark": 79}
    minutes(world, 27, load(adds_s=100))
    assert replicas(world) == 4 and len(world.pods) == 4
    minutes(world, 3, load(adds_s=100))
    assert replicas(world) == 3
    world.run()
    assert len(world.pods) == 3
    assert "DrainFinished" in reasons(world)
    (event,) = [event for event in world.events if event.reason == "ScaledDown"]
    assert event.message.startswith("3 bookies: 40 % of the space is used; with one bookie less")
    assert "100 adds per second and bookie, the target is 1000: 1 are enough" in event.message
    minutes(world, 60, load())
    assert replicas(world) == 3, "min"


def test_an_idle_pool_without_room_in_the_others_keeps_its_bookies() -> None:
    world = quiet()  # 40 % of the space, lowWatermark is 30
    minutes(world, 60, load())
    assert replicas(world) == 4
    assert world.status()["autoscale"]["desired"] == 4


def test_a_busy_pool_with_much_room_keeps_its_bookies() -> None:
    world = quiet(lowWatermark=79)
    minutes(world, 60, load(adds_s=950))
    assert replicas(world) == 4


def test_an_unknown_load_never_makes_a_pool_smaller_and_space_still_makes_it_larger() -> None:
    world = quiet(lowWatermark=79)
    minutes(world, 60, None)
    assert replicas(world) == 4
    found = world.status()["autoscale"]
    assert (found["desired"], found["message"]) == (4, "not known yet: adds")
    assert "current" not in next(one for one in found["figures"] if one["name"] == "adds")
    world.now_s += 61
    added = [action for action in plan_bookie(filled(world, 85), "q").actions if isinstance(action, act.SetReplicas)]
    assert added == [act.SetReplicas(5)], "the space does not wait"


def test_a_recommendation_is_renewed_once_a_minute_or_with_a_changed_spec() -> None:
    world = quiet()
    minutes(world, 1, load(adds_s=900))
    before = world.status()["autoscale"]
    world.loads = {disk.bookie: load(adds_s=50) for disk in world.disks.values()}
    for _ in range(5):
        world.now_s += 10
        world.reconcile()
    assert world.status()["autoscale"] == before
    world.change(autoscale=AUTO | {"load": {"adds": 10}})
    world.reconcile()
    assert world.status()["autoscale"]["desired"] == 6


def test_without_autoscale_the_status_recommends_nothing() -> None:
    world = running(4)
    minutes(world, 2, load(adds_s=9000))
    assert "autoscale" not in world.status()
