"""The operator is killed before and after each of its writes in each chapter of a ManagedLedger's life."""

from collections.abc import Callable

import pytest

from tests.sim.loop import SimLoop, simulate
from tests.sim.operator_api import NAMESPACE
from tests.sim.operator_brokers import SimNamespace
from tests.sim.operator_ledger import LEDGER, STORY, Stage, run_chapter


async def _before(chapter: str) -> tuple[bytes, Callable[[Stage], None]]:
    """Return the saved state at the begin of a chapter, and the action that begins it."""
    saved = Stage.make().saved()
    for name, begin in STORY:
        if name == chapter:
            return saved, begin
        saved = (await run_chapter(saved, begin)).saved()
    raise AssertionError(f"unknown chapter {chapter}")


SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


def test_without_kills_everything_is_created_once_and_removed_in_the_end() -> None:
    async def story(_: SimLoop) -> Stage:
        saved = Stage.make().saved()
        for name, begin in STORY:
            stage = await run_chapter(saved, begin)
            assert not stage.refusals, f"{name}: {stage.refusals}"
            saved = stage.saved()
        return stage

    stage = simulate(story, seed=1)
    assert set(stage.brokers.made.values()) == {1}
    assert set(stage.created.values()) == {1}
    runs = [path for path in stage.created if "/jobs/" in path]
    assert len(runs) == 5, "a run of each of four hours, and the requested one"
    assert [path for path in stage.created if "/secrets/" in path] == [f"{SECRETS}/orders-ledger-password"]
    assert not stage.brokers.namespaces
    assert LEDGER not in stage.kube.objects
    assert not stage.kube.of_kind("jobs")


def test_partitions_that_were_recorded_and_never_created_block_nothing() -> None:
    """The state after the operator is killed after its third request about topics in chapter `declared`."""

    async def story(_: SimLoop) -> Stage:
        return await run_chapter(Stage.make().saved(), _with_a_topic_of_which_only_a_record_is_there)

    stage = simulate(story, seed=1)
    assert not stage.refusals
    assert stage.kube.objects[LEDGER]["status"]["state"] == "Open"
    assert stage.brokers.made["topic bare-partition-1"] == 1


def _with_a_topic_of_which_only_a_record_is_there(stage: Stage) -> None:
    stage.brokers.tenants.add("shop")
    stage.brokers.namespaces["shop/orders"] = SimNamespace(partitioned={"bare": 2})
    stage.declare()


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [name for name, _ in STORY])
def test_an_operator_killed_around_any_write_reaches_the_same_state_and_creates_nothing_twice(
    chapter: str,
) -> None:
    async def chapters(_: SimLoop) -> None:
        saved, begin = await _before(chapter)
        whole = await run_chapter(saved, begin)
        writes, expected = whole.kube.writes, whole.outcome()
        assert writes
        for write in range(1, writes + 1):
            for before in (True, False):
                where = f"killed {'before' if before else 'after'} write {write} of {writes}"
                stage = await run_chapter(saved, begin, (write, before))
                assert stage.kills == 1, where
                assert not stage.refusals, f"{where}: {stage.refusals}"
                assert stage.outcome() == expected, where

    simulate(chapters, seed=1, time_limit_s=1e9)
