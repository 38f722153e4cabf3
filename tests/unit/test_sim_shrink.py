"""The shrinker leaves what it takes to fail, and nothing else; plans leave steps out without changing the others."""

from tests.sim.plan import Plan, Step
from tests.sim.shrink import Shrinker

STEPS = [Step(float(number), "crash", f"b{number}") for number in range(40)]


def chosen(plan: Plan) -> set[str]:
    """Whom a run with this plan strikes."""
    return {step.who for step in plan.choose(STEPS)}


def test_only_the_steps_that_it_takes_are_left() -> None:
    def run(plan: Plan) -> None:
        if {"b3", "b17", "b38"} <= chosen(plan):
            raise AssertionError("lost")

    shrinker = Shrinker(run, 500)
    assert shrinker.shrink()
    assert shrinker.best is not None and shrinker.best.kept == frozenset({3, 17, 38})
    assert "3 of 40 steps" in shrinker.report() and "lost" in shrinker.report()


def test_the_time_is_cut_where_it_still_fails() -> None:
    def run(plan: Plan) -> None:
        if "b3" in chosen(plan) and plan.seconds(100.0) >= 20.0:
            raise AssertionError("lost")

    shrinker = Shrinker(run, 500)
    assert shrinker.shrink()
    assert shrinker.best is not None and shrinker.best.span == 0.25


def test_a_seed_that_does_not_fail_is_not_shrunk() -> None:
    assert not Shrinker(lambda plan: None, 500).shrink()


def test_it_stops_after_so_many_runs_with_the_best_that_it_has() -> None:
    def run(plan: Plan) -> None:
        if {"b3", "b17"} <= chosen(plan):
            raise AssertionError("lost")

    shrinker = Shrinker(run, 4)
    assert shrinker.shrink() and shrinker.runs == 4
    assert shrinker.best is not None and {3, 17} <= set(shrinker.best.kept or ())


def test_a_calm_plan_leaves_everything_out_and_a_second_choice_counts_on() -> None:
    assert Plan(calm=True).choose(STEPS) == []
    plan = Plan(kept=frozenset({0, 41}))
    assert [step.who for step in plan.choose(STEPS)] == ["b0"]
    assert [step.who for step in plan.choose(STEPS)] == ["b1"]
