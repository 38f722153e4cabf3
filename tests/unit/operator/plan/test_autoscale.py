"""Bookies and volumes that follow how full they are: one step at a time, and never to and fro."""

from dataclasses import replace
from typing import Any

import pytest

from quire_operator.plan import actions as act
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.observation import ObservedNamespace, PoolObservation
from tests.unit.operator.plan.small_world import GIB, World
from tests.unit.operator.plan.test_bookie import running

AUTO = {"min": 3, "max": 6, "highWatermark": 80, "lowWatermark": 30}


def look(world: World, used_percent: int, *, total: int = 100 * GIB) -> PoolObservation:
    """What is seen when every bookie is so full."""
    seen = world.observe()
    free = total * (100 - used_percent) // 100
    bookies = {pod: replace(one, total_bytes=total, free_bytes=free) for pod, one in seen.bookies.items()}
    return replace(seen, bookies=bookies)


def asked(seen: PoolObservation) -> list[act.Action]:
    """What a pass wants beside the children."""
    return [action for action in plan_bookie(seen, "quire:1").actions if not isinstance(action, act.Apply)]


def number(seen: PoolObservation) -> int | None:
    return next((action.replicas for action in asked(seen) if isinstance(action, act.SetReplicas)), None)


def quiet(replicas: int = 4, **auto: int) -> World:
    world = running(replicas)
    world.change(autoscale=AUTO | auto)
    world.run()
    world.now_s += 700
    return world


@pytest.mark.parametrize(
    ("replicas", "used_percent", "expected"),
    [
        (4, 79, None),
        (4, 80, 5),
        (4, 99, 5),
        (6, 99, None),  # max
        (4, 23, None),  # 92 of 300: above 30 %
        (4, 22, 3),  # 88 of 300: below
        (3, 0, None),  # min
    ],
)
def test_one_bookie_more_or_less(replicas: int, used_percent: int, expected: int | None) -> None:
    assert number(look(quiet(replicas), used_percent)) == expected


def test_a_pool_whose_bookies_may_not_leave_is_never_asked_for_fewer() -> None:
    world = quiet()
    world.change(scaleDown={"strategy": "Block"})
    assert number(look(world, 5)) is None, "it would wait for ever, and never grow again"
    assert number(look(world, 85)) == 5


def test_a_changed_number_says_why() -> None:
    events = [action for action in asked(look(quiet(), 85)) if isinstance(action, act.Emit)]
    assert [(event.reason, event.message) for event in events] == [
        ("ScaledUp", "5 bookies: 85 % of the space is used, highWatermark is 80")
    ]


def test_after_a_step_the_figures_are_given_time() -> None:
    world = quiet()
    world.change(replicas=5)
    world.run()
    assert number(look(world, 99)) is None
    world.now_s += 700
    assert number(look(world, 99)) == 6


@pytest.mark.parametrize("trouble", ["ensemble", "under-replicated", "etcd", "silent bookie"])
def test_nothing_shrinks_that_could_not_be_drained(trouble: str) -> None:
    world = quiet()
    if trouble == "ensemble":
        world.namespaces = (ObservedNamespace("wide", 4),)
    elif trouble == "under-replicated":
        world.under_replicated = 1
    elif trouble == "etcd":
        world.etcd_away = True
    seen = look(world, 5)
    if trouble == "silent bookie":
        seen = replace(seen, bookies=dict(list(seen.bookies.items())[:3]))
    assert number(seen) is None


def test_without_the_section_nothing_follows() -> None:
    world = running()
    world.now_s += 700
    assert asked(look(world, 99)) == []


EXPAND: dict[str, Any] = {
    "journal": {"size": "10Gi"},
    "ledgers": {"size": "100Gi"},
    "autoExpand": {"threshold": 80, "step": "50Gi", "max": "180Gi"},
}


def growing(size: str | None = None, capacity: str | None = None) -> World:
    world = running()
    world.change(storage=EXPAND)
    world.run()
    for name, claim in world.claims.items():
        if claim.template == "ledgers0" and size is not None:
            world.claims[name] = replace(claim, size=size, capacity=capacity or size)
    return world


def test_a_full_volume_grows_by_a_step_and_never_above_the_most() -> None:
    resized = {action for action in asked(look(growing(), 85)) if isinstance(action, act.ResizeClaim)}
    assert resized == {act.ResizeClaim(f"ledgers0-pool-bookie-{number}", "150Gi") for number in range(3)}
    resized = {
        action for action in asked(look(growing("150Gi"), 85, total=150 * GIB)) if isinstance(action, act.ResizeClaim)
    }
    assert {action.size for action in resized} == {"180Gi"}
    at_most = look(growing("180Gi"), 99, total=180 * GIB)
    assert not any(isinstance(action, act.ResizeClaim) for action in asked(at_most))
    said = next(one for one in plan_bookie(at_most, "q").status.conditions if one.type == "Progressing")
    assert (said.reason, "reached max" in said.message) == ("VolumesCannotGrow", True)


@pytest.mark.parametrize(
    ("size", "capacity", "total_gib", "used_percent"),
    [
        ("100Gi", "100Gi", 100, 79),  # not full
        ("150Gi", "100Gi", 100, 90),  # the last step is under way
        ("150Gi", "150Gi", 100, 90),  # it is there, and the bookie has not looked yet
    ],
)
def test_a_volume_grows_once_for_each_time_that_it_fills(
    size: str, capacity: str, total_gib: int, used_percent: int
) -> None:
    seen = look(growing(size, capacity), used_percent, total=total_gib * GIB)
    assert not any(isinstance(action, act.ResizeClaim) for action in asked(seen))


def test_a_class_that_cannot_grow_is_said() -> None:
    world = growing()
    world.claims = {name: replace(claim, expandable=False) for name, claim in world.claims.items()}
    found = plan_bookie(look(world, 90), "q")
    said = next(one for one in found.status.conditions if one.type == "Progressing")
    assert "does not allow expansion: add bookies" in said.message
    assert not any(isinstance(action, act.ResizeClaim) for action in found.actions)


def test_days_to_full_follow_the_rate_of_the_last_days() -> None:
    world = running()
    resource = world.resource

    def after(hours: float, used_percent: int) -> dict[str, Any]:
        world.now_s += hours * 3600
        found = plan_bookie(look(world, used_percent), "q").status
        resource["status"] = found.plain()
        assert found.capacity is not None
        return found.capacity.model_dump()

    assert after(0, 40)["days_to_full"] is None
    assert after(0.5, 41)["days_to_full"] is None, "too new"
    day = after(24, 50)
    assert day["bytes_per_day"] == pytest.approx(300 * GIB * 0.098, rel=0.01)
    assert day["days_to_full"] == 4, "45 % are left until the bookies turn read-only"
    assert after(48, 30)["days_to_full"] is None, "it empties"


def test_the_last_scrub_is_that_of_the_bookie_that_is_furthest_behind() -> None:
    world = running()
    seen = world.observe()
    ends = {pod: 1_000_000.0 + 100 * number for number, pod in enumerate(sorted(seen.bookies))}
    bookies = {
        pod: replace(one, scrub_ended_s=ends[pod], scrub_damages=int(pod.endswith("2")))
        for pod, one in seen.bookies.items()
    }
    found = plan_bookie(replace(seen, bookies=bookies), "q").status.last_scrub
    assert found is not None
    assert (found.finished_at, found.damaged) == ("1970-01-12T13:46:40Z", 1)
    bookies["pool-bookie-1"] = replace(bookies["pool-bookie-1"], scrub_ended_s=None)
    found = plan_bookie(replace(seen, bookies=bookies), "q").status.last_scrub
    assert found is not None
    assert found.finished_at is None, "one has not ended a round yet"
