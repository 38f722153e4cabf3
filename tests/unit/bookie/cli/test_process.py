"""A service as a process: signals before the event loop exists, and during the start."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from quire_bookie.cli.early_signals import STOP_SIGNALS, EarlySignals, early_signals
from quire_bookie.cli.process import run_service, unless_stopped
from quire_bookie.cli.service_options import EventLoop
from quire_bookie.errors import StartupError


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_before_the_loop_exists_is_remembered_and_stops_the_service(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    seen: list[bool] = []

    async def service(stop: asyncio.Event) -> int:
        seen.append(stop.is_set())
        return 7

    with early_signals() as early:
        os.kill(os.getpid(), number)
        assert early.asked
        assert [signal.getsignal(each) for each in STOP_SIGNALS] == [signal.SIG_DFL] * 2, (
            "a second signal ends the process at once"
        )
        assert run_service(service, EventLoop.ASYNCIO, early) == 7
    assert seen == [True]
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_while_the_service_runs_stops_it(number: signal.Signals) -> None:
    async def service(stop: asyncio.Event) -> int:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        await stop.wait()
        return 0

    with early_signals():
        assert run_service(service, EventLoop.ASYNCIO, EarlySignals()) == 0


async def test_a_start_that_is_not_stopped_returns_its_result() -> None:
    async def start() -> str:
        await asyncio.sleep(0)
        return "running"

    assert await unless_stopped(start(), asyncio.Event()) == "running"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_stop_cancels_the_start_and_waits_until_it_has_cleaned_up() -> None:
    stop, given_back = asyncio.Event(), []

    async def start() -> str:
        try:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("the event is never set")
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            given_back.append(True)

    asyncio.get_running_loop().call_soon(stop.set)
    assert await unless_stopped(start(), stop) is None
    assert given_back == [True]


async def test_a_start_that_completes_while_it_is_stopped_must_be_stopped_by_the_caller() -> None:
    stop = asyncio.Event()

    async def start() -> str:
        stop.set()
        return "running"

    assert await unless_stopped(start(), stop) == "running"


async def test_a_start_that_fails_reports_why_even_while_it_is_stopped() -> None:
    stop = asyncio.Event()

    async def start() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise StartupError("the disk is gone") from None
        raise AssertionError("the event is never set")

    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(StartupError, match="the disk is gone"):
        await unless_stopped(start(), stop)


async def test_the_start_is_cancelled_with_its_caller() -> None:
    ended = []

    async def start() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    waiting = asyncio.ensure_future(unless_stopped(start(), asyncio.Event()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [True]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_end_of_the_process_collects_nothing_that_the_service_has_made() -> None:
    program = """
import asyncio
from quire_bookie.cli.early_signals import EarlySignals
from quire_bookie.cli.process import run_service
from quire_bookie.cli.service_options import EventLoop

class Topic:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("collected", flush=True)

async def service(stop):
    topics = [Topic() for _ in range(3)]
    return 0 if topics else 1

print("code", run_service(service, EventLoop.ASYNCIO, EarlySignals()), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["code 0", ""], done.stderr
