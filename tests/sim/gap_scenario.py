"""Two openers and a writer in sequences where a single rule of recovery decides about safety: one sequence a run.

From some moment on only one of three bookies receives the writer's adds, so that it alone has the last entries. They
must not be confirmed, and may be lost. The following steps are scripted, with little left to chance:

*two ends*      The openers are cut from different bookies. One finds the entries, the other one finds them missing.
*late fence*    The fence of a recovery does not reach a bookie in its first round, but arrives seconds later, and the
                bookie that has the entries falls silent after that round: the unfenced one decides the last entry.
*vouching*      One opener stores the entries again and does not get to close; another one, which read before that,
                closes below them, while a reader follows.

*twice*         The bookie that has the entries acknowledges each add twice, and then the opener does not reach it.

Five more begin otherwise:

*silent holder* The last entries are confirmed on two bookies. One of these answers the fence and then falls silent: a
                recovery that counts silence as a missing entry ends the ledger too early.
*closed early*  The entries that one bookie has are stored again on bookies with slow disks, and all bookies lose power
                when the ledger is closed.
*lost fence*    A bookie that does not sync its journal is fenced and loses power, so that the fence is lost. The
                writer reaches it and the third bookie, but not the other fenced one.
*last segment*  The LAC in the last entries is older than their segment, whose new bookie has no entry before it.
*hole*          Of the last entries one bookie stores all, one misses the first, and one receives none. Then the opener
                does not reach the first of these bookies.
"""

import asyncio
import contextvars
import random
from dataclasses import replace

from quire_bookie.errors import QuireError
from quire_bookie.metadata import layout
from quire_bookie.model import LedgerState
from tests.sim.ensemble_scenario import LedgerScene, perform
from tests.sim.faults import Faults, Targets
from tests.sim.history import LedgerHistory
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.stored_entries import stored_metadata
from tests.sim.world import World
from tests.support.stock_client import without_tokens

SCENES = (
    "two ends",
    "late fence",
    "vouching",
    "silent holder",
    "closed early",
    "lost fence",
    "last segment",
    "hole",
    "twice",
)
RISKY = "b2"
"""The bookie of *lost fence* that does not sync its journal."""
CLIENTS = ("writer", "opener", "other", "follower", "watcher")
PATIENT = {
    "add_timeout_s": 30.0,
    "read_timeout_s": 1.0,
    "slow_replica_s": 60.0,
    "slow_replica_grace_s": 60.0,
    "slow_replica_bytes_max": 1 << 24,
}
"""No bookie is replaced for being slow, as that would end the sequence."""
SCENE_S = 8.0


class Gap(LedgerScene):
    """Runs one scripted sequence in place of drawn faults."""

    scene = SCENES[0]
    power_at_close = False

    def plan(self) -> list[Step]:
        """Return the sequence that the seed selects."""
        script = self.script
        if self.scene == "last segment":
            return self.last_segment(script.uniform(0.2, 1.0))
        has, lacks, third = script.sample(self.members(), 3)
        at_s = script.uniform(0.2, 1.0)
        alone = [Step(at_s, "cut one way", "writer", lacks), Step(at_s, "cut one way", "writer", third)]
        at_s += script.uniform(0.1, 0.5)
        match self.scene:
            case "two ends":
                return alone + self.two_ends(at_s, has, third)
            case "late fence":
                return alone + self.late_fence(at_s, has, third)
            case "vouching":
                return alone + self.vouching(at_s, has, third)
            case "closed early":
                return alone + self.closed_early(at_s, lacks, third)
            case "silent holder":
                return [*alone[:1], *self.silent_holder(at_s, third)]
            case "hole":
                return [*alone[:1], *self.hole(at_s, has, third)]
            case "twice":
                return alone + self.twice(at_s, has)
            case _:
                return self.lost_fence(at_s)

    def silent_holder(self, at_s: float, third: str) -> list[Step]:
        """Only the remaining bookie has the last confirmed entries, and for some of them it is read last."""
        return [
            Step(at_s, "pause", value=SCENE_S),
            Step(at_s + 0.3, "answer once", third, "opener"),
            Step(at_s + 0.31, "take over", "opener"),
            Step(at_s + self.script.uniform(3.0, 5.0), "take over", "other"),
        ]

    def hole(self, at_s: float, has: str, third: str) -> list[Step]:
        """The last entries are sent in one write, so that the LAC of each is below the first."""
        script = self.script
        write_s = at_s + 0.3
        over_s = write_s + script.uniform(0.3, 0.6)
        return [
            Step(at_s, "pause", value=SCENE_S),
            Step(write_s, "miss add", third, "writer", value=float(script.choice((0, 1)))),
            Step(write_s, "write", value=float(script.choice((2, 3)))),
            Step(over_s, "cut", "opener", has),
            Step(over_s, "take over", "opener"),
        ]

    def twice(self, at_s: float, has: str) -> list[Step]:
        """From the beginning, so that every earlier entry was acknowledged twice, too."""
        over_s = at_s + self.script.uniform(0.3, 0.6)
        return [
            Step(0.0, "answer twice", has, "writer"),
            Step(over_s, "cut", "opener", has),
            Step(over_s, "take over", "opener"),
        ]

    def closed_early(self, at_s: float, lacks: str, third: str) -> list[Step]:
        """Only durable copies count."""
        slow_s = self.script.uniform(0.05, 0.3)
        return [
            *(Step(at_s, "slow disk", host, value=slow_s) for host in (lacks, third)),
            Step(at_s, "power at close"),
            Step(at_s + 0.01, "take over", "opener"),
        ]

    def lost_fence(self, at_s: float) -> list[Step]:
        """Nothing is in flight when the connection to the bookie ends, so the writer does not notice."""
        fenced, third = self.script.sample([host for host in self.members() if host != RISKY], 2)
        return [
            Step(at_s, "pause", value=2.5),
            Step(at_s + 0.3, "cut", "opener", third),
            Step(at_s + 0.31, "take over", "opener"),
            Step(at_s + 1.0, "crash", RISKY),
            Step(at_s + 1.2, "start", RISKY),
            Step(at_s + 1.2, "cut", "writer", fenced),
            Step(at_s + 5.0, "heal"),
        ]

    def last_segment(self, at_s: float) -> list[Step]:
        """The writer sends two groups; the slower bookie is lost between them, and no entry follows the second."""
        script, lost = self.script, self.script.choice(self.members())
        pause_s = at_s + script.uniform(0.4, 0.7)
        return [
            Step(at_s, "slow disk", lost, value=0.2),
            Step(pause_s, "pause", value=SCENE_S),
            Step(pause_s + script.uniform(0.0, 0.3), "crash", lost),
            Step(pause_s + 2.0, "take over", "opener"),
        ]

    async def step_write(self, step: Step) -> None:
        """The writer submits `value` entries at once."""
        await self.world.on(self.writing, self._write(int(step.value)))

    async def _write(self, count: int) -> None:
        payloads = [b"last %d" % number for number in range(count)]
        try:
            first = self.writer.submit(payloads)
        except QuireError:
            return
        self.history.on_submit(first, payloads)

    def step_power_at_close(self, step: Step) -> None:
        """All bookies lose power as soon as the ledger is closed."""
        self.power_at_close = True

    def on_write(self, key: str) -> None:
        """See LedgerScene."""
        super().on_write(key)
        if not self.power_at_close or key != layout.ledger_path(self.ledger):
            return
        if stored_metadata(self.world, self.ledger).state is LedgerState.CLOSED:
            self.power_at_close = False
            self.world.loop.call_soon(self._lose_power, context=contextvars.Context())

    def _lose_power(self) -> None:
        for host in sorted(self.world.bookies):
            self.world.crash_bookie(host, "none")
            self.faults.start_later(host)

    def two_ends(self, at_s: float, has: str, third: str) -> list[Step]:
        """Both openers begin at the same time."""
        script = self.script
        return [
            Step(at_s, "cut", "opener", has),
            Step(at_s, "cut", "other", third),
            *(Step(at_s + script.uniform(0.01, 0.05), "take over", who) for who in self.openers_left),
        ]

    def late_fence(self, at_s: float, has: str, third: str) -> list[Step]:
        """The third bookie receives the writer's adds after the recovery's read, and before it is fenced.

        The writer sends nothing more, as the other bookies would report that they are fenced.
        """
        script, pause_s = self.script, at_s
        at_s += 0.3
        return [
            Step(pause_s, "pause", value=SCENE_S),
            Step(at_s, "strand next", "opener", third, value=5.0),
            Step(at_s, "answer once", has, "opener"),
            Step(at_s + 0.01, "take over", "opener"),
            Step(at_s + script.uniform(1.5, 3.5), "restore one way", "writer", third),
        ]

    def vouching(self, at_s: float, has: str, third: str) -> list[Step]:
        """The first opener gets its last response only after the second one has stored the entries again."""
        script = self.script
        slow_s = script.choice((0.1, 0.2))
        second_s = at_s + 4 * slow_s
        return [
            *(Step(at_s, "slow disk", host, value=slow_s) for host in self.members()),
            Step(at_s, "cut", "opener", has),
            Step(at_s, "answer once", third, "opener"),
            Step(at_s + 0.01, "take over", "opener"),
            Step(second_s, "cut", "other", third),
            Step(second_s, "take over", "other"),
            Step(second_s + slow_s, "metadata cut", "other", value=4.0),
            Step(second_s + script.uniform(2.0, 3.0), "restore one way", "opener", third),
        ]

    async def watch(self) -> None:
        """Read as a second follower, which polls again immediately."""
        client = self.clients["watcher"]
        while True:
            await asyncio.sleep(0.02)
            try:
                reader = await self.world.on(client, client.ledgers.open_ledger(self.ledger, recover=False))
                while True:
                    self.history.on_lac("watcher", await self.world.on(client, reader.read_last_add_confirmed()))
                    await asyncio.sleep(0.02)
            except QuireError:
                continue


async def run(loop: SimLoop, seed: int) -> LedgerHistory:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    scene = SCENES[seed % len(SCENES)]
    if scene == "lost fence":
        world.flush_interval_s = (60.0, 90.0)  # no flush stores the fence
        world.changes_of[RISKY] = {"journal": replace(world.journal_settings, sync_data=False)}
    await world.start_bookies(3)
    clients = {host: await world.start_client(host, **PATIENT) for host in CLIENTS}
    without_tokens(clients["opener"].ledgers)  # so that its first message to a bookie is the fence
    writing = clients["writer"]
    e, w, a = quorums = (2, 2, 2) if scene == "last segment" else (3, 3, 2)
    created = writing.ledgers.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a)
    writer = await world.on(writing, created)
    ids = {host: place.running.bookie_id for host, place in world.bookies.items() if place.running is not None}
    gap = Gap(world, script, writing, writer, LedgerHistory(), clients, quorums, ids)
    gap.scene = scene
    writer.listener = gap
    world.metadata.on_write.append(gap.on_write)
    gap.bare, gap.seconds = True, loop.plan.seconds(SCENE_S)
    gap.ending = "closes" if loop.plan.calm else "taken over"
    gap.openers_left = ["opener", "other"]
    targets = Targets(sorted(world.bookies), ("writer", *gap.openers_left))
    steps = {
        "take over": gap.step_take_over,
        "pause": gap.step_pause,
        "power at close": gap.step_power_at_close,
        "write": gap.step_write,
    }
    gap.faults = Faults(world, targets, steps)
    watching = asyncio.ensure_future(gap.watch())
    history = await perform(gap)
    watching.cancel()
    return history
