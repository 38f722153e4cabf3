"""Several bookies, each configured differently, on disks that are slow, fill up and lose unsynced data.

Every bookie draws its own settings: one folder of a kind or several (some on file systems of their own), caches of any
size, garbage collection, compaction and scrub at any pace; at most one does not sync its journal, or has none. Clients
write, read while others write, recover and delete ledgers. The histories check the entries read. In the end deleted
ledgers are removed everywhere, and no log is in quarantine, since no device returned wrong bytes.
"""

import asyncio
from dataclasses import replace

from quire_bookie.errors import QuireError
from quire_bookie.limits import KIB, MIB
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.collection_scenario import Scene, delete_some, read_everything, recover_one, settle, write_one
from tests.sim.faults import disturb
from tests.sim.history import LedgerHistory
from tests.sim.loop import SimLoop
from tests.sim.world import World

BOOKIES = 4
ROUNDS = 2
LEDGERS_PER_ROUND = 4
RISKY = "b1"
QUORUMS = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2))
"""Confirmed entries have two copies: the risky bookie may lose all of its entries."""
CLIENTS = ("writer", "reader")
KINDS = {
    "crash": 4,
    "kill": 2,
    "stop": 2,
    "start": 6,
    "power": 1,
    "slow disk": 3,
    "full disk": 2,
    "full mount": 2,
    "sync error": 1,
    "write error": 1,
    "break": 2,
    "metadata slow": 1,
}


async def run(loop: SimLoop, seed: int) -> list[LedgerHistory]:
    """Run one seed."""
    world = World(loop, seed)
    world.disk_check_interval_s = world.chance.choice((0.2, 2.0))
    for number in range(1, BOOKIES + 1):
        _set_up(world, f"b{number}")
    await world.start_bookies(BOOKIES)
    for place in world.bookies.values():
        if world.chance.random() < 0.5:
            place.disk.mount("/l1", 1 << 40)
    scene = Scene(world, await world.start_client("writer"), await world.start_client("reader"), quorums=QUORUMS)
    histories: list[LedgerHistory] = []
    for _ in range(ROUNDS):
        writers = [asyncio.ensure_future(write_one(scene)) for _ in range(LEDGERS_PER_ROUND)]
        follower = asyncio.ensure_future(_follow(scene))
        await disturb(world, CLIENTS, world.chance.uniform(0.5, 6.0), down_max=1, kinds=KINDS, surely=("crash",))
        written = [each for each in await asyncio.gather(*writers) if each is not None]
        follower.cancel()
        for ledger, history in written:
            await recover_one(scene, ledger, history)
            histories.append(history)
        await delete_some(scene)
        await disturb(world, CLIENTS, world.chance.uniform(0.0, 3.0), down_max=1, kinds=KINDS)
        await read_everything(scene)
    await settle(scene)
    await read_everything(scene)
    for history in histories:
        history.check()
    return histories


def _set_up(world: World, host: str) -> None:
    """Draw and set the settings of one bookie."""
    chance = world.chance
    journal = JournalSettings(
        file_bytes=chance.choice((256, 1024)) * KIB,
        group_bytes_max=128 * KIB,
        queue_bytes_max=256 * KIB,
        spare_files_max=chance.choice((1, 3)),
        reserved_bytes=0,
    )
    if host == RISKY and chance.random() < 0.5:
        journal = replace(journal, sync_data=False, write_data=chance.random() < 0.5)
    world.changes_of[host] = {
        "journal": journal,
        "journal_dirs": tuple(f"/j{each}" for each in range(chance.choice((1, 2, 3)))),
        "ledger_dirs": tuple(f"/l{each}" for each in range(chance.choice((1, 2, 3)))),
        "storage": StorageSettings(
            write_cache_bytes=chance.choice((128, 256, 2048)) * KIB,
            read_cache_bytes=chance.choice((1, 64, 1024)) * KIB,
            read_ahead_bytes=chance.choice((1, 16, 256)) * KIB,
            entry_log_bytes_max=2 * MIB,
            flush_interval_s=chance.choice((0.03, 0.3, 3.0)),
            ledger_states_max=chance.choice((2, 100)),
            open_logs_max=chance.choice((1, 16)),
            reserved_bytes=0,
            compaction_reserved_bytes=0,
            disk_full_retry_s=0.3,
            deleted_ledger_memory_s=chance.choice((0.5, 3600.0)),
        ),
        "garbage_collection": GarbageCollectionSettings(
            interval_s=chance.choice((0.2, 2.0)), quarantine=QuarantineSettings(0.0)
        ),
        "compaction": CompactionSettings(
            minor_threshold=chance.choice((0.2, 0.5)),
            minor_interval_s=chance.choice((0.2, 1.0)),
            major_threshold=chance.choice((0.9, 0.95)),
            major_interval_s=chance.choice((1.2, 4.0)),
            rate_bytes_s=chance.choice((1, 20)) * MIB,
        ),
        "scrubbing": ScrubbingSettings(chance.choice((0.0, 0.5, 3.0)), chance.choice((1, 20)) * MIB),
    }


async def _follow(scene: Scene) -> None:
    """Read ledgers without recovery while they are written: each entry read was submitted there."""
    world = scene.world
    while True:
        await asyncio.sleep(world.chance.uniform(0.1, 0.5))
        for ledger, history in sorted(scene.writing_now.items()):
            await _read_what_is_confirmed(scene, ledger, history)


async def _read_what_is_confirmed(scene: Scene, ledger: LedgerId, history: LedgerHistory) -> None:
    async def reading() -> None:
        reader = await scene.reading.ledgers.open_ledger(ledger, recover=False)
        last = reader.last_add_confirmed
        if last >= 0:
            first = EntryId(max(0, last - 20))
            entries = await reader.read(first, last)
            history.on_read("follower", first, [bytes(entry.payload) for entry in entries])

    try:
        await scene.world.on(scene.reading, reading())
    except QuireError:
        return  # a passing fault; confirmed entries are checked after the recovery
