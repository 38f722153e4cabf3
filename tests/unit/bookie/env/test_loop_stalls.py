"""Samples of an event loop's delays: on time, late, and after the end."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

import pytest

from quire_bookie.env.loop_stalls import LoopStalls
from quire_bookie.limits import LOOP_SAMPLE_S

Ts = TypeVarTuple("Ts")


class Timers(asyncio.SelectorEventLoop):
    """A loop whose time and timers the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.due: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.due.append((when, callback, args))
        return asyncio.TimerHandle(when, callback, args, self)

    def fire(self, late_s: float) -> None:
        """Run the next timer, this much too late."""
        when, callback, args = self.due.pop(0)
        self.now_s = when + late_s
        callback(*args)


@pytest.fixture
def loop() -> Any:
    found = Timers()
    yield found
    found.close()


def started(loop: Timers) -> LoopStalls:
    stalls = LoopStalls()
    asyncio._set_running_loop(loop)
    try:
        stalls.start()
    finally:
        asyncio._set_running_loop(None)
    return stalls


def test_each_sample_counts_how_late_the_loop_is(loop: Timers) -> None:
    stalls = started(loop)
    for late_s in (0.0, 0.25, 0.0, 3.0):
        loop.fire(late_s)
    assert stalls.late.total == 4
    assert stalls.late.seconds == pytest.approx(3.25)
    assert stalls.longest_s == pytest.approx(3.0)


def test_a_sample_is_due_a_pause_after_the_one_before(loop: Timers) -> None:
    started(loop)
    loop.fire(0.25)
    assert loop.due[0][0] == pytest.approx(loop.now_s + LOOP_SAMPLE_S)


async def test_a_stopped_one_takes_no_sample() -> None:
    stalls = LoopStalls()
    stalls.start()
    stalls.stop()
    await asyncio.sleep(2 * LOOP_SAMPLE_S)
    assert stalls.late.total == 0
