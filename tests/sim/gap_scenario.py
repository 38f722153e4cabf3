"""Two openers and a writer at the moments at which a rule of recovery is all that holds: one scene a run.

From some moment on only one of three bookies gets what the writer sends, so that the last entries are on it alone:
nobody may have confirmed them, and nobody need keep them. What happens then is directed, with little left to chance:

*two ends*      The openers are cut from different bookies. One finds the entries, the other one finds them missing.
*late fence*    The fence of a recovery does not reach a bookie in its first round, but comes seconds later, and the
                bookie that has the entries falls silent after that round: the end is decided by the unfenced one.
*vouching*      One opener stores the entries again and does not get to close; another one, which looked before, closes
                below them, while a reader follows.
"""

import asyncio
import random

from quire_bookie.errors import QuireError
from tests.sim.ensemble_scenario import Play, perform
from tests.sim.faults import Cast, Faults
from tests.sim.history import LedgerHistory
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.world import World

SCENES = ("two ends", "late fence", "vouching")
CLIENTS = ("writer", "opener", "other", "follower", "watcher")
PATIENT = {
    "add_timeout_s": 30.0,
    "read_timeout_s": 1.0,
    "slow_replica_s": 60.0,
    "slow_replica_grace_s": 60.0,
    "slow_replica_bytes_max": 1 << 24,
}
"""Nobody is replaced for being slow: that would end the scene."""
SCENE_S = 8.0


class Gap(Play):
    """The play with one scene in place of drawn faults."""

    def plan(self) -> list[Step]:
        """The scene that the seed decides."""
        script = self.script
        has, lacks, third = script.sample(self.members(), 3)
        at_s = script.uniform(0.2, 1.0)
        alone = [Step(at_s, "cut one way", "writer", lacks), Step(at_s, "cut one way", "writer", third)]
        at_s += script.uniform(0.1, 0.5)
        match SCENES[script.randrange(len(SCENES))]:
            case "two ends":
                steps = self.two_ends(at_s, has, third)
            case "late fence":
                steps = self.late_fence(at_s, has, third)
            case _:
                steps = self.vouching(at_s, has, third)
        return alone + steps

    def two_ends(self, at_s: float, has: str, third: str) -> list[Step]:
        """Both begin at once."""
        script = self.script
        return [
            Step(at_s, "cut", "opener", has),
            Step(at_s, "cut", "other", third),
            *(Step(at_s + script.uniform(0.01, 0.05), "take over", who) for who in self.openers_left),
        ]

    def late_fence(self, at_s: float, has: str, third: str) -> list[Step]:
        """The third bookie gets what the writer sent after it was asked by the recovery, and before it is fenced.

        The writer has nothing more to say: the other bookies would tell it that they are fenced.
        """
        script, pause_s = self.script, at_s
        at_s += 0.3
        return [
            Step(pause_s, "pause", value=SCENE_S),
            Step(at_s, "strand next", "opener", third, value=5.0),
            Step(at_s, "answer once", has, "opener"),
            Step(at_s + 0.01, "take over", "opener"),
            Step(at_s + script.uniform(1.5, 3.5), "mend", "writer", third),
        ]

    def vouching(self, at_s: float, has: str, third: str) -> list[Step]:
        """The first one gets its last answer only when the second one has stored the entries again."""
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
            Step(second_s + script.uniform(2.0, 3.0), "mend", "opener", third),
        ]

    async def watch(self) -> None:
        """A second follower, which asks again at once."""
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
    """One seed. Raises HistoryError or AssertionError when a promise is broken."""
    world, script = World(loop, seed), random.Random(seed * 2 + 1)
    await world.start_bookies(3)
    clients = {host: await world.start_client(host, **PATIENT) for host in CLIENTS}
    writing = clients["writer"]
    writer = await world.on(writing, writing.ledgers.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2))
    ids = {host: place.running.bookie_id for host, place in world.bookies.items() if place.running is not None}
    play = Gap(world, script, writing, writer, LedgerHistory(), clients, (3, 3, 2), ids)
    writer.listener = play
    world.metadata.on_write.append(play.on_write)
    play.bare, play.seconds = True, loop.plan.seconds(SCENE_S)
    play.ending = "closes" if loop.plan.calm else "taken over"
    play.openers_left = ["opener", "other"]
    cast = Cast(sorted(world.bookies), ("writer", *play.openers_left))
    play.faults = Faults(world, cast, {"take over": play.step_take_over, "pause": play.step_pause})
    watching = asyncio.ensure_future(play.watch())
    history = await perform(play)
    watching.cancel()
    return history
