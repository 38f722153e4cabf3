"""A writer that replaces lost bookies, openers that recover, a reader that follows: one ledger, any number of faults.

Three endings. The writer closes its ledger itself: then every replica that lacks an entry must be marked. Or openers
take the ledger over while the writer still writes, or only pauses: they must agree on one end, and the writer must
notice. Or the writer dies, by preference right after it confirmed something during an ensemble change: then everybody
else comes back, each acknowledged entry must be on Qa of the bookies that the metadata name, and the openers recover
without Qa-1 of the bookies that hold the last ones. One bookie may serve wrong bytes, or be lost with its disks, where
the ack quorum tolerates that.
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
from tests.sim.faults import Cast, Faults, draw
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.judge import check_copies, stored_metadata
from tests.sim.ledger_scenario import read_all, recover
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.world import SimBookie, SimClient, World, insist

QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1), (3, 3, 3), (4, 3, 2), (2, 2, 1), (3, 3, 1), (2, 2, 2))
ENDINGS = ("taken over", "dies", "closes", "taken over", "dies")
OPENERS = ("opener", "other", "third")
ENTRIES_AT_SPEED = 300
"""From then on the writer takes its time: the judge reads every copy of every entry."""
QUIET_S = 30.0
"""After which no answer is under way any more."""


@dataclass(slots=True)
class Play:
    """One ledger and everybody who has to do with it."""

    world: World
    script: random.Random
    writing: SimClient
    writer: LedgerWriter
    history: LedgerHistory
    clients: dict[str, SimClient]
    quorums: tuple[int, int, int]
    ids: dict[str, BookieId]
    """By host, of the bookies that there were in the beginning."""
    lossy: str = ""
    """The bookie whose bytes do not count."""
    ending: str = "closes"
    bare: bool = False
    """Little happens but one of the known ways to go wrong: more would only disturb it."""
    seconds: float = 0.0
    faults: Faults = field(init=False)
    recoveries: "list[asyncio.Future[None]]" = field(default_factory=list)
    openers_left: list[str] = field(default_factory=list)
    paused_until_s: float = 0.0
    dies_after: int | None = None
    """So many confirmations after the next change of the metadata."""
    doomed: int | None = None
    """So many confirmations from now on."""
    dies_with_all: bool = False
    """All bookies lose power in the same moment."""

    @property
    def ledger(self) -> LedgerId:
        """Which."""
        return self.writer.ledger_id

    @property
    def lossy_ids(self) -> frozenset[BookieId]:
        """The bookie whose disks are lost or lie, if there is one."""
        return frozenset({self.ids[self.lossy]}) if self.lossy else frozenset()

    # ---- the writer
    def on_confirmed(self, up_to: EntryId) -> None:
        """See WriterListener."""
        self.history.on_confirm(up_to)
        self.world.loop.note(f"confirmed {up_to}")
        if self.doomed is not None:
            self.doomed -= 1
            if self.doomed <= 0:
                # Not from inside: what runs here now would go on.
                self.world.loop.call_soon(self.kill_writer, context=contextvars.Context())

    def on_failed(self, error: LedgerError) -> None:
        """See WriterListener."""
        self.history.failed = True
        self.world.loop.note(f"the writer failed: {error}")

    def on_write(self, key: str) -> None:
        """The metadata store did it."""
        if key == layout.ledger_path(self.ledger):
            metadata = stored_metadata(self.world, self.ledger)
            segments = "; ".join(f"{one.first_entry}: {' '.join(one.ensemble)}" for one in metadata.segments)
            self.world.loop.note(f"metadata: {metadata.state.name} last {metadata.last_entry}  {segments}")
            if self.dies_after is not None and metadata.state is LedgerState.OPEN:
                self.doomed, self.dies_after = self.dies_after, None

    def kill_writer(self) -> None:
        """Its process is gone."""
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
        """The writer has nothing to say for a while."""
        self.paused_until_s = self.world.loop.time() + step.value

    def step_take_over(self, step: Step) -> None:
        """One opener recovers the ledger."""
        if self.ending != "closes" and step.who in self.openers_left and self.writing_is_over(step):
            self.open(step.who)

    def writing_is_over(self, step: Step) -> bool:
        """Where the writer is to die nobody else ends its ledger before."""
        return self.ending == "taken over" or self.writing.node.dead

    def open(self, who: str) -> None:
        """Begin a recovery."""
        self.openers_left.remove(who)
        self.world.loop.note(f"{who} recovers")
        recovering = recover(self.world, self.clients[who], self.ledger, self.history, who)
        self.recoveries.append(asyncio.ensure_future(recovering))

    def step_die(self, step: Step) -> None:
        """The writer dies now, or when it has confirmed something: after its next ensemble change (above 0), or now."""
        if self.ending != "closes":
            if step.value > 0:
                self.dies_after = int(step.value)
            elif step.value < 0:
                self.doomed = int(-step.value)
            else:
                self.kill_writer()

    def step_lose(self, step: Step) -> None:
        """A bookie is gone with its disks. Another one, empty, is there instead."""
        if step.who in self.world.bookies:
            self.world.crash_bookie(step.who, "none")
            del self.world.bookies[step.who]
            self.world.bookies["b9"] = SimBookie("b9", SimDisk(chance=random.Random(9), latency_s=0.0005))
            self.faults.start_later("b9")

    def step_lie(self, step: Step) -> None:
        """From now on the bytes of every entry that a bookie serves are wrong."""
        self.world.loop.network.lying.add(step.who)

    def plan(self) -> list[Step]:
        """Everything that is to happen until the end of the faults."""
        script, seconds = self.script, self.seconds
        steps = [] if self.bare else draw(script, self.faults.cast, seconds)
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
        """The writer replaces a bookie while somebody claims its ledger, and the store takes its time with both."""
        script, lost = self.script, self.script.choice(self.members())
        return [
            Step(at_s, "metadata slow", value=script.choice((0.1, 0.5, 1.0))),
            Step(at_s + 0.01, script.choice(("crash", "kill", "break")), lost),
            *(Step(at_s + script.uniform(0.0, 0.6), "take over", who) for who in self.openers_left),
        ]

    def members(self) -> list[str]:
        """The hosts of the bookies that the ledger began with."""
        ensemble = self.writer.metadata.segments[0].ensemble
        return [host for host, bookie in self.ids.items() if bookie in ensemble]

    def lead_lost(self, at_s: float) -> list[Step]:
        """One bookie is far ahead of the others, and then it is the one that is lost; the store is slow to say so."""
        script = self.script
        ahead = script.choice(self.members())
        slow_s = script.choice((0.1, 0.3))
        slow = [Step(at_s, "slow disk", host, value=slow_s) for host in self.faults.cast.bookies if host != ahead]
        lost_s = at_s + script.uniform(0.0, slow_s)
        lost = script.choice((Step(lost_s, "crash", ahead), Step(lost_s, "break", ahead), Step(lost_s, "kill", ahead)))
        unsure = script.choice(("metadata slow", "metadata late", "metadata unknown", "metadata unknown"))
        doubt = Step(at_s, unsure, value=script.choice((0.3, 0.6, 0.9)))
        return [Step(at_s, "start", ahead), Step(at_s, "slow disk", ahead, value=0.0005), *slow, doubt, lost]

    def pause_and_power(self, at_s: float) -> list[Step]:
        """Nothing is on its way while somebody takes over and everybody forgets what is not on disk."""
        gap_s = self.script.uniform(0.05, 0.6)
        return [
            Step(at_s, "pause", value=gap_s + 2.0),
            Step(at_s + 0.3, "take over", self.script.choice(self.openers_left)),
            Step(at_s + 0.3 + gap_s, "power"),
        ]


async def _set_up(loop: SimLoop, seed: int, *, bare: bool) -> Play:
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    if bare:
        world.flush_interval_s = (2.0, 8.0)  # what is only in memory stays there
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
    play = Play(world, script, writing, await world.on(writing, created), LedgerHistory(), clients, quorums, ids)
    play.writer.listener = play
    world.metadata.on_write.append(play.on_write)
    play.seconds = loop.plan.seconds(script.uniform(1.0, 8.0))
    play.openers_left = list(OPENERS[: script.choice((2, 2, 3))])
    if not loop.plan.calm:
        endings = ENDINGS[:3] if bare else ENDINGS
        play.ending, play.bare = endings[seed % len(endings)], bare
    play.dies_with_all = play.ending == "dies" and script.random() < (0.8 if bare else 0.5)
    if quorums[2] >= 2 and script.random() < 0.4:
        play.lossy = script.choice(sorted(world.bookies))
    down_max = script.choice((1, 2, len(world.bookies)))
    cast = Cast(sorted(world.bookies), ("writer", "writer", *OPENERS[:2]), down_max)
    play.faults = Faults(
        world,
        cast,
        {
            "pause": play.step_pause,
            "take over": play.step_take_over,
            "die": play.step_die,
            "lose": play.step_lose,
            "lie": play.step_lie,
        },
    )
    return play


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
    return await perform(await _set_up(loop, seed, bare=False))


async def run_bare(loop: SimLoop, seed: int) -> LedgerHistory:
    """One seed of the known ways to go wrong: hardly anything else happens to disturb them."""
    return await perform(await _set_up(loop, seed, bare=not loop.plan.calm))


async def perform(play: Play) -> LedgerHistory:
    """From the first entry to the judgement. Raises HistoryError or AssertionError when a promise is broken."""
    world, history, loop = play.world, play.history, play.world.loop
    feeding = world.on(play.writing, play.feed(loop.time() + play.seconds))
    follower = asyncio.ensure_future(_follow(play))
    await play.faults.run(loop.plan.choose(play.plan()), play.seconds)
    if play.ending == "dies":
        play.kill_writer()
    if play.ending == "closes":
        await play.faults.heal()
        await feeding
        await _close(play)
    else:
        await _end_by_openers(play, feeding)
    follower.cancel()
    opening = play.clients["opener"]
    reader = await insist(
        lambda: world.on(opening, opening.ledgers.open_ledger(play.ledger, recover=True)), seconds=300
    )
    history.on_close(reader.last_add_confirmed)
    await insist(lambda: world.on(opening, read_all(reader, history, "opener")), seconds=300)
    history.check()
    await check_copies(world, play.ledger, history, reader.last_add_confirmed, lossy=play.lossy_ids)
    return history


async def _end_by_openers(play: Play, feeding: "asyncio.Task[None]") -> None:
    """Everybody who has not yet takes the ledger over."""
    world, chance = play.world, play.script
    if play.writing.node.dead:
        await play.faults.heal()
        await asyncio.sleep(2.0)
        if not play.recoveries:
            await check_copies(
                world, play.ledger, play.history, EntryId(play.history.confirmed_up_to), lossy=play.lossy_ids
            )
        await _take_holders_away(play)
    seconds = world.loop.plan.seconds(chance.uniform(0.5, 4.0))
    steps = [] if play.bare else draw(chance, play.faults.cast, seconds)
    faults = asyncio.ensure_future(play.faults.run(world.loop.plan.choose(steps), seconds))
    for who in list(play.openers_left):
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        play.open(who)
    await faults
    await play.faults.heal()
    await asyncio.gather(*play.recoveries)
    if not play.writing.node.dead:
        await feeding
        await asyncio.sleep(QUIET_S)  # answers that are still under way must not confirm anything any more


async def _take_holders_away(play: Play) -> None:
    """Qa-1 of the bookies that hold the last acknowledged entry lose power: the recovery does without for a while."""
    world, last = play.world, play.history.confirmed_up_to
    metadata = stored_metadata(world, play.ledger)
    entry = EntryId(max(last, 0))
    ensemble = metadata.ensemble_of(entry)
    named = [ensemble[at] for at in write_set(entry, metadata.ensemble_size, metadata.write_quorum)]
    hosts = [host for host, bookie in play.ids.items() if bookie in set(named) - play.lossy_ids]
    spare = play.quorums[2] - 1 - len(play.lossy_ids & set(named))
    away = play.script.sample(hosts, min(spare, len(hosts))) if spare > 0 else []
    steps = [Step(0.0, "crash", host) for host in away]
    for step in world.loop.plan.choose(steps):
        await play.faults.one(step)
        world.loop.call_later(play.script.uniform(0.5, 20.0), play.faults.start_later, step.who)


async def _follow(play: Play) -> None:
    """A reader that takes nothing over. What it sees was submitted, and it never sees less than before."""
    client, chance = play.clients["follower"], random.Random(play.script.randrange(1 << 30))
    reader: Any = None
    while True:
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        try:
            if reader is None:
                reader = await play.world.on(client, client.ledgers.open_ledger(play.ledger, recover=False))
            before = reader.last_add_confirmed
            lac = await play.world.on(client, reader.read_last_add_confirmed())
            play.history.on_lac("follower", lac)
            if lac > before:
                first = EntryId(max(before + 1, lac - 5))
                entries = await play.world.on(client, reader.read(first, lac))
                play.history.on_read("follower", first, [bytes(entry.payload) for entry in entries])
        except QuireError:
            continue


async def _close(play: Play) -> None:
    """The writer closes the ledger, then whatever a replica lacks must be marked."""
    world, client = play.world, play.writing

    async def attempt() -> LedgerMetadata:
        try:
            return await world.on(client, play.writer.close())
        except LedgerError as error:
            raise AssertionError(f"nobody else touched the ledger, yet its close failed: {error}") from error

    metadata: LedgerMetadata = await insist(attempt, seconds=300)
    play.history.on_close(metadata.last_entry)
    await asyncio.sleep(60)  # the last replicas, and the marks
    lacking = await check_copies(world, play.ledger, play.history, metadata.last_entry, lossy=play.lossy_ids)
    marks = UnderReplication(client.session, world.clock)
    mark = await insist(lambda: world.on(client, marks.read(play.ledger)), seconds=300)
    marked: set[BookieId] = set() if mark is None else set(mark.bookies)
    untold = {bookie: first for bookie, first in lacking.items() if bookie not in marked}
    if untold:
        raise HistoryError(f"these lack entries from there on, and nobody was told: {untold}; marked: {sorted(marked)}")
