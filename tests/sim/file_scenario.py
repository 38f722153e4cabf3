"""One whole bookie that loses power, and one of its journal's files is lost, older or cut when it starts again.

The seed draws the file, the damage and the time. The start must be refused until the file is restored, or lose nothing.
The bookie must notice even the loss of a journal's newest file.
"""

import asyncio
import random
from dataclasses import replace

from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.journal.format import HEADER_BLOCK_BYTES, JournalFormatError, decode_header
from quire_bookie.limits import KIB, MIB
from tests.sim.bookie_life import FOLDERS, BrokenPromiseError, Life
from tests.sim.disk import SimDisk
from tests.sim.fault_scenario import come_back, live
from tests.sim.loop import SimLoop
from tests.sim.world import World

ROUNDS_MAX = 12
DAMAGES = ("removed", "removed", "newest removed", "newest removed", "older", "cut")


async def run(loop: SimLoop, seed: int) -> str:
    """Run one seed. BrokenPromiseError if the bookie loses or denies an entry or a state."""
    world = World(loop, seed)
    chance = random.Random(seed)
    life = Life(world, **(FOLDERS if chance.random() < 0.3 else {}))
    # No flush moves the mark: several journal files are needed for the replay.
    world.flush_interval_s = (900.0, 1000.0)
    world.journal_settings = replace(world.journal_settings, file_bytes=128 * KIB, group_bytes_max=64 * KIB)
    world.storage_settings = replace(world.storage_settings, write_cache_bytes=16 * MIB)
    await life.start()
    await live(life, chance.randrange(2, ROUNDS_MAX))
    before = _copies(life.place.disk)
    await live(life, chance.randrange(1, ROUNDS_MAX))
    # One second later the witness covers every group.
    await asyncio.sleep(2.0)
    if chance.random() < 0.3:
        await life.stop()
    else:
        life.die("none")
    damage = "none" if loop.plan.calm else chance.choice(DAMAGES)
    path, content = _damage(life.place.disk, damage, before, chance)
    refused = await _start_or_put_back(life, path, content)
    await life.check()
    await live(life, 2)
    await life.stop()
    await come_back(life)
    await life.check()
    return f"{path} {damage}: {'refused' if refused else 'no loss'}"


def _journal_files(disk: SimDisk) -> list[str]:
    """Return the journal files by generation, spares first."""

    def generation(path: str) -> int:
        try:
            return decode_header(disk.content(path)[:HEADER_BLOCK_BYTES]).generation
        except JournalFormatError:
            return 0

    paths = [path for path in disk._names if "/journal-" in path and path.endswith(".log")]
    return sorted(paths, key=lambda path: (generation(path), path))


def _copies(disk: SimDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in _journal_files(disk)}


def _damage(disk: SimDisk, damage: str, before: dict[str, bytes], chance: random.Random) -> tuple[str, bytes]:
    """Damage one file while the bookie is down. Returns its path and its content before."""
    files = _journal_files(disk)
    newest = damage != "removed"
    path = files[-1] if newest else chance.choice(files)
    content = disk.content(path)
    if "removed" in damage:
        del disk._names[path]
        disk._durable_names.pop(path, None)
    elif damage == "cut":
        disk.cut(path, chance.randrange(len(content)))
    elif damage == "older" and path in before:
        inode = disk._names[path]
        inode.current[:] = inode.durable[:] = before[path]
    return path, content


async def _start_or_put_back(life: Life, path: str, content: bytes) -> bool:
    """Start; if that is refused, restore the file and start again. Returns whether it was refused."""
    life.settle_unknowns()
    try:
        await life.start()
    except (DamagedError, StartupError) as error:
        if path.rpartition("/")[0] not in str(error):
            raise BrokenPromiseError(f"the refusal does not name {path}: {error}") from error
        await life.place.disk.replace_file(path, content)
        await come_back(life)
        return True
    return False
