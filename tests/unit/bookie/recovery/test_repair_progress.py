"""Tests the progress of running repairs: the present step, and the time since the last advance."""

import asyncio

from quire_bookie.model import LedgerId
from quire_bookie.recovery.repair_progress import RepairProgress
from tests.sim.loop import SimLoop, simulate

ONE, OTHER = LedgerId(1), LedgerId(2)


def test_a_step_and_its_parts_count_as_progress_of_their_ledger_only() -> None:
    async def work(_: SimLoop) -> None:
        progress = RepairProgress()
        progress.begin(ONE)
        progress.begin(OTHER)
        await asyncio.sleep(5)
        progress.step(ONE, "copying entries 0 to 9")
        assert (progress.idle_s(ONE), progress.idle_s(OTHER)) == (0, 5)
        assert progress.step_of(ONE) == "copying entries 0 to 9"
        assert progress.step_of(OTHER) == "reading its metadata"
        await asyncio.sleep(5)
        progress.advanced(OTHER)
        assert (progress.idle_s(ONE), progress.idle_s(OTHER)) == (5, 0)

    simulate(work, seed=1)


def test_a_check_of_a_ledger_that_is_not_in_repair_is_ignored() -> None:
    async def work(_: SimLoop) -> None:
        progress = RepairProgress()
        progress.step(ONE, "checking entries 0 to 9")
        progress.advanced(ONE)
        await asyncio.sleep(5)
        progress.begin(ONE)
        assert (progress.idle_s(ONE), progress.step_of(ONE)) == (0, "reading its metadata")
        progress.end(ONE)
        progress.advanced(ONE)
        progress.begin(ONE)

    simulate(work, seed=1)
