"""Tests of the durations of start steps."""

import asyncio

import pytest

from quire_bookie.env.machine import process_age_s
from quire_bookie.server.start.start_steps import StartSteps


async def test_a_step_is_measured_even_if_it_fails_and_repeated_steps_add_up() -> None:
    loop = asyncio.get_running_loop()
    now = 10.0
    loop.time = lambda: now  # type: ignore[method-assign]
    steps = StartSteps()
    with pytest.raises(ValueError, match="no"), steps.step("index"):
        now += 0.25
        raise ValueError("no")
    with steps.step("index"):
        now += 0.5
    steps.note("total", 2.0)
    assert steps.seconds == {"index": 0.75, "total": 2.0}
    assert steps.text() == "index 0.750, total 2.000"


def test_this_process_has_an_age_that_grows() -> None:
    first = process_age_s()
    assert first is None or 0.0 < first <= (process_age_s() or 0.0)
