"""Disks that another program fills to the last byte, permanently: a bookie uses its reserve.

Some ledgers are written first. Then disks fill up while more is written and bookies crash, are killed, stop and start;
no space is freed from outside. A recovering opener finds every confirmed entry: fencing, recovery adds and every start
work on a full disk. Then all ledgers are deleted, and all bookies become writable again by themselves.
"""

import asyncio
from collections.abc import Mapping

from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.limits import KIB, MIB
from quire_bookie.model import LedgerId
from quire_bookie.server.process import BookieState
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.churn_scenario import recover, write_one
from tests.sim.faults import disturb
from tests.sim.history import LedgerHistory
from tests.sim.loop import SimLoop
from tests.sim.world import SimClient, World, retry

FIRST_LEDGERS = 6
FIRST_ENTRIES = 80
LEDGERS = 8
KINDS: Mapping[str, int] = {
    "filled": 12,
    "crash": 3,
    "kill": 4,
    "stop": 2,
    "start": 6,
    "power": 1,
    "slow disk": 1,
    "break": 1,
}
WRITABLE_WITHIN_S = 300.0


async def run(loop: SimLoop, seed: int) -> list[LedgerHistory]:
    """Run one seed."""
    world = World(loop, seed)
    _set_up(world)
    await world.start_bookies(3)
    writing, opening = [await world.start_client(host) for host in ("writer", "opener")]
    first: dict[LedgerId, LedgerHistory] = {}
    for _ in range(FIRST_LEDGERS):
        await write_one(world, writing, first, quorums=((3, 3, 2),), runs=(FIRST_ENTRIES,))
    written: dict[LedgerId, LedgerHistory] = {}
    writers = [asyncio.ensure_future(write_one(world, writing, written)) for _ in range(LEDGERS)]
    seconds = world.chance.uniform(0.5, 4.0)
    await disturb(world, ("writer",), seconds, down_max=2, kinds=KINDS, surely=("filled", "filled", "kill"))
    await asyncio.gather(*writers)
    for ledger, history in {**first, **written}.items():
        await recover(world, opening, ledger, history)
        history.check()
    for ledger in (*first, *written):
        await retry(lambda ledger=ledger: _delete(world, writing, ledger), seconds=300)
    await _until_writable(world)
    again: dict[LedgerId, LedgerHistory] = {}
    for _ in range(60):  # the client notices a little later
        await write_one(world, writing, again, quorums=((3, 3, 3),), runs=(3,))
        if again:
            break
        await asyncio.sleep(1.0)
    else:
        raise AssertionError("no ledger could be created once the bookies were writable")
    await asyncio.sleep(20.0)
    for ledger, history in again.items():
        assert history.confirmed_up_to == 14, f"entries up to {history.confirmed_up_to} were confirmed, not up to 14"
        await recover(world, opening, ledger, history)
    return [*first.values(), *written.values(), *again.values()]


def _set_up(world: World) -> None:
    world.journal_settings = JournalSettings(
        file_bytes=128 * KIB,
        group_bytes_max=32 * KIB,
        queue_bytes_max=64 * KIB,
        spare_files_max=2,
        reserved_bytes=48 * KIB,
    )
    world.storage_settings = StorageSettings(
        write_cache_bytes=64 * KIB,
        read_cache_bytes=32 * KIB,
        entry_log_bytes_max=2 * MIB,
        reserved_bytes=16 * KIB,
        compaction_reserved_bytes=8 * KIB,
        reserve_bytes=256 * KIB,
        ledger_states_max=4,
        disk_full_retry_s=0.5,
    )
    world.flush_interval_s = (0.02, 0.5)
    world.disk_check_interval_s = 1.0
    world.garbage_collection_settings = GarbageCollectionSettings(
        interval_s=2.0, quarantine=QuarantineSettings(3600.0, 0.0)
    )


async def _delete(world: World, client: SimClient, ledger: LedgerId) -> None:
    try:
        await world.on(client, client.ledgers.delete_ledger(ledger))
    except NoSuchLedgerError:
        return  # an earlier attempt deleted it, and its response was lost


async def _until_writable(world: World) -> None:
    end = world.loop.time() + WRITABLE_WITHIN_S
    while True:
        states = {host: place.running and place.running.state for host, place in sorted(world.bookies.items())}
        if all(state is BookieState.WRITABLE for state in states.values()):
            return
        if world.loop.time() > end:
            free = {host: (await place.disk.usage("/")).free_bytes for host, place in sorted(world.bookies.items())}
            raise AssertionError(f"not writable again {WRITABLE_WITHIN_S:g} s after deletions: {states}, free {free}")
        await asyncio.sleep(1.0)
