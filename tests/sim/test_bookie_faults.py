"""Single named faults on one whole bookie: bugs found by simulation, the clock, flipped and torn bytes.

`fault_scenario` covers every change of the disk; these tests check specific ones.
"""

import copy
import logging
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.journal.format import GROUP_MAGIC
from quire_bookie.server.start.storage_folders import CURRENT
from tests.sim.__main__ import run_seed
from tests.sim.bookie_life import FOLDERS, Life
from tests.sim.disk import SECTOR_BYTES, SimDisk
from tests.sim.fault_scenario import come_back, fail, live
from tests.sim.loop import SimLoop, simulate
from tests.sim.world import SimClock, World
from tests.support.sampling import one_in

DAY_MS = 24 * 3_600_000
DAMAGES = int(os.environ.get("QUIRE_DAMAGES", "6"))
"""Number of damages of each kind in each kind of file; `QUIRE_DAMAGES=200` in the environment runs more."""
Scene = Callable[[Life], Coroutine[Any, Any, None]]


def run_scene(scene: Scene, seed: int = 1) -> None:
    """Run a scene with one bookie on its own loop; errors of background tasks fail it."""

    async def scenario(loop: SimLoop) -> None:
        life = Life(World(loop, seed), **FOLDERS)
        await life.start()
        await scene(life)
        assert not loop.failures

    simulate(scenario, seed=seed)


# ---- found by simulation
def test_a_change_of_storage_that_fails_after_its_caller_was_cancelled_is_not_an_unhandled_error() -> None:
    run_seed("faults", 196)


def test_a_journal_file_whose_name_a_killed_process_did_not_sync_is_not_lost_with_the_next_power_cut() -> None:
    run_seed("faults", 4815)


# ---- logs of the next start
@pytest.mark.parametrize("kind", ["eio", "short", "full permanently"])
def test_after_a_disk_failure_the_next_start_logs_what_it_replayed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire.server")

    async def scene(life: Life) -> None:
        fail(life.place.disk, kind, 100)  # after the first acknowledgements
        await live(life, 6)
        life.die("none")
        caplog.clear()
        await come_back(life)
        await life.check()
        (line,) = [each.getMessage() for each in caplog.records if "opened its folders" in each.getMessage()]
        assert "replayed after an unclean end" in line

    run_scene(scene)


def test_a_bookie_whose_disk_fails_logs_that_ends_and_accepts_no_more_writes(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(life: Life) -> None:
        fail(life.place.disk, "eio", 30)
        await live(life, 6)
        assert "Input/output error" in str(life.running.failed.result())
        assert any(each.levelno >= logging.CRITICAL and "refuses all writes" in each.message for each in caplog.records)
        await life.stop()

    run_scene(scene)


# ---- the clock
class ShiftedClock(SimClock):
    """A wall clock that was set to a wrong time."""

    def __init__(self, loop: SimLoop, shift_ms: int) -> None:
        super().__init__(loop)
        self._shift_ms = shift_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, shifted."""
        return super().now_ms() + self._shift_ms


@pytest.mark.parametrize("shift_ms", [-10 * DAY_MS, 10 * DAY_MS, -1_700_000_000_000])
def test_a_clock_set_between_runs_does_not_change_what_a_bookie_keeps_and_removes(shift_ms: int) -> None:
    async def scene(life: Life) -> None:
        world = life.world
        await live(life, 10)
        await life.stop()
        world.clock = ShiftedClock(world.loop, shift_ms)
        await come_back(life)
        assert any(path.startswith("/ledgers/available/b1") for path in world.metadata.nodes)
        await life.check()
        await live(life, 10)
        await life.settle_deletions()
        await life.check()
        assert life.running.storage.stats.ledgers_deleted > 0
        life.die("none")
        world.clock = SimClock(world.loop)
        await come_back(life)
        await life.settle_deletions()
        await life.check()
        assert life.running.scrubbing.stats.rounds > 0
        await life.stop()

    run_scene(scene)


# ---- flipped and torn bytes
def flip(disk: SimDisk, path: str, chance: random.Random) -> None:
    """Flip one bit."""
    disk.corrupt(path, chance.randrange(_end(disk, path)), 1 << chance.randrange(8))


def wipe(disk: SimDisk, path: str, chance: random.Random) -> None:
    """Replace a sector by zeros, as if it had never been written."""
    end = _end(disk, path)
    start = chance.randrange(end) // SECTOR_BYTES * SECTOR_BYTES
    for offset in range(start, min(end, start + SECTOR_BYTES)):
        disk.corrupt(path, offset, disk.content(path)[offset])


def cut(disk: SimDisk, path: str, chance: random.Random) -> None:
    """Cut off the rest of the file."""
    disk.cut(path, chance.randrange(_end(disk, path)))


def _end(disk: SimDisk, path: str) -> int:
    """Return the end of the bytes to damage: the last journal group could be a torn write, never acknowledged."""
    content = disk.content(path)
    if "/journal-" in path:
        return max(1, content.rfind(GROUP_MAGIC))
    return len(content)


@one_in(3)
@pytest.mark.parametrize("damage", [flip, wipe, cut])
@pytest.mark.parametrize("name", ["journal-", ".qlog", "last-mark", "index.proof", "VERSION", "PLACE", "STATE"])
@pytest.mark.parametrize("clean", [True, False])
def test_damage_is_named_and_never_returned_as_data_nor_as_no_such_entry(
    name: str, damage: Callable[[SimDisk, str, random.Random], None], clean: bool, every: int
) -> None:
    async def scene(life: Life) -> None:
        await live(life, 10)
        if clean:
            await life.stop()
        else:
            life.die("none")
        life.settle_unknowns()
        life.damaged = True
        disk, chance = life.place.disk, random.Random(name)
        paths = sorted(path for path in disk._names if name in path)
        for _ in range(0, DAMAGES, every):
            life.place.disk = copy.deepcopy(disk)
            path = chance.choice(paths)
            damage(life.place.disk, path, chance)
            await _start_and_check(life, path)
            life.die("none")

    run_scene(scene)


async def _start_and_check(life: Life, path: str) -> None:
    try:
        await life.start()
    except (StartupError, DamagedError) as error:
        folder = path.rpartition("/")[0].removesuffix(f"/{CURRENT}")
        assert folder in str(error), f"{path}: {error}"
        return
    await life.check()
