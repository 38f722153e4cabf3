"""One whole bookie whose disk fails, fills up or loses power at its k-th change, for every k; then it starts again.

A seed stands for one kind of fault at one k: the first `KINDS * STEPS * 2` seeds are all of them, in an order in which
any stretch of seeds is a fair sample. What the workload does, and when, comes from the seed as well.
"""

import asyncio
import errno

from quire_bookie.errors import DiskFullError, QuireError
from tests.sim.bookie_life import FOLDERS, BrokenPromiseError, GoneError, Life
from tests.sim.disk import SimDisk, Survival
from tests.sim.loop import SimLoop
from tests.sim.world import World

STEPS = 1009
"""A prime above the changes that a workload makes."""
ROUNDS = 12
KINDS = (
    "eio",  # once
    "eio for good",
    "short",  # half of the bytes arrive, then EIO
    "full",  # ENOSPC once
    "full for a while",
    "full for good",
    "short and full",
    "power none",
    "power all",
    "power random",
    "power in replay",  # twice: once while working, once while starting on what is left
    "eio in replay",
    "full in replay",
    "killed",  # the process alone: what was written and not synced is still there
)
GROWING = ("write", "create", "replace", "commit")


async def run(loop: SimLoop, seed: int) -> str:
    """One seed. BrokenPromiseError when the bookie loses, invents or denies something."""
    kind, several, at = KINDS[seed % len(KINDS)], seed // len(KINDS) % 2, seed * 263 % STEPS
    world = World(loop, seed)
    life = Life(world, **(FOLDERS if several else {}))
    survival: Survival = {"power all": "all", "power random": "random", "power in replay": "random"}.get(kind, "none")  # type: ignore[assignment]
    await life.start()
    if loop.plan.calm:
        await live(life, ROUNDS)
        await life.judge()
        return "nothing happened"
    plan(life, kind, at)
    await live(life, ROUNDS)
    if kind == "killed":
        life.place.disk.crashed = False
        world.kill_bookie("b1")
    elif kind.startswith("power") or kind.endswith("in replay"):
        life.die(survival)
    else:
        await end(life)
    if kind == "power in replay":
        await die_in_replay(life, at)
    elif kind.endswith("in replay"):
        await fail_in_replay(life, kind, at % 61)
    await come_back(life)
    await life.judge()
    if kind == "killed":  # what the dead process left in memory, the next one must not have built on
        life.die("none" if at % 2 else "random")
        await come_back(life)
        await life.judge()
    await live(life, 4)
    if life.place.disk.crashed or life.running.failed.done():
        raise BrokenPromiseError("it fails again although the fault is over")
    await life.stop()
    await come_back(life)
    await life.settle_deletions()
    await life.judge()
    return f"{kind} at {at}: {[(known.ledger, len(known.acked)) for known in life.known.values()]}"


def plan(life: Life, kind: str, at: int) -> None:
    """Arm the disk."""
    disk = life.place.disk
    if kind.startswith("power") or kind == "killed" or kind.endswith("in replay"):
        disk.on_crash = life.on_crash
        disk.crash_after(at)
        return
    fail(disk, kind, at)


def fail(disk: SimDisk, kind: str, at: int) -> None:
    """From the change `at` on."""
    disk.short_writes = kind.startswith("short")
    full = "full" in kind
    first, seen = disk.steps + at, 0

    def fault(operation: str, path: str) -> BaseException | None:
        nonlocal seen
        if disk.steps < first or (full and operation not in GROWING):
            return None
        seen += 1
        if seen > {"full for a while": 20, "eio for good": 1 << 30, "full for good": 1 << 30}.get(kind, 1):
            return None
        if full:
            return DiskFullError(f"{path}: {errno.ENOSPC}")
        return OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault


async def live(life: Life, rounds: int) -> None:
    """Work until it is done, or the bookie is."""
    try:
        wire = await life.connect()
        await life.world.loop.run_on(life.client, life.work(wire, rounds))
        wire.close()
    except GoneError:
        return


async def end(life: Life) -> None:
    """End a bookie with a failing disk: in order, or by the switch. Then the machine is off and on again."""
    chance = life.world.chance
    if chance.random() < 0.5:
        await life.stop()
    else:
        life.die("none")
    disk: SimDisk = life.place.disk
    assert disk.fault is None and not disk.crashed


async def die_in_replay(life: Life, at: int) -> None:
    """A start that ends in the middle, then another loss of power."""
    disk = life.place.disk
    disk.on_crash = life.on_crash
    disk.crash_after(at * 7 % 41)
    starting = life.world.loop.create_task(life.start())
    while not starting.done() and not disk.crashed:  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.01)
    if starting.done() and not starting.cancelled():
        starting.exception()
    life.die("random")


async def fail_in_replay(life: Life, kind: str, at: int) -> None:
    """A start that meets an error; when it survives that, it is stopped. Then the same disk without the error."""
    disk = life.place.disk
    fail(disk, kind, at)
    try:
        await life.start()
    except (QuireError, OSError):
        disk.fault = None
        return  # no power is lost: locks, ports and tasks of the failed start must be gone
    await end(life)


async def come_back(life: Life) -> None:
    """Start without a fault: it must work."""
    life.settle_unknowns()
    try:
        await life.start()
    except (QuireError, OSError) as error:
        raise BrokenPromiseError(f"it does not start again: {error!r}") from error
