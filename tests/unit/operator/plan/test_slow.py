"""Slow bookies: which minutes count, when one is reported, and whether it is replaced."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from quire_operator.api.operations import Step
from quire_operator.api.slow_bookies import SlowBookies
from quire_operator.plan import slow
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.observation import ObservedLoad, ObservedNamespace, PoolObservation
from tests.support.sampling import one_in
from tests.unit.operator.plan.small_world import World
from tests.unit.operator.plan.test_bookie import pods_asked_for, reasons, running

SLOW = "pool-bookie-1"
REPLACE = {"action": "Replace", "windows": 3}


def load(journal_ms: float | None, adds: int = 1000, add_ms: float | None = None) -> ObservedLoad:
    journal_s = None if journal_ms is None else journal_ms / 1000
    return ObservedLoad(60.0, adds // 20, journal_s, adds, journal_s if add_ms is None else add_ms / 1000)


def loads(world: World, by_pod: Mapping[str, ObservedLoad | None]) -> PoolObservation:
    """Return the observation in which the bookies report these loads."""
    seen = world.observe()
    return replace(
        seen, bookies={pod: replace(one, load=by_pod.get(pod, load(2))) for pod, one in seen.bookies.items()}
    )


def minutes(world: World, count: int, by_pod: Mapping[str, ObservedLoad | None]) -> None:
    """Reconcile once a minute, at whose end the bookies report these loads; the others write in 2 ms."""
    world.loads = {world.disks[pod].bookie: by_pod.get(pod, load(2)) for pod in world.pods}
    for _ in range(count):
        world.now_s += 61
        world.reconcile()
        world.settle()


def condition(world: World) -> tuple[str, str]:
    found = world.condition("SlowBookie")
    return found["status"], found["reason"]


@pytest.mark.parametrize(
    ("journal_ms", "peers_ms", "spec", "expected"),
    [
        (19.9, 1, {}, None),  # below the floor, and above half of it
        (20, 1, {}, True),
        (9.9, 1, {}, False),
        (49, 10, {}, None),  # the factor is 5
        (50, 10, {}, True),
        (24, 10, {}, False),
        (500, 101, {}, None),  # all are slow
        (500, 400, {}, False),
        (30, 10, {"factor": 3}, True),
        (30, 1, {"floor": "100ms"}, False),
    ],
)
def test_a_minute_is_slow_good_or_neither(
    journal_ms: float, peers_ms: float, spec: dict[str, Any], expected: bool | None
) -> None:
    one = slow.Comparison(60.0, journal_ms / 1000, peers_ms / 1000, None, None, 2)
    assert slow.is_slow(one, SlowBookies.model_validate(spec)) is expected


@pytest.mark.parametrize(
    ("by_pod", "compared"),
    [
        ({}, {"pool-bookie-0": 2, "pool-bookie-1": 2, "pool-bookie-2": 2}),
        ({SLOW: None}, {}),  # an earlier version, or the first minute: two cannot be compared
        ({SLOW: load(500, adds=99)}, {}),
        ({SLOW: load(None, adds=0)}, {}),
        ({SLOW: load(500, adds=100)}, {"pool-bookie-0": 2, "pool-bookie-1": 2, "pool-bookie-2": 2}),
    ],
)
def test_a_bookie_is_compared_with_at_least_two_that_write(
    by_pod: dict[str, ObservedLoad | None], compared: dict[str, int]
) -> None:
    found = slow.comparisons(loads(running(3), by_pod))
    assert {pod: one.peers for pod, one in found.items()} == compared


def test_the_peers_are_compared_by_their_median() -> None:
    found = slow.comparisons(loads(running(4), {SLOW: load(500), "pool-bookie-3": load(300, add_ms=40)}))
    assert (found[SLOW].journal_s, found[SLOW].peers_journal_s, found[SLOW].peers_add_s) == (0.5, 0.002, 0.002)
    assert found["pool-bookie-0"].peers_journal_s == 0.3, "with half of the bookies slow, the good ones are not slow"


def test_a_bookie_that_stays_slow_is_reported_with_evidence_once() -> None:
    world = running(4)
    minutes(world, 9, {SLOW: load(180, add_ms=200)})
    assert condition(world) == ("False", "NoneFound")
    (row,) = world.status()["slowBookies"]
    assert (row["pod"], row["windows"], row["slow"]) == (SLOW, 9, False)
    minutes(world, 1, {SLOW: load(180, add_ms=200)})
    assert condition(world) == ("True", "SlowJournal")
    message = world.condition("SlowBookie")["message"]
    assert message == (
        f"{SLOW} ({world.disks[SLOW].bookie}): 99 % of its journal writes take up to 180 ms, the median of 3 other "
        f"bookies is 2.0 ms; adds: 200 ms, peers 2.0 ms; since {row['since']}; not replaced: slowBookies.action is "
        "Report"
    )
    version = world.status()
    minutes(world, 30, {SLOW: load(170)})
    assert world.status() == version, "without news the status is not written"
    assert reasons(world) == ["SlowBookie"]
    assert world.condition("Ready")["status"] == "True"
    assert not world.drains and not world.replaced


def test_a_reported_bookie_is_cleared_after_as_many_good_minutes() -> None:
    world = running(3)
    minutes(world, 10, {SLOW: load(180)})
    minutes(world, 9, {})
    assert condition(world)[0] == "True", "a quiet hour of a bad disk clears nothing"
    minutes(world, 1, {SLOW: load(15)})
    assert condition(world)[0] == "True", "a minute in between changes nothing"
    minutes(world, 1, {})
    assert condition(world) == ("False", "NoneFound")
    assert world.status()["slowBookies"] == []
    assert reasons(world) == ["SlowBookie", "SlowBookieRecovered"]


def test_a_disk_that_is_slow_now_and_then_is_reported_if_it_is_slow_more_often() -> None:
    world = running(3)
    for _ in range(20):
        minutes(world, 1, {SLOW: load(180)})
        minutes(world, 1, {})
    assert condition(world)[0] == "False"
    for _ in range(9):
        minutes(world, 2, {SLOW: load(180)})
        minutes(world, 1, {})
    assert condition(world)[0] == "True"


def test_overlapping_windows_count_once_and_silent_bookies_keep_their_count() -> None:
    world = running(3)
    minutes(world, 4, {SLOW: load(180)})
    for _ in range(20):
        world.reconcile()
    assert world.status()["slowBookies"][0]["windows"] == 4
    minutes(world, 20, dict.fromkeys(world.pods))
    assert world.status()["slowBookies"][0]["windows"] == 4
    assert condition(world) == ("False", "NotCompared")
    minutes(world, 6, {SLOW: load(180)})
    assert condition(world)[0] == "True"


def test_a_slow_bookie_is_copied_and_replaced_by_one_that_avoids_its_node() -> None:
    world = running(4)
    world.change(slowBookies=REPLACE)
    old, node = world.disks[SLOW], world.pods[SLOW].node
    minutes(world, 4, {SLOW: load(180)})
    operation = world.status()["operation"]
    assert (operation["type"], operation["step"], operation["pod"]) == ("Replace", "Copying", SLOW)
    assert world.pods[SLOW].ready and not world.replaced, "it serves while its ledgers are copied"
    world.reconcile()
    assert world.stateful_set is not None
    affinity = world.stateful_set["spec"]["template"]["spec"]["affinity"]
    (preference,) = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preference["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
    world.run()
    assert world.replaced == [SLOW, SLOW], "at last the new one is updated: its template names the node to avoid"
    assert old.ledgers == 0 and old in world.retained, "its volumes stay by default"
    assert world.disks[SLOW].bookie != old.bookie and old.bookie not in world.cookies
    assert "nodeAffinity" not in world.stateful_set["spec"]["template"]["spec"]["affinity"]
    assert condition(world)[0] == "False"
    assert world.status()["slowBookies"] == [], "the new bookie has another disk"
    assert pods_asked_for(world) == 4
    assert [reason for reason in reasons(world) if "Replace" in reason] == [
        *("ReplaceStarted", "ReplaceUnbinding", "ReplaceRejoining", "ReplaceRemovingCookie", "ReplaceFinished"),
    ]


def under_replicated(world: World) -> None:
    world.under_replicated = 2


def without_metadata(world: World) -> None:
    world.etcd_away = True


def without_recovery(world: World) -> None:
    world.auditor = None


def wide(world: World) -> None:
    world.namespaces = (ObservedNamespace("wide", 4),)


def one_silent(world: World) -> None:
    world.pods["pool-bookie-3"] = replace(world.pods["pool-bookie-3"], ready=False)
    world.broken.add("quire:1")


def only_report(world: World) -> None:
    world.change(slowBookies={"action": "Report", "windows": 3})


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (only_report, "slowBookies.action is Report"),
        (under_replicated, "2 ledgers are under-replicated"),
        (without_metadata, "cannot determine whether all ledgers are fully replicated"),
        (without_recovery, "no auto-recovery is running"),
        (wide, "3 writable bookies would remain, but the ensemble of wide is 4"),
        (one_silent, "not every bookie responds: pool-bookie-3"),
    ],
)
def test_a_slow_bookie_stays_while_a_replacement_would_be_dangerous(
    prepare: Callable[[World], None], reason: str
) -> None:
    world = running(4)
    world.change(slowBookies=REPLACE)
    world.reconcile()
    prepare(world)
    minutes(world, 10, {SLOW: load(180)})
    assert condition(world)[0] == "True"
    assert f"not replaced: {reason}" in world.condition("SlowBookie")["message"]
    assert "operation" not in world.status()
    assert not world.drains and not world.replaced


def test_of_two_slow_bookies_the_slowest_goes_first_and_the_other_waits_for_a_day() -> None:
    world = running(6)
    world.change(slowBookies=REPLACE)
    both = {SLOW: load(180), "pool-bookie-4": load(90)}
    other = world.disks["pool-bookie-4"].bookie
    minutes(world, 4, both)
    assert world.status()["operation"]["pod"] == SLOW
    minutes(world, 60, {"pool-bookie-4": load(90)})
    assert set(world.replaced) == {SLOW}
    assert world.disks["pool-bookie-4"].bookie == other
    assert "within slowBookies.replaceInterval (24h)" in world.condition("SlowBookie")["message"]
    world.now_s += 86_400
    minutes(world, 60, {"pool-bookie-4": load(90)})
    assert set(world.replaced) == {SLOW, "pool-bookie-4"}


@pytest.mark.parametrize("cause", ["Report", "restarted", "another lost"])
def test_until_its_volumes_are_released_the_replacement_is_cancelled(cause: str) -> None:
    world = running(5)
    world.change(slowBookies=REPLACE)
    old = world.disks[SLOW]
    minutes(world, 4, {SLOW: load(180)})
    assert world.status()["operation"]["step"] == Step.COPYING.value
    assert old.bookie in world.drains
    if cause == "Report":
        only_report(world)
    elif cause == "restarted":
        world.pods[SLOW] = replace(world.pods[SLOW], uid="another", ready=False)
    else:
        world.lose_node("pool-bookie-3")
        world.now_s += 700
        world.audited = False
        world.reconcile()
        world.now_s += 700
    world.reconcile()
    assert old.bookie not in world.drains
    operation = world.status().get("operation")
    assert operation is None or operation["pod"] == "pool-bookie-3"
    assert world.disks[SLOW] is old and not world.replaced


@one_in(5)
def test_an_operator_killed_at_any_moment_replaces_a_slow_bookie_once(every: int) -> None:
    for moment in range(1, 60 + every, every):
        world = running(4)
        world.change(slowBookies=REPLACE)
        old = world.disks[SLOW].bookie
        minutes(world, 3, {SLOW: load(180)})
        world.done, world.kill_at = 0, moment
        world.now_s += 61
        world.run()
        assert set(world.replaced) == {SLOW}, moment
        assert old not in world.cookies and world.disks[SLOW].bookie != old, moment
        if world.done < moment:
            return
    raise AssertionError("the operation has more moments than this test")


def test_a_plan_never_replaces_without_figures() -> None:
    world = running(4)
    world.change(slowBookies=REPLACE)
    for _ in range(30):
        found = plan_bookie(loads(world, dict.fromkeys(world.pods)), "quire:1")
        assert found.status.operation is None and found.status.slow_bookies == ()
        world.now_s += 61
