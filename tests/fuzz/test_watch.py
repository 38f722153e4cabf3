"""The watch of the fuzzers finds each kind of fault."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tests.fuzz import watch
from tests.fuzz.watch import watched


async def log_an_error() -> None:
    logging.getLogger("quire.test").error("something failed")


async def log_a_trace() -> None:
    try:
        raise ValueError("a defect")
    except ValueError:
        logging.getLogger("quire.test").warning("that", exc_info=True)


async def lose_an_exception() -> None:
    async def fail() -> None:
        raise ValueError("a defect")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    del task


async def fail_in_a_callback() -> None:
    def fail() -> None:
        raise ValueError("a defect")

    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0)


async def block() -> None:
    sum(range(200_000))


async def nothing() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (log_an_error, "something failed"),
        (log_a_trace, "a defect"),
        (lose_an_exception, "a defect"),
        (fail_in_a_callback, "a defect"),
        (block, "of processor time"),
    ],
)
def test_it_finds(fault: Callable[[], Awaitable[None]], finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STEP_CPU_S_MAX", 0.0 if fault is block else 60.0)
    with asyncio.Runner() as runner, watched(runner.get_loop()) as findings:
        runner.run(fault())  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match=finding):
            findings.check()


def test_it_finds_a_task_that_ended_and_reports_it_once() -> None:
    with asyncio.Runner() as runner, watched(runner.get_loop()) as findings:

        async def begin() -> None:
            findings.keep_alive({asyncio.create_task(nothing(), name="the flush")})

        runner.run(begin())
        runner.run(nothing())
        with pytest.raises(AssertionError, match="the task the flush has ended"):
            findings.check()
        findings.check()


def test_it_finds_nothing_where_nothing_happens() -> None:
    with asyncio.Runner() as runner, watched(runner.get_loop()) as findings:
        runner.run(nothing())
        findings.check()
