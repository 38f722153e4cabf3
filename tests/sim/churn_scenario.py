"""Many ledgers on bookies with tiny journals and caches: files are recycled and flushes run all the time.

`run`: bookies crash, stop cleanly and restart, amid all other faults. `run_on_full_disks`: their disks fill up and are
freed. A recovering opener on another client finds every confirmed entry.
"""

import asyncio
from collections.abc import Mapping, Sequence

from quire_bookie.client import LedgerReader
from quire_bookie.errors import QuireError
from quire_bookie.limits import KIB, MIB
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.faults import WEIGHTS, disturb
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all
from tests.sim.loop import SimLoop
from tests.sim.world import SimClient, World, retry

ROUNDS = 2
LEDGERS_PER_ROUND = 6
QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 1), (1, 1, 1))
RESTARTS: Mapping[str, int] = {**WEIGHTS, "crash": 12, "stop": 8, "start": 14}
FULL_DISKS: Mapping[str, int] = {
    "full disk": 12,
    "crash": 3,
    "kill": 1,
    "stop": 1,
    "start": 5,
    "power": 1,
    "slow disk": 2,
    "break": 1,
    "stalls": 1,
    "metadata slow": 1,
}


class _Listener:
    def __init__(self, history: LedgerHistory) -> None:
        self._history = history
        self.stopped = False

    def on_confirmed(self, up_to: EntryId) -> None:
        self._history.on_confirm(up_to)

    def on_failed(self, error: Exception) -> None:
        self._history.failed = True
        self.stopped = True


async def run(loop: SimLoop, seed: int) -> list[LedgerHistory]:
    """Run one seed with crashes and restarts."""
    return await _run(loop, seed, RESTARTS, ("crash", "stop"))


async def run_on_full_disks(loop: SimLoop, seed: int) -> list[LedgerHistory]:
    """Run one seed with full disks, and crashes while they are full."""
    return await _run(loop, seed, FULL_DISKS, ("full disk", "full disk"))


async def _run(loop: SimLoop, seed: int, kinds: Mapping[str, int], surely: tuple[str, ...]) -> list[LedgerHistory]:
    world = World(loop, seed)
    world.journal_settings = JournalSettings(
        file_bytes=128 * KIB, group_bytes_max=64 * KIB, queue_bytes_max=128 * KIB, spare_files_max=2, reserved_bytes=0
    )
    world.storage_settings = StorageSettings(
        write_cache_bytes=64 * KIB,
        read_cache_bytes=32 * KIB,
        entry_log_bytes_max=2 * MIB,
        reserved_bytes=0,
        ledger_states_max=4,
        disk_full_retry_s=0.5,
    )
    world.flush_interval_s = (0.02, 0.5)
    world.disk_check_interval_s = 1.0
    await world.start_bookies(3)
    writing, opening = [await world.start_client(host) for host in ("writer", "opener")]
    histories: list[LedgerHistory] = []
    for _ in range(ROUNDS):
        written: dict[LedgerId, LedgerHistory] = {}
        writers = [asyncio.ensure_future(write_one(world, writing, written)) for _ in range(LEDGERS_PER_ROUND)]
        seconds = world.chance.uniform(0.3, 4.0)
        await disturb(world, ("writer",), seconds, down_max=2, kinds=kinds, surely=surely)
        await asyncio.gather(*writers)
        for ledger, history in written.items():
            await recover(world, opening, ledger, history)
            history.check()
        histories += written.values()
    return histories


async def write_one(
    world: World,
    client: SimClient,
    written: dict[LedgerId, LedgerHistory],
    *,
    quorums: Sequence[tuple[int, int, int]] = QUORUMS,
    runs: Sequence[int] = (3, 40, 80),
) -> None:
    """Create a ledger and append a drawn number of runs of five entries, until an append fails."""
    e, w, a = world.chance.choice(quorums)
    try:
        writer = await world.on(client, client.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a))
    except QuireError:
        return
    history = written[writer.ledger_id] = LedgerHistory()
    listener = _Listener(history)
    writer.listener = listener
    for count in range(world.chance.choice(runs)):
        payloads = [b"%d/%d:" % (count, each) + bytes(world.chance.choice((0, 90, 900))) for each in range(5)]
        if listener.stopped:
            return
        try:
            first = writer.submit(payloads)
        except QuireError:
            return
        history.on_submit(first, payloads)
        await asyncio.sleep(world.chance.uniform(0.0, 0.02))


async def recover(world: World, client: SimClient, ledger: LedgerId, history: LedgerHistory) -> None:
    """Recover a ledger, with retries, and read all of it."""

    async def attempt() -> LedgerReader:
        return await world.on(client, client.ledgers.open_ledger(ledger, recover=True))

    reader = await retry(attempt, seconds=300)
    history.on_close(reader.last_add_confirmed)
    await retry(lambda: world.on(client, read_all(reader, history, "opener")), seconds=300)
