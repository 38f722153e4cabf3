"""Ledgers are written and deleted while bookies collect garbage, compact their entry logs, crash and come back.

A client on another node repeatedly reads every confirmed entry of each live ledger, although the metadata store
sometimes lists no ledger at all, and although nodes of ledgers vanish and come back: the time in which they were absent
and nothing was in doubt is shorter than the quarantine. In some runs the store is unreachable in the middle of that
time, for longer than the quarantine; in others an administrator undeletes the ledgers, and their nodes come back later.
In the end the bookies hold no deleted ledger, and their logs little garbage.
"""

import asyncio
from dataclasses import dataclass, field

from quire_bookie.client import LedgerReader
from quire_bookie.errors import NoSuchLedgerError, QuireError
from quire_bookie.limits import KIB, MIB
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.faults import WEIGHTS, disturb
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all
from tests.sim.loop import SimLoop
from tests.sim.world import SimClient, World, retry

ROUNDS = 2
LEDGERS_PER_ROUND = 5
QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 1))
CLIENTS = ("writer", "reader")
LIVE_SHARE_MIN = 0.7
QUARANTINE_S = 8.0
AWAY_S = 2 * QUARANTINE_S
KINDS = {**WEIGHTS, "stop": 4, "metadata forgets": 8}


@dataclass
class Scene:
    """Tracks the clients and the state of the ledgers."""

    world: World
    writing: SimClient
    reading: SimClient
    living: dict[LedgerId, LedgerHistory] = field(default_factory=dict)
    deleted: set[LedgerId] = field(default_factory=set)
    writing_now: dict[LedgerId, LedgerHistory] = field(default_factory=dict)
    quorums: tuple[tuple[int, int, int], ...] = QUORUMS
    vanished: set[LedgerId] = field(default_factory=set)
    """Live ledgers whose metadata nodes are absent at the moment."""


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
    """Run one seed."""
    world = World(loop, seed)
    world.journal_settings = JournalSettings(
        file_bytes=256 * KIB, group_bytes_max=128 * KIB, queue_bytes_max=256 * KIB, spare_files_max=2, reserved_bytes=0
    )
    world.storage_settings = StorageSettings(
        write_cache_bytes=256 * KIB,
        read_cache_bytes=64 * KIB,
        entry_log_bytes_max=2 * MIB,
        reserved_bytes=0,
        ledger_states_max=4,
    )
    world.flush_interval_s = (0.05, 0.5)
    world.garbage_collection_settings = GarbageCollectionSettings(
        interval_s=world.chance.uniform(0.3, 2.0), quarantine=QuarantineSettings(QUARANTINE_S)
    )
    world.compaction_settings = CompactionSettings(
        minor_threshold=0.5,
        minor_interval_s=world.chance.uniform(0.3, 1.0),
        major_threshold=0.95,
        major_interval_s=world.chance.uniform(1.5, 4.0),
        rate_bytes_s=world.chance.choice((1, 20)) * MIB,
    )
    await world.start_bookies(3)
    scene = Scene(world, await world.start_client("writer"), await world.start_client("reader"))
    histories: list[LedgerHistory] = []
    for _ in range(ROUNDS):
        writers = [asyncio.ensure_future(write_one(scene)) for _ in range(LEDGERS_PER_ROUND)]
        seconds = world.chance.uniform(0.5, 5.0)
        await disturb(world, CLIENTS, seconds, down_max=1, kinds=KINDS, surely=("crash", "metadata forgets"))
        written = [each for each in await asyncio.gather(*writers) if each is not None]
        for ledger, history in written:
            await recover_one(scene, ledger, history)
            histories.append(history)
        deleting = asyncio.ensure_future(delete_some(scene))
        vanishing = asyncio.ensure_future(vanish_some(scene))
        seconds = world.chance.uniform(0.5, 4.0)
        await disturb(world, CLIENTS, seconds, down_max=1, kinds=KINDS, surely=("stop", "metadata forgets"))
        await deleting
        await vanishing
        await until_returned(scene)
        await read_everything(scene)
    await settle(scene)
    await read_everything(scene)
    for history in histories:
        history.check()
    return histories


async def write_one(scene: Scene) -> tuple[LedgerId, LedgerHistory] | None:
    """Create a ledger and append some entries until an append fails. None if the creation fails."""
    world, client = scene.world, scene.writing
    e, w, a = world.chance.choice(scene.quorums)
    try:
        writer = await world.on(client, client.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a))
    except QuireError:
        return None
    history = LedgerHistory()
    listener = _Listener(history)
    writer.listener = listener
    scene.writing_now[writer.ledger_id] = history
    for count in range(world.chance.choice((5, 15, 30))):
        payloads = [b"%d/%d:" % (count, each) + bytes(world.chance.choice((90, 9_000, 30_000))) for each in range(3)]
        if listener.stopped:
            break
        try:
            first = writer.submit(payloads)
        except QuireError:
            break
        history.on_submit(first, payloads)
        await asyncio.sleep(world.chance.uniform(0.0, 0.05))
    del scene.writing_now[writer.ledger_id]
    return writer.ledger_id, history


async def recover_one(scene: Scene, ledger: LedgerId, history: LedgerHistory) -> None:
    """Recover a ledger, with retries, and add it to the live ledgers."""

    async def attempt() -> LedgerReader:
        return await scene.world.on(scene.reading, scene.reading.ledgers.open_ledger(ledger, recover=True))

    reader = await retry(attempt, seconds=300)
    history.on_close(reader.last_add_confirmed)
    scene.living[ledger] = history


async def vanish_some(scene: Scene) -> None:
    """Remove nodes of live ledgers and bring them back before their quarantine can end. Only in runs with faults."""
    world = scene.world
    await asyncio.sleep(world.chance.uniform(0.0, 2.0))
    if world.loop.plan.calm:
        return
    scene.vanished = {ledger for ledger in sorted(scene.living) if world.chance.random() < 0.7}
    world.loop.note(f"nodes vanish: {sorted(scene.vanished)}")
    world.metadata.vanish([ledger_path(ledger) for ledger in sorted(scene.vanished)])
    sure_s = world.chance.uniform(0.3, 0.9) * QUARANTINE_S
    before_s = world.chance.uniform(0.4, 1.0) * sure_s
    await asyncio.sleep(before_s)
    match world.chance.choice(("unreachable", "unreachable", "undelete", "neither")):
        case "unreachable":
            await _be_unreachable(world, world.chance.uniform(0.5, 1.0) * AWAY_S)
        case "undelete":
            await _undelete(scene)
            await asyncio.sleep(QUARANTINE_S)
    await asyncio.sleep(sure_s - before_s)
    world.metadata.come_back()
    world.loop.note("vanished nodes are back")


async def _undelete(scene: Scene) -> None:
    """Undelete the vanished ledgers on every bookie that holds them, once they are in quarantine there."""
    loop = scene.world.loop
    due = {(host, ledger) for host in scene.world.bookies for ledger in scene.vanished}
    end_s = loop.time() + 300.0
    while due:
        for host, ledger in sorted(due):
            place = scene.world.bookies[host]
            if place.node is None or place.running is None:
                continue
            asking = asyncio.ensure_future(_undelete_one(scene, host, ledger))
            await asyncio.wait((asking,), timeout=5.0)  # a bookie that crashes meanwhile never responds
            if asking.done() and asking.result():
                due.discard((host, ledger))
        if loop.time() > end_s:
            raise AssertionError(f"neither in quarantine nor deleted: {sorted(due)}")
        await asyncio.sleep(0.1)
    loop.note("the vanished ledgers are undeleted")


async def until_returned(scene: Scene) -> None:
    """Wait until the bookies see the nodes again: undeleted ledgers would survive a deletion before that."""
    loop = scene.world.loop
    end_s = loop.time() + 60.0
    for host in sorted(scene.world.bookies):
        while True:
            place = scene.world.bookies[host]
            assert place.node is not None and place.running is not None
            known = await loop.run_on(place.node, place.running.storage.ledger_quarantine.all())
            waiting = scene.vanished & {one.ledger for one in known}
            if not waiting:
                break
            if loop.time() > end_s:
                raise AssertionError(f"{host} did not find the nodes of {sorted(waiting)} again")
            await asyncio.sleep(0.5)
    scene.vanished = set()


async def _undelete_one(scene: Scene, host: str, ledger: LedgerId) -> bool:
    """Undelete a ledger on one bookie. Returns whether the bookie keeps its copy or has none."""
    place = scene.world.bookies[host]
    assert place.node is not None and place.running is not None
    storage = place.running.storage

    async def work() -> bool:
        try:
            if ledger not in await storage.ledgers():
                return True
            return bool(await storage.ledger_quarantine.undelete([ledger]))
        except QuireError:
            return False

    return await scene.world.loop.run_on(place.node, work())


async def _be_unreachable(world: World, seconds: float) -> None:
    """Make the metadata store unreachable; other faults cannot end that."""
    end_s = world.loop.time() + seconds
    while world.loop.time() < end_s:
        world.metadata.away = True
        await asyncio.sleep(0.05)
    world.metadata.away = False


async def delete_some(scene: Scene) -> None:
    """Delete about half of the live ledgers."""
    for ledger in sorted(scene.living):
        if ledger not in scene.vanished and scene.world.chance.random() < 0.5:
            del scene.living[ledger]
            scene.deleted.add(ledger)
            await retry(lambda ledger=ledger: _delete_one(scene, ledger), seconds=300)


async def _delete_one(scene: Scene, ledger: LedgerId) -> None:
    try:
        await scene.world.on(scene.writing, scene.writing.ledgers.delete_ledger(ledger))
    except NoSuchLedgerError:
        return  # an earlier attempt deleted it, and its response was lost


async def read_everything(scene: Scene) -> None:
    """Read all entries of all live ledgers."""

    async def attempt(ledger: LedgerId, history: LedgerHistory) -> None:
        reader = await scene.world.on(scene.reading, scene.reading.ledgers.open_ledger(ledger, recover=False))
        history.on_close(reader.last_add_confirmed)
        await scene.world.on(scene.reading, read_all(reader, history, "reader"))

    for ledger, history in sorted(scene.living.items()):
        await retry(lambda one=ledger, its=history: attempt(one, its), seconds=300)


async def settle(scene: Scene) -> None:
    """Wait until every bookie has removed the deleted ledgers; AssertionError if that never happens."""
    loop = scene.world.loop
    end = loop.time() + 120.0
    while True:
        await asyncio.sleep(1.0)
        left = []
        for _host, place in sorted(scene.world.bookies.items()):
            assert place.node is not None and place.running is not None
            left.append(await loop.run_on(place.node, _left_over(scene, place.running)))
        if not any(left):
            return
        if loop.time() > end:
            raise AssertionError(f"not removed: {left}")


async def _left_over(scene: Scene, running: RunningBookie) -> str:
    held = scene.deleted & set(await running.storage.ledgers())
    # A first attempt to create a ledger, repeated after it timed out, may take effect after the deletion (seed 153).
    held = {ledger for ledger in held if ledger_path(ledger) not in scene.world.metadata.nodes}
    if held:
        return f"{running.bookie_id} holds {sorted(held)}"
    if running.storage.ledger_quarantine.ledgers:
        return f"{running.bookie_id} has ledgers in quarantine"
    if running.storage.quarantined:
        return f"{running.bookie_id} has logs in quarantine: {running.storage.quarantined}"
    usages = await running.storage.compaction.usages_now()
    poor = [usage for usage in usages if usage.share < LIVE_SHARE_MIN]
    return f"{running.bookie_id}: {poor}" if poor else ""
