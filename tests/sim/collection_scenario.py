"""Ledgers are written and deleted while bookies collect garbage, compact their entry logs, crash and come back.

Every entry of a living ledger that was confirmed is read, again and again, by a client on another node, although the
store now and then lists no ledger at all, and although nodes of ledgers vanish and come back: the time in which they
were gone and nothing was in doubt is shorter than the quarantine. In some runs the store cannot be reached in its
middle, for longer than the quarantine lasts; in some an operator undeletes the ledgers, and they come back later. In
the end the bookies hold no ledger that was deleted, and their logs little that does not live.
"""

import asyncio
from dataclasses import dataclass, field

from quire_bookie.client import LedgerReader
from quire_bookie.errors import NoSuchLedgerError, QuireError
from quire_bookie.journal.settings import JournalSettings
from quire_bookie.limits import KIB, MIB
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.process import RunningBookie
from quire_bookie.server.upkeep.compaction_schedule import CompactionSettings
from quire_bookie.server.upkeep.garbage_collection import GarbageCollectionSettings
from quire_bookie.server.upkeep.quarantine_rules import QuarantineSettings
from quire_bookie.storage.settings import StorageSettings
from tests.sim.faults import WEIGHTS, disturb
from tests.sim.history import LedgerHistory
from tests.sim.ledger_scenario import read_all
from tests.sim.loop import SimLoop
from tests.sim.world import SimClient, World, insist

ROUNDS = 2
LEDGERS_PER_ROUND = 5
QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 1))
CLIENTS = ("writer", "reader")
LIVE_SHARE_MIN = 0.7
QUARANTINE_S = 8.0
AWAY_S = 2 * QUARANTINE_S
KINDS = {**WEIGHTS, "stop": 4, "metadata forgets": 8}


@dataclass
class Cast:
    """The clients, and what became of the ledgers."""

    world: World
    writing: SimClient
    reading: SimClient
    living: dict[LedgerId, LedgerHistory] = field(default_factory=dict)
    deleted: set[LedgerId] = field(default_factory=set)
    writing_now: dict[LedgerId, LedgerHistory] = field(default_factory=dict)
    quorums: tuple[tuple[int, int, int], ...] = QUORUMS
    vanished: set[LedgerId] = field(default_factory=set)
    """Living ledgers of which the store does not know at the moment."""


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
    """One seed."""
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
    cast = Cast(world, await world.start_client("writer"), await world.start_client("reader"))
    histories: list[LedgerHistory] = []
    for _ in range(ROUNDS):
        writers = [asyncio.ensure_future(write_one(cast)) for _ in range(LEDGERS_PER_ROUND)]
        seconds = world.chance.uniform(0.5, 5.0)
        await disturb(world, CLIENTS, seconds, down_max=1, kinds=KINDS, surely=("crash", "metadata forgets"))
        written = [each for each in await asyncio.gather(*writers) if each is not None]
        for ledger, history in written:
            await recover_one(cast, ledger, history)
            histories.append(history)
        deleting = asyncio.ensure_future(delete_some(cast))
        vanishing = asyncio.ensure_future(vanish_some(cast))
        seconds = world.chance.uniform(0.5, 4.0)
        await disturb(world, CLIENTS, seconds, down_max=1, kinds=KINDS, surely=("stop", "metadata forgets"))
        await deleting
        await vanishing
        await until_returned(cast)
        await read_everything(cast)
    await settle(cast)
    await read_everything(cast)
    for history in histories:
        history.check()
    return histories


async def write_one(cast: Cast) -> tuple[LedgerId, LedgerHistory] | None:
    """A new ledger with some entries, as far as the cluster takes them; None when not even its creation worked."""
    world, client = cast.world, cast.writing
    e, w, a = world.chance.choice(cast.quorums)
    try:
        writer = await world.on(client, client.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a))
    except QuireError:
        return None
    history = LedgerHistory()
    listener = _Listener(history)
    writer.listener = listener
    cast.writing_now[writer.ledger_id] = history
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
    del cast.writing_now[writer.ledger_id]
    return writer.ledger_id, history


async def recover_one(cast: Cast, ledger: LedgerId, history: LedgerHistory) -> None:
    """Take a ledger over, as often as it needs; from then on it is one of the living."""

    async def attempt() -> LedgerReader:
        return await cast.world.on(cast.reading, cast.reading.ledgers.open_ledger(ledger, recover=True))

    reader = await insist(attempt, seconds=300)
    history.on_close(reader.last_add_confirmed)
    cast.living[ledger] = history


async def vanish_some(cast: Cast) -> None:
    """Nodes of living ledgers vanish, and come back before their quarantine can be over. Not without faults."""
    world = cast.world
    await asyncio.sleep(world.chance.uniform(0.0, 2.0))
    if world.loop.plan.calm:
        return
    cast.vanished = {ledger for ledger in sorted(cast.living) if world.chance.random() < 0.7}
    world.loop.note(f"nodes vanish: {sorted(cast.vanished)}")
    world.metadata.vanish([ledger_path(ledger) for ledger in sorted(cast.vanished)])
    sure_s = world.chance.uniform(0.3, 0.9) * QUARANTINE_S
    before_s = world.chance.uniform(0.4, 1.0) * sure_s
    await asyncio.sleep(before_s)
    match world.chance.choice(("unreachable", "unreachable", "undelete", "neither")):
        case "unreachable":
            await _be_unreachable(world, world.chance.uniform(0.5, 1.0) * AWAY_S)
        case "undelete":
            await _undelete(cast)
            await asyncio.sleep(QUARANTINE_S)
    await asyncio.sleep(sure_s - before_s)
    world.metadata.come_back()
    world.loop.note("vanished nodes are back")


async def _undelete(cast: Cast) -> None:
    """What vanished, on every bookie that holds it: as soon as it is in quarantine there, and the bookie is up."""
    loop = cast.world.loop
    due = {(host, ledger) for host in cast.world.bookies for ledger in cast.vanished}
    end_s = loop.time() + 300.0
    while due:
        for host, ledger in sorted(due):
            place = cast.world.bookies[host]
            if place.node is None or place.running is None:
                continue
            asking = asyncio.ensure_future(_undelete_one(cast, host, ledger))
            await asyncio.wait((asking,), timeout=5.0)  # a bookie that crashes meanwhile never answers
            if asking.done() and asking.result():
                due.discard((host, ledger))
        if loop.time() > end_s:
            raise AssertionError(f"neither in quarantine nor deleted: {sorted(due)}")
        await asyncio.sleep(0.1)
    loop.note("the vanished ledgers are undeleted")


async def until_returned(cast: Cast) -> None:
    """Until the bookies found the nodes again, or AssertionError: undeleted ledgers outlive a deletion before that."""
    loop = cast.world.loop
    end_s = loop.time() + 60.0
    for host in sorted(cast.world.bookies):
        while True:
            place = cast.world.bookies[host]
            assert place.node is not None and place.running is not None
            known = await loop.run_on(place.node, place.running.storage.ledger_quarantine.all())
            waiting = cast.vanished & {one.ledger for one in known}
            if not waiting:
                break
            if loop.time() > end_s:
                raise AssertionError(f"{host} did not find the nodes of {sorted(waiting)} again")
            await asyncio.sleep(0.5)
    cast.vanished = set()


async def _undelete_one(cast: Cast, host: str, ledger: LedgerId) -> bool:
    """Whether the bookie keeps its copy from now on, or has none."""
    place = cast.world.bookies[host]
    assert place.node is not None and place.running is not None
    storage = place.running.storage

    async def work() -> bool:
        try:
            if ledger not in await storage.ledgers():
                return True
            return bool(await storage.ledger_quarantine.undelete([ledger]))
        except QuireError:
            return False

    return await cast.world.loop.run_on(place.node, work())


async def _be_unreachable(world: World, seconds: float) -> None:
    """The store; other faults of the time cannot bring it back."""
    end_s = world.loop.time() + seconds
    while world.loop.time() < end_s:
        world.metadata.away = True
        await asyncio.sleep(0.05)
    world.metadata.away = False


async def delete_some(cast: Cast) -> None:
    """About half of the living ledgers."""
    for ledger in sorted(cast.living):
        if ledger not in cast.vanished and cast.world.chance.random() < 0.5:
            del cast.living[ledger]
            cast.deleted.add(ledger)
            await insist(lambda ledger=ledger: _delete_one(cast, ledger), seconds=300)


async def _delete_one(cast: Cast, ledger: LedgerId) -> None:
    try:
        await cast.world.on(cast.writing, cast.writing.ledgers.delete_ledger(ledger))
    except NoSuchLedgerError:
        return  # an attempt whose answer was lost


async def read_everything(cast: Cast) -> None:
    """All entries of all living ledgers."""

    async def attempt(ledger: LedgerId, history: LedgerHistory) -> None:
        reader = await cast.world.on(cast.reading, cast.reading.ledgers.open_ledger(ledger, recover=False))
        history.on_close(reader.last_add_confirmed)
        await cast.world.on(cast.reading, read_all(reader, history, "reader"))

    for ledger, history in sorted(cast.living.items()):
        await insist(lambda one=ledger, its=history: attempt(one, its), seconds=300)


async def settle(cast: Cast) -> None:
    """Until every bookie gave back what was deleted; AssertionError when that never happens."""
    loop = cast.world.loop
    end = loop.time() + 120.0
    while True:
        await asyncio.sleep(1.0)
        left = []
        for _host, place in sorted(cast.world.bookies.items()):
            assert place.node is not None and place.running is not None
            left.append(await loop.run_on(place.node, _left_over(cast, place.running)))
        if not any(left):
            return
        if loop.time() > end:
            raise AssertionError(f"not given back: {left}")


async def _left_over(cast: Cast, running: RunningBookie) -> str:
    held = cast.deleted & set(await running.storage.ledgers())
    # A first attempt to create a ledger, repeated after it timed out, may take effect after the deletion (seed 153).
    held = {ledger for ledger in held if ledger_path(ledger) not in cast.world.metadata.nodes}
    if held:
        return f"{running.bookie_id} holds {sorted(held)}"
    if running.storage.ledger_quarantine.ledgers:
        return f"{running.bookie_id} has ledgers in quarantine"
    if running.storage.quarantined:
        return f"{running.bookie_id} has logs in quarantine: {running.storage.quarantined}"
    usages = await running.storage.compaction.usages_now()
    poor = [usage for usage in usages if usage.share < LIVE_SHARE_MIN]
    return f"{running.bookie_id}: {poor}" if poor else ""
