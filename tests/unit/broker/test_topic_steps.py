"""Visits of many topics, during which other tasks run."""

import asyncio

from quire_broker.limits import TOPICS_PER_STEP
from quire_broker.topic_steps import in_steps


async def test_other_tasks_run_after_each_step_and_nothing_is_left_out() -> None:
    seen: list[int] = []
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(seen))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    async for number in in_steps(range(3 * TOPICS_PER_STEP)):
        seen.append(number)
    task.cancel()
    assert seen == list(range(3 * TOPICS_PER_STEP))
    assert turns == [step * TOPICS_PER_STEP - 1 for step in (1, 2, 3)]
