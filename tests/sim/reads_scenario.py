"""One writer, perhaps with deferred sync, and readers of every kind while bookies are slow, cut off, killed or wrong.

The readers are a tail, one that waits by long polls, one that reads explicit LACs, and one that reopens the ledger each
time, all with speculation. Checked: no reader gets wrong bytes or *no such entry* for a confirmed entry; no LAC
decreases; a reader that received a LAC can read up to it in the end; the tail gets every entry in order and ends; each
confirmed entry (with deferred sync: each one covered by a force) is on Qa of the bookies that are named for it.
"""

import asyncio
import random
from dataclasses import dataclass, field

from quire_bookie.client import LedgerReader, LedgerWriter
from quire_bookie.errors import LedgerError, NoSuchEntryError, QuireError
from quire_bookie.model import BookieId, EntryId, LedgerId
from tests.sim.faults import Faults, Targets, draw
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.stored_entries import check_copies
from tests.sim.world import SimClient, World, retry

QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (2, 2, 1), (5, 3, 2))
READERS = ("tail", "poller", "asker", "opener")
BLACKOUT_S = 15.0
TAIL_ENDS_S = 120.0
"""Time limit for the tail's end after the last fault."""


@dataclass(slots=True)
class ReadScene:
    """Owns one ledger, its writer and its readers."""

    world: World
    script: random.Random
    writing: SimClient
    writer: LedgerWriter
    readers: dict[str, SimClient]
    deferred: bool
    lossy: frozenset[BookieId]
    bare: bool
    """Whether the only fault is that all bookies lose power, and with it acknowledged entries without a force."""
    faults: Faults = field(init=False)
    blackout: bool = False
    history: LedgerHistory = field(default_factory=LedgerHistory)
    seen: list[bytes] = field(default_factory=list)
    """The entries that the tail has read."""
    over: bool = False

    @property
    def ledger(self) -> LedgerId:
        """The ledger's id."""
        return self.writer.ledger_id

    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        self.history.on_confirm(up_to)

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self.history.failed = True
        self.world.loop.note(f"the writer failed: {error}")

    # ---- the writer
    async def feed(self, end_s: float) -> None:
        """Append entries in runs, pause so that only an explicit LAC informs readers, and force."""
        chance, count = random.Random(self.script.randrange(1 << 30)), 0
        while self.world.loop.time() < end_s and not self.history.failed:
            await asyncio.sleep(chance.choice((0.01, 0.05, 0.05, 0.8)))
            if count >= 250:
                continue  # the checker reads every copy
            payloads = []
            for _ in range(chance.choice((1, 1, 2, 8))):
                payloads.append(b"%d:" % count + bytes(chance.choice((0, 10, 500, 5000))))
                count += 1
            try:
                first = self.writer.submit(payloads)
                self.history.on_submit(first, payloads)
                if self.blackout:
                    await self.lose_power()
                if self.deferred and chance.random() < 0.3:
                    await asyncio.sleep(chance.choice((0.0, 0.3, 1.0)))
                    forced = await self.writer.force()
                    if forced > self.history.confirmed_up_to:
                        raise HistoryError(f"a force returned {forced}, its listener {self.history.confirmed_up_to}")
                elif chance.random() < 0.1:
                    await self.writer.tell_lac()
            except QuireError as error:
                self.world.loop.note(f"the writer got: {error}")

    async def lose_power(self) -> None:
        """Cut the power of all bookies, which lose the last acknowledged entries; they start before the next force."""
        self.blackout = False
        self.history.on_submit(self.writer.last_add_pushed + 1, [b"acknowledged"])
        await self.writer.append(b"acknowledged")
        await self.faults.one(Step(0.0, "power"))
        await asyncio.sleep(BLACKOUT_S)

    def step_blackout(self, step: Step) -> None:
        """Arm the power cut of all bookies."""
        self.blackout = self.deferred

    # ---- readers
    async def tail(self) -> None:
        """Read everything in order until the ledger is closed, continuing after errors."""
        client = self.readers["tail"].ledgers
        while True:
            try:
                async with client.open_ledger(self.ledger, recover=False) as reader:
                    async for entry in reader.tail(EntryId(len(self.seen))):
                        self.history.on_lac("tail", max(self.history.lacs.get("tail", -1), entry.entry_id))
                        self.history.on_read("tail", entry.entry_id, [bytes(entry)])
                        if entry.entry_id != len(self.seen):
                            raise HistoryError(f"the tail got {entry.entry_id} after {len(self.seen)} entries")
                        self.seen.append(bytes(entry))
                    return
            except NoSuchEntryError as error:
                raise HistoryError(f"the tail got *no such entry* for a confirmed entry: {error}") from error
            except QuireError as error:
                self.world.loop.note(f"the tail got: {error}")
                await asyncio.sleep(0.3)

    async def follow(self, who: str) -> None:
        """Get the LAC repeatedly, in the way of this reader, and read some of the entries up to it."""
        chance = random.Random(self.script.randrange(1 << 30))
        reader: LedgerReader | None = None
        while not self.over:
            try:
                if reader is None or who == "opener":
                    reader = await self.readers[who].ledgers.open_ledger(self.ledger, recover=False)
                elif who == "poller":
                    await reader.wait_for_lac(reader.last_add_confirmed, chance.choice((0.5, 3.0)))
                elif who == "asker":
                    await reader.read_explicit_lac()
            except NoSuchEntryError as error:
                raise HistoryError(f"{who} asked for the LAC and got: {error}") from error
            except QuireError:
                await asyncio.sleep(0.2)
                continue
            if who != "opener":  # a reopened ledger may ask other bookies, with an older LAC
                self.history.on_lac(who, reader.last_add_confirmed)
            await self.read_some(who, reader, chance)
            await asyncio.sleep(chance.choice((0.0, 0.1, 0.5)))

    async def read_some(self, who: str, reader: LedgerReader, chance: random.Random) -> None:
        """Read some entries up to the LAC."""
        lac = reader.last_add_confirmed
        if lac < 0:
            return
        first = chance.choice((0, lac, chance.randint(0, lac)))
        last = min(lac, first + chance.choice((0, 3, 40)))
        try:
            entries = await reader.read(EntryId(first), EntryId(last))
        except NoSuchEntryError as error:
            raise HistoryError(f"{who} got *no such entry* for an entry up to {lac}: {error}") from error
        except QuireError as error:
            self.world.loop.note(f"{who} got: {error}")
            return
        if [entry.entry_id for entry in entries] != list(range(first, first + len(entries))) or not entries:
            raise HistoryError(f"{who} asked for {first} to {last} and got {[entry.entry_id for entry in entries]}")
        self.history.on_read(who, first, [bytes(entry) for entry in entries])


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    scene = await _set_up(loop, seed)
    world, history = scene.world, scene.history
    seconds = loop.plan.seconds(scene.script.uniform(2.0, 10.0))
    targets = Targets(sorted(world.bookies), ("writer", *READERS), scene.script.choice((1, 2)))
    more = {"lie": lambda step: world.loop.network.corrupted_hosts.add(step.who), "blackout": scene.step_blackout}
    faults = scene.faults = Faults(world, targets, more)
    tail = world.on(scene.readers["tail"], scene.tail())
    others = [world.on(scene.readers[who], scene.follow(who)) for who in READERS[1:]]
    feeding = world.on(scene.writing, scene.feed(loop.time() + seconds))
    # Every bookie comes back with all that it synced, so no entry may be missing in the end.
    steps = [] if scene.bare else draw(scene.script, targets, seconds)
    if scene.bare:
        kinds = scene.script.choice((("power",), ("blackout",), ("blackout", "power")))
        steps += [Step(scene.script.uniform(0.3, seconds), kind) for kind in kinds]
    if scene.lossy:
        (liar,) = (h for h, p in world.bookies.items() if p.running and p.running.bookie_id in scene.lossy)
        steps.append(Step(0.0, "lie", liar))
    await faults.run(loop.plan.choose(steps), seconds)
    await faults.heal()
    await feeding
    closed = await retry(lambda: world.on(scene.writing, scene.writer.close()), seconds=300)
    history.on_close(closed.last_entry)
    async with asyncio.timeout(TAIL_ENDS_S):
        await tail
    if len(scene.seen) != closed.last_entry + 1:
        raise HistoryError(f"the tail ended after {len(scene.seen)} entries; the ledger has {closed.last_entry + 1}")
    await asyncio.sleep(2.0)
    scene.over = True
    await asyncio.gather(*others)
    opening = scene.readers["opener"]
    reader = await world.on(opening, opening.ledgers.open_ledger(scene.ledger, recover=False))
    await retry(lambda: world.on(opening, read_all(reader, history, "last")), seconds=300)
    history.check()
    await check_copies(world, scene.ledger, history, closed.last_entry, lossy=scene.lossy)
    return history


async def _set_up(loop: SimLoop, seed: int) -> ReadScene:
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    deferred = script.random() < 0.4
    bare = deferred and script.random() < 0.4
    if deferred:
        world.flush_interval_s = (2.0, 8.0)  # unflushed entries stay in memory
    await world.start_bookies(script.choice((3, 4, 5)))
    for place in world.bookies.values() if bare else ():
        place.disk._latency_s = script.choice((0.1, 0.5))  # entries arrive while a slow group is being synced
    quorums = script.choice([q for q in QUORUMS if q[0] <= len(world.bookies)])
    writing = await world.start_client(
        "writer",
        explicit_lac_interval_s=script.choice((0.0, 0.1, 0.5)),
        slow_replica_s=script.choice((0.5, 10.0)),
    )
    first_s = script.choice((0.0, 0.02, 0.2))
    reading = {
        "speculative_read_first_s": first_s,
        "speculative_read_growth": script.choice((1.0, 2.0)),
        "read_timeout_s": script.choice((1.0, 5.0)),
    }
    readers = {who: await world.start_client(who, **reading) for who in READERS}
    e, w, a = quorums
    creating = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a, deferred_sync=deferred)
    writer = await world.on(writing, creating)
    lossy: frozenset[BookieId] = frozenset()
    if a >= 2 and script.random() < 0.5:
        lossy = frozenset({script.choice(sorted(p.running.bookie_id for p in world.bookies.values() if p.running))})
    scene = ReadScene(world, script, writing, writer, readers, deferred, lossy, bare)
    writer.listener = scene
    return scene
