"""Volumes under load: a full pool gets a bookie, volumes grow while in use, a bookie with a slow disk is replaced."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import nodes
from tests.e2e.kube import Manifest, condition, until
from tests.e2e.stack import BOOKIE_PODS, Stack

Measured = Callable[..., None]
QUIET_S = 600.0
"""The operator adds a bookie after the pool was quiet for this long."""
WELL_S = 400.0
GROWN_S = 240.0
FOUND_S = 420.0
REPLACED_S = 900.0
FREE_PERCENT = 30
"""Percentage of a volume that stays free when a test fills it."""


@pytest.fixture
def filled(bounded: Stack) -> Iterator[Callable[[str], None]]:
    """Return a function that fills the ledger volume of a pod, which is emptied at the end."""
    done: list[tuple[str, str]] = []

    def fill(pod: str) -> None:
        (volume,), node = bounded.volumes_of(pod, "ledgers"), _node_of(bounded, pod)
        done.append((node, volume))
        nodes.fill(node, volume, leave_kib=nodes.space_kib(node, volume)[0] * FREE_PERCENT // 100)

    yield fill
    for node, volume in done:
        nodes.empty(node, volume)


@pytest.mark.timeout(QUIET_S + 3 * WELL_S)
def test_a_pool_that_fills_gets_a_bookie_by_itself(
    bounded: Stack, filled: Callable[[str], None], measured: Measured
) -> None:
    stack = bounded
    for pod in stack.cluster.pods(BOOKIE_PODS):
        filled(pod["metadata"]["name"])
    bookies = stack.replicas
    stack.change_pool(autoscale={"min": bookies, "max": bookies + 1, "highWatermark": 50, "lowWatermark": 1})
    start_s = time.monotonic()
    try:
        until(
            "a bookie is added", lambda: stack.pool()["spec"]["replicas"] == bookies + 1, QUIET_S + WELL_S, poll_s=2.0
        )
        stack.wait_until_well(WELL_S, replicas=bookies + 1)
        measured("a bookie more after", time.monotonic() - start_s)
        assert "ScaledUp" in stack.events("Bookie")
    finally:
        stack.change_pool(autoscale=None, replicas=bookies)
    stack.wait_until_well(REPLACED_S)
    stack.goes_on()
    stack.check()


def test_volumes_grow_while_they_are_used(bounded: Stack, measured: Measured) -> None:
    stack, before = bounded, _pods(bounded)
    space = stack.pool()["status"]["capacity"]["total"]
    start_s = time.monotonic()
    stack.change_pool(storage={"ledgers": {"size": "4Gi"}})
    until("every claim has its size", lambda: set(_sizes(stack).values()) == {"4Gi"}, GROWN_S)
    grown = space * 5 // 4
    until("the bookies report it", lambda: stack.pool()["status"]["capacity"]["total"] >= grown, GROWN_S)
    measured("four volumes grown after", time.monotonic() - start_s)
    stack.wait_until_well(WELL_S)
    assert "ExpandFinished" in stack.events("Bookie")
    assert _pods(stack) == before, "no bookie was restarted"
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check()


def test_a_volume_that_fills_grows_by_itself_and_no_other_one(
    bounded: Stack, filled: Callable[[str], None], measured: Measured
) -> None:
    stack, full = bounded, "pool-bookie-1"
    before = _sizes(stack)
    stack.change_pool(storage={"autoExpand": {"threshold": 65, "step": "1Gi", "max": "6Gi"}})
    try:
        filled(full)
        start_s = time.monotonic()
        larger = before | {full: f"{int(before[full].removesuffix('Gi')) + 1}Gi"}
        until("its volume has grown", lambda: _sizes(stack) == larger, GROWN_S)
        measured("grown after", time.monotonic() - start_s)
        # With the new space it is below the threshold again.
        stack.wait_until_well(WELL_S)
        assert _sizes(stack) == larger
    finally:
        stack.change_pool(storage={"autoExpand": None})
    stack.goes_on()
    stack.check()


@pytest.mark.timeout(FOUND_S + REPLACED_S + 2 * WELL_S)
def test_a_bookie_with_a_slow_disk_is_reported_with_its_figures_and_replaced(
    bounded: Stack, measured: Measured
) -> None:
    stack, slow = bounded, "pool-bookie-2"
    before, node = stack.ids(), _node_of(bounded, slow)
    (journal,) = stack.volumes_of(slow, "journal")
    stack.change_pool(slowBookies={"action": "Replace", "windows": 2})
    start_s = time.monotonic()
    nodes.slow_down(node, journal)
    try:
        found = until("it is found", lambda: _slow(stack), FOUND_S)
        measured("found after", time.monotonic() - start_s)
        assert slow in found["message"], found
        assert "of its journal writes take up to" in found["message"], found
        assert not any(pod in found["message"] for pod in before.keys() - {slow}), found
        until("another bookie is in its place", lambda: stack.ids().get(slow) not in (None, before[slow]), REPLACED_S)
        measured("replaced after", time.monotonic() - start_s)
    finally:
        nodes.speed_up(node)
    stack.wait_until_well(WELL_S)
    after = stack.ids()
    assert {pod for pod in before if after[pod] != before[pod]} == {slow}
    assert _slow(stack) is None
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.change_pool(slowBookies=None)
    stack.check_all()


def _node_of(stack: Stack, pod: str) -> str:
    (node,) = [one["spec"]["nodeName"] for one in stack.cluster.pods(BOOKIE_PODS) if one["metadata"]["name"] == pod]
    return str(node)


def _pods(stack: Stack) -> dict[str, tuple[str, int]]:
    """Return the uid and the restarts of each bookie's pod."""
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in stack.cluster.pods(BOOKIE_PODS)
    }


def _sizes(stack: Stack) -> dict[str, str]:
    """Return what the ledger volume of each bookie holds, by pod."""
    claims = stack.cluster.items("v1", "PersistentVolumeClaim", BOOKIE_PODS)
    names = {f"-{pod['metadata']['name']}": pod["metadata"]["name"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    return {
        pod: claim["status"]["capacity"]["storage"]
        for claim in claims
        for ending, pod in names.items()
        if claim["metadata"]["name"].startswith("ledgers") and claim["metadata"]["name"].endswith(ending)
    }


def _slow(stack: Stack) -> Manifest | None:
    found = condition(stack.pool(), "SlowBookie")
    return found if found is not None and found["status"] == "True" else None
