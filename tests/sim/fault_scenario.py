"""One whole bookie whose disk fails, fills up or loses power at its k-th change, for every k; then it starts again.

A seed selects one kind of fault and one k: the first `KINDS * STEPS * 2` seeds cover all of them, in an order in which
any range of seeds is a fair sample. The seed also decides the operations of the workload and their times.
"""

import asyncio
import errno

from quire_bookie.errors import DiskFullError, QuireError
from tests.sim.bookie_life import FOLDERS, BrokenPromiseError, GoneError, Life
from tests.sim.disk import SimDisk, Survival
from tests.sim.loop import SimLoop
from tests.sim.world import World

STEPS = 1009
"""A prime above the number of changes of a workload."""
ROUNDS = 12
KINDS = (
    "eio",  # once
    "eio permanently",
    "short",  # half of the bytes arrive, then EIO
    "full",  # ENOSPC once
    "full for a while",
    "full permanently",
    "short and full",
    "power none",
    "power all",
    "power random",
    "power in replay",  # twice: once while working, once during the start after it
    "eio in replay",
    "full in replay",
    "killed",  # the process alone: unsynced writes survive
)
GROWING = ("write", "create", "replace", "commit")


async def run(loop: SimLoop, seed: int) -> str:
    """Run one seed. BrokenPromiseError if the bookie loses, invents or denies an entry or a state."""
    kind, several, at = KINDS[seed % len(KINDS)], seed // len(KINDS) % 2, seed * 263 % STEPS
    world = World(loop, seed)
    life = Life(world, **(FOLDERS if several else {}))
    survival: Survival = {"power all": "all", "power random": "random", "power in replay": "random"}.get(kind, "none")  # type: ignore[assignment]
    await life.start()
    if loop.plan.calm:
        await live(life, ROUNDS)
        await life.check()
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
    await life.check()
    if kind == "killed":  # the next process must not depend on unsynced writes of the killed one
        life.die("none" if at % 2 else "random")
        await come_back(life)
        await life.check()
    await live(life, 4)
    if life.place.disk.crashed or life.running.failed.done():
        raise BrokenPromiseError("the bookie fails again although the fault is over")
    await life.stop()
    await come_back(life)
    await life.settle_deletions()
    await life.check()
    return f"{kind} at {at}: {[(known.ledger, len(known.acked)) for known in life.known.values()]}"


def plan(life: Life, kind: str, at: int) -> None:
    """Arm the fault on the disk."""
    disk = life.place.disk
    if kind.startswith("power") or kind == "killed" or kind.endswith("in replay"):
        disk.on_crash = life.on_crash
        disk.crash_after(at)
        return
    fail(disk, kind, at)


def fail(disk: SimDisk, kind: str, at: int) -> None:
    """Let changes of the disk fail from number `at` on."""
    disk.short_writes = kind.startswith("short")
    full = "full" in kind
    first, seen = disk.steps + at, 0

    def fault(operation: str, path: str) -> BaseException | None:
        nonlocal seen
        if disk.steps < first or (full and operation not in GROWING):
            return None
        seen += 1
        if seen > {"full for a while": 20, "eio permanently": 1 << 30, "full permanently": 1 << 30}.get(kind, 1):
            return None
        if full:
            return DiskFullError(f"{path}: {errno.ENOSPC}")
        return OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault


async def live(life: Life, rounds: int) -> None:
    """Run the workload until it or the bookie ends."""
    try:
        wire = await life.connect()
        await life.world.loop.run_on(life.client, life.work(wire, rounds))
        wire.close()
    except GoneError:
        return


async def end(life: Life) -> None:
    """End a bookie with a failing disk, cleanly or by a power cut; then the machine is switched off and on."""
    chance = life.world.chance
    if chance.random() < 0.5:
        await life.stop()
    else:
        life.die("none")
    disk: SimDisk = life.place.disk
    assert disk.fault is None and not disk.crashed


async def die_in_replay(life: Life, at: int) -> None:
    """Cut the power in the middle of a start."""
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
    """Start with an error of the disk, and stop the bookie if it survives; then continue without the error."""
    disk = life.place.disk
    fail(disk, kind, at)
    try:
        await life.start()
    except (QuireError, OSError):
        disk.fault = None
        return  # no power is lost: locks, ports and tasks of the failed start must be gone
    await end(life)


async def come_back(life: Life) -> None:
    """Start without a fault, which must succeed."""
    life.settle_unknowns()
    try:
        await life.start()
    except (QuireError, OSError) as error:
        raise BrokenPromiseError(f"the bookie does not start again: {error!r}") from error
