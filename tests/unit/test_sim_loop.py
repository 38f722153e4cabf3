"""The end of a simulated process: nothing of it runs any more, and nothing is reported as forgotten."""

import asyncio
import gc
import warnings

from tests.sim.loop import SimLoop, simulate


def test_a_task_that_its_dead_process_never_began_is_let_go_without_a_step_and_without_a_warning() -> None:
    steps: list[str] = []

    async def never() -> None:
        steps.append("never")

    async def waiting() -> None:
        try:
            steps.append("waiting")
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    async def scene(loop: SimLoop) -> None:
        node = loop.start_node("host")

        async def process() -> None:
            tasks.append(asyncio.ensure_future(waiting()))
            await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(never()))
            loop.kill(node)

        tasks: list[asyncio.Task[None]] = [loop.run_on(node, process())]
        await asyncio.sleep(1)
        assert len(tasks) == 3
        assert steps == ["waiting"]

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        simulate(scene, seed=1)
        gc.collect()
    assert [str(each.message) for each in found] == []
    assert "never" not in steps
