"""Faults of broker processes: killed, stopped for seconds, cut off from each other, from clients and the store."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from quire_broker.server.broker import BrokerSettings
from tests.sim.broker_hosts import BrokerHost
from tests.sim.faults import Faults, Targets, draw, drawn
from tests.sim.plan import Step
from tests.sim.world import World

CLIENT = "client"
"""The host of all clients."""
OF_BROKERS = ("pause", "kill broker", "start broker", "cut brokers", "metadata cut")


class Brokers:
    """The broker hosts of a run. `http`: whether they have the admin API."""

    def __init__(self, world: World, settings: BrokerSettings, count: int, *, http: bool = False) -> None:
        self._world = world
        self.hosts = [BrokerHost(world, f"broker{number}", settings, http=http) for number in range(count)]
        self._by_name = {one.host: one for one in self.hosts}
        self.client = world.loop.start_node(CLIENT)
        """The process of all clients."""

    def chance(self) -> random.Random:
        """Return a new source of randomness."""
        return random.Random(self._world.chance.randrange(1 << 30))

    async def start(self) -> None:
        """Start every broker that is down."""
        for one in self.hosts:
            await one.start()

    async def disturb(
        self,
        seconds: float,
        kinds: Mapping[str, int],
        surely: Sequence[str] = (),
        more: Mapping[str, Callable[[Step], None]] | None = None,
    ) -> None:
        """Carry out drawn faults, then end all of them. `more`: further kinds, see `Faults`."""
        seconds = self._world.loop.plan.seconds(seconds)
        own = dict.fromkeys(OF_BROKERS, self._strike)
        targets = Targets(sorted(self._world.bookies), [*self._by_name, CLIENT], 1)
        faults = Faults(self._world, targets, own | dict(more or {}))
        script = self.chance()
        steps = draw(script, targets, seconds, kinds)
        steps += [drawn(script, targets, script.uniform(5.0, seconds), kind) for kind in surely]
        aimed = [self._aimed(script, step, own=step.kind in (more or {})) for step in steps]
        await faults.run(self._world.loop.plan.choose(aimed), seconds)
        await faults.heal()
        while any(one.paused for one in self.hosts):  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.5)
        await self.start()

    def _aimed(self, script: random.Random, step: Step, *, own: bool) -> Step:
        """Let the faults of processes strike brokers. `own`: the scenario defines the kind; its value is a seed."""
        who, other = script.sample(sorted(self._by_name), 2)
        match step.kind:
            case "pause":
                return Step(step.at_s, step.kind, who, value=script.choice((0.5, 2.0, 6.0, 15.0)))
            case "metadata cut":
                return Step(step.at_s, step.kind, who, value=script.choice((0.5, 4.0, 20.0)))
            case "kill broker" | "start broker":
                return Step(step.at_s, step.kind, who)
            case "cut brokers":
                return Step(step.at_s, step.kind, who, script.choice((other, other, CLIENT)), script.choice((0.0, 1.0)))
            case "lease away" | "lease" | "watch gap":
                return Step(step.at_s, step.kind, who, step.other, min(step.value, 8.0))
            case "metadata slow":
                return Step(step.at_s, step.kind, who, value=script.choice((0.004, 0.05, 0.3)))
            case "hush":
                return Step(step.at_s, step.kind, value=script.uniform(26.0, 34.0))
            case _ if own:
                return Step(step.at_s, step.kind, value=float(script.randrange(1, 1000)))
        return step

    def _strike(self, step: Step) -> None:
        one = self._by_name.get(step.who)
        match step.kind:
            case "pause" if one is not None:
                one.pause(step.value)
            case "kill broker" if one is not None and sum(each.broker is not None for each in self.hosts) > 1:
                one.kill()
            case "start broker" if one is not None and one.broker is None:
                self._world.loop.create_task(one.start())
            case "cut brokers" if step.value:
                self._world.loop.network.cut_one_way(step.who, step.other)
            case "cut brokers":
                self._world.loop.network.partition(step.who, step.other)
            case "metadata cut":
                session = self._world.sessions[step.who]
                if not session.cut:
                    session.cut = True
                    self._world.loop.call_later(step.value, session.reach)
