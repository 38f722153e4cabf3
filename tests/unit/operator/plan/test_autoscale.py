"""Bookies and volumes are scaled by used space: one step at a time, without oscillation."""

from dataclasses import replace
from typing import Any

import pytest

from quire_operator.plan import actions as act
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.observation import ObservedNamespace, PoolObservation
from tests.unit.operator.plan.small_world import GIB, World
from tests.unit.operator.plan.test_bookie import running

AUTO = {"min": 3, "max": 6, "highWatermark": 80, "lowWatermark": 30}


def observation(world: World, used_percent: int, *, total: int = 100 * GIB) -> PoolObservation:
    """Return the observation when every bookie has this used percentage."""
    seen = world.observe()
    free = total * (100 - used_percent) // 100
    bookies = {pod: replace(one, total_bytes=total, free_bytes=free) for pod, one in seen.bookies.items()}
    return replace(seen, bookies=bookies)


def asked(seen: PoolObservation) -> list[act.Action]:
    """Return the actions of a plan other than applied children."""
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
def test_one_bookie_is_added_or_removed(replicas: int, used_percent: int, expected: int | None) -> None:
    assert number(observation(quiet(replicas), used_percent)) == expected


def test_a_pool_with_blocked_scale_down_is_never_scaled_down() -> None:
    world = quiet()
    world.change(scaleDown={"strategy": "Block"})
    assert number(observation(world, 5)) is None, "it would wait forever, and never grow again"
    assert number(observation(world, 85)) == 5


def test_a_scaling_event_has_the_reason() -> None:
    events = [action for action in asked(observation(quiet(), 85)) if isinstance(action, act.Emit)]
    assert [(event.reason, event.message) for event in events] == [
        ("ScaledUp", "5 bookies: 85 % of the space is used, highWatermark is 80")
    ]


def test_scaling_waits_after_each_step() -> None:
    world = quiet()
    world.change(replicas=5)
    world.run()
    assert number(observation(world, 99)) is None
    world.now_s += 700
    assert number(observation(world, 99)) == 6


@pytest.mark.parametrize("trouble", ["ensemble", "under-replicated", "etcd", "silent bookie"])
def test_a_pool_that_cannot_be_drained_is_not_scaled_down(trouble: str) -> None:
    world = quiet()
    if trouble == "ensemble":
        world.namespaces = (ObservedNamespace("wide", 4),)
    elif trouble == "under-replicated":
        world.under_replicated = 1
    elif trouble == "etcd":
        world.etcd_away = True
    seen = observation(world, 5)
    if trouble == "silent bookie":
        seen = replace(seen, bookies=dict(list(seen.bookies.items())[:3]))
    assert number(seen) is None


def test_without_autoscale_nothing_is_scaled() -> None:
    world = running()
    world.now_s += 700
    assert asked(observation(world, 99)) == []


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


def test_a_full_volume_grows_by_a_step_up_to_the_maximum() -> None:
    resized = {action for action in asked(observation(growing(), 85)) if isinstance(action, act.ResizeClaim)}
    assert resized == {act.ResizeClaim(f"ledgers0-pool-bookie-{number}", "150Gi") for number in range(3)}
    resized = {
        action
        for action in asked(observation(growing("150Gi"), 85, total=150 * GIB))
        if isinstance(action, act.ResizeClaim)
    }
    assert {action.size for action in resized} == {"180Gi"}
    at_most = observation(growing("180Gi"), 99, total=180 * GIB)
    assert not any(isinstance(action, act.ResizeClaim) for action in asked(at_most))
    reported = next(one for one in plan_bookie(at_most, "q").status.conditions if one.type == "Stalled")
    assert (reported.reason, "reached max" in reported.message) == ("VolumesCannotGrow", True)


@pytest.mark.parametrize(
    ("size", "capacity", "total_gib", "used_percent"),
    [
        ("100Gi", "100Gi", 100, 79),  # not full
        ("150Gi", "100Gi", 100, 90),  # the last expansion is in progress
        ("150Gi", "150Gi", 100, 90),  # the volume has grown, and the bookie has not noticed yet
    ],
)
def test_a_volume_grows_once_each_time_it_is_full(size: str, capacity: str, total_gib: int, used_percent: int) -> None:
    seen = observation(growing(size, capacity), used_percent, total=total_gib * GIB)
    assert not any(isinstance(action, act.ResizeClaim) for action in asked(seen))


def test_a_storage_class_without_expansion_is_reported() -> None:
    world = growing()
    world.claims = {name: replace(claim, expandable=False) for name, claim in world.claims.items()}
    found = plan_bookie(observation(world, 90), "q")
    reported = next(one for one in found.status.conditions if one.type == "Stalled")
    assert "does not allow expansion: add bookies" in reported.message
    assert not any(isinstance(action, act.ResizeClaim) for action in found.actions)


def test_days_to_full_depend_on_the_recent_rate() -> None:
    world = running()
    resource = world.resource

    def after(hours: float, used_percent: int) -> dict[str, Any]:
        world.now_s += hours * 3600
        found = plan_bookie(observation(world, used_percent), "q").status
        resource["status"] = found.plain()
        assert found.capacity is not None
        return found.capacity.model_dump()

    assert after(0, 40)["days_to_full"] is None
    assert after(0.5, 41)["days_to_full"] is None, "too new"
    day = after(24, 50)
    assert day["bytes_per_day"] == pytest.approx(300 * GIB * 0.098, rel=0.01)
    assert day["days_to_full"] == 4, "45 % are left until the bookies become read-only"
    assert after(48, 30)["days_to_full"] is None, "used space decreases"


def test_the_last_scrub_is_the_oldest_of_all_bookies() -> None:
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
    assert found.finished_at is None, "one bookie has not completed a scrub yet"
