"""A writer that replaces lost bookies, openers that recover, a reader that follows: one ledger, any number of faults.

There are three endings. The writer closes its ledger itself: then every replica that lacks an entry must be marked. Or
openers recover the ledger while the writer still writes, or only pauses: they must agree on one last entry, and the
writer must notice. Or the writer dies, preferably right after it confirmed an entry during an ensemble change: then all
other processes come back, each acknowledged entry must be on Qa of the bookies that the metadata name, and the openers
recover without Qa-1 of the bookies that hold the last entries. One bookie may serve wrong bytes, or be lost with its
disks, if the ack quorum tolerates that.
"""

import asyncio
import contextvars
import random
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.client import LedgerWriter
from quire_bookie.errors import LedgerError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.write_set import write_set
from tests.sim.disk import SimDisk
from tests.sim.faults import Faults, Targets, draw
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.stored_entries import check_copies, stored_metadata
from tests.sim.world import SimBookie, SimClient, World, retry

QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1), (3, 3, 3), (4, 3, 2), (2, 2, 1), (3, 3, 1), (2, 2, 2))
ENDINGS = ("taken over", "dies", "closes", "taken over", "dies")
OPENERS = ("opener", "other", "third")
ENTRIES_AT_SPEED = 300
"""After this number of entries the writer slows down: the checker reads every copy of every entry."""
QUIET_S = 30.0
"""After this time no response is in flight."""


@dataclass(slots=True)
class LedgerScene:
    """Owns one ledger, its writer and openers, and the faults around them."""

    world: World
    script: random.Random
    writing: SimClient
    writer: LedgerWriter
    history: LedgerHistory
    clients: dict[str, SimClient]
    quorums: tuple[int, int, int]
    ids: dict[str, BookieId]
    """The ids of the initial bookies by host."""
    lossy: str = ""
    """The host of the bookie whose copies are not counted."""
    ending: str = "closes"
    bare: bool = False
    """Whether the run has one known risky sequence and few other faults, which would only disturb it."""
    seconds: float = 0.0
    faults: Faults = field(init=False)
    recoveries: "list[asyncio.Future[None]]" = field(default_factory=list)
    openers_left: list[str] = field(default_factory=list)
    paused_until_s: float = 0.0
    dies_after: int | None = None
    """The writer dies after this many confirmations, counted from the next change of the metadata."""
    doomed: int | None = None
    """The writer dies after this many more confirmations."""
    dies_with_all: bool = False
    """Whether all bookies lose power when the writer dies."""

    @property
    def ledger(self) -> LedgerId:
        """The ledger's id."""
        return self.writer.ledger_id

    @property
    def lossy_ids(self) -> frozenset[BookieId]:
        """The bookie with lost disks or wrong bytes, if there is one."""
        return frozenset({self.ids[self.lossy]}) if self.lossy else frozenset()

    # ---- the writer
    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        self.history.on_confirm(up_to)
        self.world.loop.note(f"confirmed {up_to}")
        if self.doomed is not None:
            self.doomed -= 1
            if self.doomed <= 0:
                # Not called directly: the writer's code that calls this would continue to run.
                self.world.loop.call_soon(self.kill_writer, context=contextvars.Context())

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self.history.failed = True
        self.world.loop.note(f"the writer failed: {error}")

    def on_write(self, key: str) -> None:
        """Note a change of the ledger's metadata, and arm the writer's death if one is planned after it."""
        if key == layout.ledger_path(self.ledger):
            metadata = stored_metadata(self.world, self.ledger)
            segments = "; ".join(f"{one.first_entry}: {' '.join(one.ensemble)}" for one in metadata.segments)
            self.world.loop.note(f"metadata: {metadata.state.name} last {metadata.last_entry}  {segments}")
            if self.dies_after is not None and metadata.state is LedgerState.OPEN:
                self.doomed, self.dies_after = self.dies_after, None

    def kill_writer(self) -> None:
        """Kill the writer's process."""
        if not self.writing.node.dead:
            self.world.loop.note("the writer dies")
            self.world.kill_client(self.writing)
            if self.dies_with_all:
                for host in sorted(self.world.bookies):
                    self.world.crash_bookie(host, "none")

    async def feed(self, end_s: float) -> None:
        """Submit entries of random sizes in random pieces until the end or a failure."""
        chance, loop, count = random.Random(self.script.randrange(1 << 30)), self.world.loop, 0
        pause_s = chance.choice((0.01, 0.05, 0.2))
        while loop.time() < end_s and not self.history.failed:
            if count >= ENTRIES_AT_SPEED:
                pause_s = 0.5
            await asyncio.sleep(max(chance.uniform(0.0, pause_s), self.paused_until_s - loop.time()))
            payloads = []
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                payloads.append(b"%d:" % count + bytes(chance.choice((0, 10, 10, 300, 3000))))
                count += 1
            try:
                first = self.writer.submit(payloads)
            except QuireError:
                return
            self.history.on_submit(first, payloads)

    # ---- steps of this scenario
    def step_pause(self, step: Step) -> None:
        """The writer pauses."""
        self.paused_until_s = self.world.loop.time() + step.value

    def step_take_over(self, step: Step) -> None:
        """One opener recovers the ledger."""
        if self.ending != "closes" and step.who in self.openers_left and self.writing_is_over(step):
            self.open(step.who)

    def writing_is_over(self, step: Step) -> bool:
        """Whether an opener may recover now: if the writer is to die, not before its death."""
        return self.ending == "taken over" or self.writing.node.dead

    def open(self, who: str) -> None:
        """Begin a recovery."""
        self.openers_left.remove(who)
        self.world.loop.note(f"{who} recovers")
        recovering = recover(self.world, self.clients[who], self.ledger, self.history, who)
        self.recoveries.append(asyncio.ensure_future(recovering))

    def step_die(self, step: Step) -> None:
        """Let the writer die now (0), or after confirmations from its next ensemble change (> 0) or from now (< 0)."""
        if self.ending != "closes":
            if step.value > 0:
                self.dies_after = int(step.value)
            elif step.value < 0:
                self.doomed = int(-step.value)
            else:
                self.kill_writer()

    def step_lose(self, step: Step) -> None:
        """Lose a bookie with its disks; an empty one replaces it."""
        if step.who in self.world.bookies:
            self.world.crash_bookie(step.who, "none")
            del self.world.bookies[step.who]
            self.world.bookies["b9"] = SimBookie("b9", SimDisk(chance=random.Random(9), latency_s=0.0005))
            self.faults.start_later("b9")

    def step_lie(self, step: Step) -> None:
        """Let a bookie serve wrong bytes for every entry from now on."""
        self.world.loop.network.corrupted_hosts.add(step.who)

    def plan(self) -> list[Step]:
        """Return all steps until the end of the faults."""
        script, seconds = self.script, self.seconds
        steps = [] if self.bare else draw(script, self.faults.targets, seconds)
        if self.lossy:
            kind = script.choice(("lie", "lie", "lose"))
            steps.append(Step(0.0 if kind == "lie" else script.uniform(0.0, seconds), kind, self.lossy))
        for _ in range(script.choice((0, 0, 1, 3))):
            steps.append(Step(script.uniform(0.0, seconds), "pause", value=script.choice((0.3, 2.0))))
        if self.ending == "taken over":
            if self.bare and script.random() < 0.5:
                steps += self.pause_and_power(script.uniform(0.0, seconds / 2))
            elif self.bare:
                steps += self.change_and_take_over(script.uniform(0.0, seconds / 2))
            else:
                steps += [Step(script.uniform(0.1, seconds), "take over", who) for who in self.openers_left]
            if script.random() < 0.2:
                steps.append(Step(script.uniform(0.0, seconds), "die"))
        elif self.ending == "dies":
            at_s = script.uniform(0.0, seconds)
            die = Step(at_s, "die", value=script.choice((0.0, 1.0, 1.0, 2.0, 3.0)))
            if self.bare or script.random() < 0.3:
                steps += self.lead_lost(at_s)
                if script.random() < 0.6:
                    die = Step(steps[-1].at_s + script.uniform(0.0, 0.5), "die", value=-script.choice((1.0, 2.0, 4.0)))
            steps.append(die)
        elif self.bare:
            steps += self.lead_lost(script.uniform(0.0, seconds))
        return steps

    def change_and_take_over(self, at_s: float) -> list[Step]:
        """The writer replaces a bookie while openers recover its ledger, and the metadata store is slow."""
        script, lost = self.script, self.script.choice(self.members())
        return [
            Step(at_s, "metadata slow", value=script.choice((0.1, 0.5, 1.0))),
            Step(at_s + 0.01, script.choice(("crash", "kill", "break")), lost),
            *(Step(at_s + script.uniform(0.0, 0.6), "take over", who) for who in self.openers_left),
        ]

    def members(self) -> list[str]:
        """Return the hosts of the ledger's first ensemble."""
        ensemble = self.writer.metadata.segments[0].ensemble
        return [host for host, bookie in self.ids.items() if bookie in ensemble]

    def lead_lost(self, at_s: float) -> list[Step]:
        """One bookie is far ahead of the others and then fails, while the metadata store is slow or loses responses."""
        script = self.script
        ahead = script.choice(self.members())
        slow_s = script.choice((0.1, 0.3))
        slow = [Step(at_s, "slow disk", host, value=slow_s) for host in self.faults.targets.bookies if host != ahead]
        lost_s = at_s + script.uniform(0.0, slow_s)
        lost = script.choice((Step(lost_s, "crash", ahead), Step(lost_s, "break", ahead), Step(lost_s, "kill", ahead)))
        unsure = script.choice(("metadata slow", "metadata late", "metadata unknown", "metadata unknown"))
        doubt = Step(at_s, unsure, value=script.choice((0.3, 0.6, 0.9)))
        return [Step(at_s, "start", ahead), Step(at_s, "slow disk", ahead, value=0.0005), *slow, doubt, lost]

    def pause_and_power(self, at_s: float) -> list[Step]:
        """Nothing is in flight while an opener recovers and all bookies lose their unsynced data."""
        gap_s = self.script.uniform(0.05, 0.6)
        return [
            Step(at_s, "pause", value=gap_s + 2.0),
            Step(at_s + 0.3, "take over", self.script.choice(self.openers_left)),
            Step(at_s + 0.3 + gap_s, "power"),
        ]


async def _set_up(loop: SimLoop, seed: int, *, bare: bool) -> LedgerScene:
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    if bare:
        world.flush_interval_s = (2.0, 8.0)  # unflushed entries stay in memory
    await world.start_bookies(script.choice((3, 4, 5, 5, 6)))
    slow = {
        "slow_replica_bytes_max": script.choice((1 << 14, 1 << 24)),
        "slow_replica_grace_s": script.choice((0.05, 2.0)),
        "slow_replica_s": script.choice((0.5, 10.0)),
        "suspect_s": script.choice((2.0, 30.0)),
        "delay_ensemble_change": script.random() < 0.15,
        "ensemble_changes_max": script.choice((1000, 1000, 3)),
        "add_timeout_s": script.choice((1.0, 5.0)),
        "read_timeout_s": script.choice((1.0, 5.0)),
    }
    clients = {host: await world.start_client(host, **slow) for host in ("writer", *OPENERS, "follower")}
    quorums = script.choice([q for q in QUORUMS if q[0] <= len(world.bookies)])
    writing = clients["writer"]
    created = writing.ledgers.create_ledger(ensemble_size=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
    ids = {host: place.running.bookie_id for host, place in world.bookies.items() if place.running is not None}
    scene = LedgerScene(
        world, script, writing, await world.on(writing, created), LedgerHistory(), clients, quorums, ids
    )
    scene.writer.listener = scene
    world.metadata.on_write.append(scene.on_write)
    scene.seconds = loop.plan.seconds(script.uniform(1.0, 8.0))
    scene.openers_left = list(OPENERS[: script.choice((2, 2, 3))])
    if not loop.plan.calm:
        endings = ENDINGS[:3] if bare else ENDINGS
        scene.ending, scene.bare = endings[seed % len(endings)], bare
    scene.dies_with_all = scene.ending == "dies" and script.random() < (0.8 if bare else 0.5)
    if quorums[2] >= 2 and script.random() < 0.4:
        scene.lossy = script.choice(sorted(world.bookies))
    down_max = script.choice((1, 2, len(world.bookies)))
    targets = Targets(sorted(world.bookies), ("writer", "writer", *OPENERS[:2]), down_max)
    scene.faults = Faults(
        world,
        targets,
        {
            "pause": scene.step_pause,
            "take over": scene.step_take_over,
            "die": scene.step_die,
            "lose": scene.step_lose,
            "lie": scene.step_lie,
        },
    )
    return scene


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    return await perform(await _set_up(loop, seed, bare=False))


async def run_bare(loop: SimLoop, seed: int) -> LedgerHistory:
    """Run one seed of a known risky sequence with few other faults."""
    return await perform(await _set_up(loop, seed, bare=not loop.plan.calm))


async def perform(scene: LedgerScene) -> LedgerHistory:
    """Run from the first entry to the final check. Raises HistoryError or AssertionError if a guarantee is violated."""
    world, history, loop = scene.world, scene.history, scene.world.loop
    feeding = world.on(scene.writing, scene.feed(loop.time() + scene.seconds))
    follower = asyncio.ensure_future(_follow(scene))
    await scene.faults.run(loop.plan.choose(scene.plan()), scene.seconds)
    if scene.ending == "dies":
        scene.kill_writer()
    if scene.ending == "closes":
        await scene.faults.heal()
        await feeding
        await _close(scene)
    else:
        await _end_by_openers(scene, feeding)
    follower.cancel()
    opening = scene.clients["opener"]
    reader = await retry(
        lambda: world.on(opening, opening.ledgers.open_ledger(scene.ledger, recover=True)), seconds=300
    )
    history.on_close(reader.last_add_confirmed)
    await retry(lambda: world.on(opening, read_all(reader, history, "opener")), seconds=300)
    history.check()
    await check_copies(world, scene.ledger, history, reader.last_add_confirmed, lossy=scene.lossy_ids)
    return history


async def _end_by_openers(scene: LedgerScene, feeding: "asyncio.Task[None]") -> None:
    """Let all remaining openers recover the ledger."""
    world, chance = scene.world, scene.script
    if scene.writing.node.dead:
        await scene.faults.heal()
        await asyncio.sleep(2.0)
        if not scene.recoveries:
            await check_copies(
                world, scene.ledger, scene.history, EntryId(scene.history.confirmed_up_to), lossy=scene.lossy_ids
            )
        await _take_holders_away(scene)
    seconds = world.loop.plan.seconds(chance.uniform(0.5, 4.0))
    steps = [] if scene.bare else draw(chance, scene.faults.targets, seconds)
    faults = asyncio.ensure_future(scene.faults.run(world.loop.plan.choose(steps), seconds))
    for who in list(scene.openers_left):
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        scene.open(who)
    await faults
    await scene.faults.heal()
    await asyncio.gather(*scene.recoveries)
    if not scene.writing.node.dead:
        await feeding
        await asyncio.sleep(QUIET_S)  # responses still in flight must not confirm anything


async def _take_holders_away(scene: LedgerScene) -> None:
    """Cut the power of Qa-1 bookies that hold the last acknowledged entry: recovery must work without them."""
    world, last = scene.world, scene.history.confirmed_up_to
    metadata = stored_metadata(world, scene.ledger)
    entry = EntryId(max(last, 0))
    ensemble = metadata.ensemble_of(entry)
    named = [ensemble[at] for at in write_set(entry, metadata.ensemble_size, metadata.write_quorum)]
    hosts = [host for host, bookie in scene.ids.items() if bookie in set(named) - scene.lossy_ids]
    spare = scene.quorums[2] - 1 - len(scene.lossy_ids & set(named))
    away = scene.script.sample(hosts, min(spare, len(hosts))) if spare > 0 else []
    steps = [Step(0.0, "crash", host) for host in away]
    for step in world.loop.plan.choose(steps):
        await scene.faults.one(step)
        world.loop.call_later(scene.script.uniform(0.5, 20.0), scene.faults.start_later, step.who)


async def _follow(scene: LedgerScene) -> None:
    """Read without recovery. Entries read were submitted, and the LAC never decreases."""
    client, chance = scene.clients["follower"], random.Random(scene.script.randrange(1 << 30))
    reader: Any = None
    while True:
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        try:
            if reader is None:
                reader = await scene.world.on(client, client.ledgers.open_ledger(scene.ledger, recover=False))
            before = reader.last_add_confirmed
            lac = await scene.world.on(client, reader.read_last_add_confirmed())
            scene.history.on_lac("follower", lac)
            if lac > before:
                first = EntryId(max(before + 1, lac - 5))
                entries = await scene.world.on(client, reader.read(first, lac))
                scene.history.on_read("follower", first, [bytes(entry.payload) for entry in entries])
        except QuireError:
            continue


async def _close(scene: LedgerScene) -> None:
    """Close the ledger with its writer; entries that a replica lacks must then be marked."""
    world, client = scene.world, scene.writing

    async def attempt() -> LedgerMetadata:
        try:
            return await world.on(client, scene.writer.close())
        except LedgerError as error:
            raise AssertionError(f"no other client changed the ledger, but its close failed: {error}") from error

    metadata: LedgerMetadata = await retry(attempt, seconds=300)
    scene.history.on_close(metadata.last_entry)
    await asyncio.sleep(60)  # the last replicas, and the marks
    lacking = await check_copies(world, scene.ledger, scene.history, metadata.last_entry, lossy=scene.lossy_ids)
    marks = UnderReplication(client.session, world.clock)
    mark = await retry(lambda: world.on(client, marks.read(scene.ledger)), seconds=300)
    marked: set[BookieId] = set() if mark is None else set(mark.bookies)
    unmarked = {bookie: first for bookie, first in lacking.items() if bookie not in marked}
    if unmarked:
        raise HistoryError(f"bookies lack entries from there on, without a mark: {unmarked}; marked: {sorted(marked)}")
