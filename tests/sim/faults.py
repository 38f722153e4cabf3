"""The faults of a cluster: drawn as a list of steps, carried out one after the other, and ended.

    crash, kill, stop             a bookie loses power (`value` decides what its disk keeps), its process dies alone,
                                  it is stopped cleanly
    start, power                  a bookie starts again; all of them lose power and start again
    cut, cut one way, heal        no packet passes between two hosts, or in one direction; all partitions end
    restore one way               one direction works again
    break, strand                 connections are reset; or for one end only, while its sent bytes arrive later
    strand next                   as strand, with the first bytes that one host sends to the other
    answer once                   once one host has sent to the other, it receives no further response
    miss add                      a bookie does not store the next add of a host, but later ones; with a value it
                                  refuses it each time
    answer twice                  a bookie acknowledges each add of a host twice
    stalls, delay                 single packets, or all of them, take longer
    slow disk, full disk, full mount,
    sync error, write error       of one bookie; a mount is a separate file system below its folder
    filled                        as full disk, and the disk stays full
    metadata away, slow, unknown, late
                                  the metadata store is unreachable; it is slow; requests and responses are lost;
                                  requests that timed out are executed later
    metadata forgets              its listings are empty
    metadata cut                  one host does not reach it
    lease, watch gap              a living process loses its lease, or misses events
    lease away                    a client loses its lease, notices it late, and gets a new one seconds later
    clock                         the wall clock of a host jumps

A step that is impossible when its time comes, such as the crash of a bookie that is down, is skipped.
"""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from quire_bookie.errors import QuireError
from tests.sim.disk import Survival
from tests.sim.plan import Step
from tests.sim.world import World

SURVIVALS: tuple[Survival, ...] = ("none", "all", "random")
ROOMY_BYTES = 1 << 40
WEIGHTS = {
    "crash": 5,
    "kill": 1,
    "start": 7,
    "power": 1,
    "cut": 3,
    "cut one way": 3,
    "heal": 4,
    "break": 2,
    "strand": 3,
    "stalls": 2,
    "delay": 1,
    "slow disk": 2,
    "full disk": 1,
    "sync error": 1,
    "write error": 1,
    "metadata away": 2,
    "metadata slow": 1,
    "metadata unknown": 2,
    "metadata late": 2,
    "lease": 1,
    "watch gap": 1,
    "clock": 1,
}


@dataclass(frozen=True, slots=True)
class Targets:
    """The hosts that faults may strike. `clients`: hosts of clients; `down_max`: the most bookies down at a time."""

    bookies: Sequence[str]
    clients: Sequence[str]
    down_max: int = 2


def draw(
    chance: random.Random, targets: Targets, seconds: float, kinds_drawn: Mapping[str, int] = WEIGHTS
) -> list[Step]:
    """Draw the steps of `seconds`, singly or in bursts."""
    kinds = list(kinds_drawn)
    # Every run has its own mixture: without some kinds, others coincide more often.
    weights = [kinds_drawn[kind] * chance.choice((0, 1, 1, 4)) for kind in kinds]
    if not any(weights):
        return []
    calm_s = chance.choice((0.05, 0.3, 1.0, 3.0))
    steps: list[Step] = []
    at_s = 0.0
    while (at_s := at_s + chance.uniform(0.01, calm_s)) < seconds:
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            (kind,) = chance.choices(kinds, weights)
            steps.append(drawn(chance, targets, at_s, kind))
    return steps


def drawn(chance: random.Random, targets: Targets, at_s: float, kind: str) -> Step:
    """Draw one step of that kind: its hosts and its severity."""
    who, other, value = (
        chance.choice(targets.bookies),
        chance.choice((*targets.clients, *targets.clients, *targets.bookies)),
        0.0,
    )
    match kind:
        case "crash" | "power":
            value = float(chance.randrange(3))
        case "cut one way" | "strand":
            if chance.random() < 0.5:
                who, other = other, who
            value = chance.choice((0.1, 3.0))
        case "stalls":
            value = chance.choice((0.0, 0.02, 0.1))
        case "delay":
            value = chance.choice((0.002, 0.002, 0.05, 0.4))
        case "slow disk":
            value = chance.choice((0.0005, 0.005, 0.05, 0.5))
        case "full disk" | "full mount" | "filled":
            value = float(chance.choice((0, 2_000, 40_000)))
        case "metadata away" | "metadata forgets":
            value = chance.uniform(0.1, 4.0)
        case "metadata slow":
            value = chance.choice((0.004, 0.2, 1.0))
        case "metadata unknown" | "metadata late":
            value = chance.choice((0.0, 0.3, 0.9))
        case "lease away":
            who, value = chance.choice(targets.clients), chance.uniform(0.3, 12.0)
        case "lease" | "watch gap":
            who = chance.choice((*targets.bookies, *targets.clients))
        case "clock":
            who = chance.choice((*targets.bookies, *targets.clients))
            value = chance.choice((-86_400.0, -2.0, 5.0, 86_400.0))
    return Step(round(at_s, 3), kind, who, other, value)


class Faults:
    """Carries out steps. `more`: further kinds, defined by the scenario."""

    def __init__(
        self,
        world: World,
        targets: Targets,
        more: Mapping[str, Callable[[Step], Awaitable[None] | None]] | None = None,
    ) -> None:
        self.world = world
        self.targets = targets
        self._more = more or {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._away_until_s = 0.0

    async def run(self, steps: Sequence[Step], seconds: float) -> None:
        """Carry out the steps. Returns after `seconds`, even if the steps end earlier."""
        loop = self.world.loop
        begun = loop.time()
        for step in steps:
            if step.at_s >= seconds:
                break
            await asyncio.sleep(max(0.0, begun + step.at_s - loop.time()))
            await self.one(step)
        await asyncio.sleep(max(0.0, begun + seconds - loop.time()))

    async def one(self, step: Step) -> None:
        """Carry out one step, or skip it if it is impossible now."""
        known = self._more.get(step.kind)
        if known is not None:
            done = known(step)
            if done is not None:
                await done
        elif step.kind in ("start", "power"):
            self._start_or_cut(step)
        elif step.kind in (
            "crash",
            "kill",
            "stop",
            "full disk",
            "filled",
            "full mount",
            "slow disk",
            "sync error",
            "write error",
        ):
            self._bookie(step)
        elif step.kind.startswith(("metadata", "lease", "watch", "clock")):
            self._surroundings(step)
        else:
            self._network(step)
        self.world.loop.note(f"fault: {step}")

    # ---- bookies
    def _bookie(self, step: Step) -> None:
        world, place = self.world, self.world.bookies.get(step.who)
        if place is None:
            return
        match step.kind:
            case "crash" | "kill" | "stop":
                down = sum(one.node is None or one.stopping for one in world.bookies.values())
                if place.node is not None and down < self.targets.down_max:
                    if step.kind == "stop":
                        self._stop_later(step.who)
                    elif step.kind == "kill":
                        world.kill_bookie(step.who)
                    else:
                        world.crash_bookie(step.who, SURVIVALS[int(step.value)])
            case "slow disk":
                place.disk._latency_s = step.value
            case "full disk":
                used = place.disk._used_bytes()
                place.disk.capacity_bytes = used + int(step.value)
                world.loop.call_later(3.0, _free, world, step.who)
            case "filled":
                if step.who not in world.stay_full:  # filled twice, the disk would lose the bookie's reserve too
                    world.stay_full.add(step.who)
                    place.disk.capacity_bytes = place.disk._used_bytes() + int(step.value)
            case "full mount":
                for mount in place.disk._mounts:
                    place.disk.mount(mount, place.disk._used_bytes(mount) + int(step.value))
                world.loop.call_later(3.0, _free, world, step.who)
            case "sync error":
                for operation in ("submit", "sync"):
                    place.disk.fail_next(operation, "", OSError(errno.EIO, "simulated"))
                world.loop.call_later(2.0, self.start_later, step.who)
            case "write error":
                place.disk.fail_next("write", "", OSError(errno.EIO, "simulated"))
                world.loop.call_later(2.0, self.start_later, step.who)

    def _stop_later(self, host: str) -> None:
        """Begin to stop a bookie; it may lose power meanwhile."""
        task = self.world.loop.create_task(self._stop(host))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _stop(self, host: str) -> None:
        """Stop a bookie; if the stop fails, the process ends."""
        try:
            await self.world.stop_bookie(host)
        except (QuireError, OSError) as error:
            self.world.loop.note(f"{host} did not stop in order: {error}")
            if host in self.world.bookies:
                self.world.crash_bookie(host, "none")

    def _start_or_cut(self, step: Step) -> None:
        """Carry out a step that concerns several bookies."""
        world = self.world
        self.start_later(step.who)
        for host in sorted(world.bookies):
            if step.kind == "power" and world.bookies[host].node is not None:
                world.crash_bookie(host, SURVIVALS[int(step.value)])
                self.start_later(host)
            elif step.kind == "start" and world.chance.random() < 0.5:
                self.start_later(host)

    def start_later(self, host: str) -> None:
        """Begin to start a bookie that is down, or that failed and still runs."""
        place = self.world.bookies.get(host)
        if place is None:
            return
        if place.running is not None and place.running.failed.done():
            self.world.crash_bookie(host, "none")
        if place.node is None:
            task = self.world.loop.create_task(self._start(host))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _start(self, host: str) -> None:
        """Start a bookie; if the start fails, the process ends."""
        try:
            await self.world.start_bookie(host)
        except (QuireError, OSError) as error:
            self.world.loop.note(f"{host} did not start: {error}")
            if host in self.world.bookies and self.world.bookies[host].running is None:
                self.world.crash_bookie(host, "none")

    # ---- the rest
    def _network(self, step: Step) -> None:
        network = self.world.loop.network
        match step.kind:
            case "cut" if step.who != step.other:
                network.partition(step.who, step.other)
            case "cut one way" if step.who != step.other:
                network.cut_one_way(step.who, step.other)
            case "heal":
                network.heal()
            case "break":
                network.break_connections(step.who)
            case "strand":
                network.strand(step.who, step.other, step.value)
            case "restore one way":
                network.restore_one_way(step.who, step.other)
            case "strand next":
                network.strand_next(step.who, step.other, step.value)
            case "answer once":
                network.silence_after_answer(step.who, step.other)
            case "miss add":
                network.miss_add(step.other, step.who, refuses=step.value > 0)
            case "answer twice":
                network.answer_twice(step.who, step.other)
            case "stalls":
                network.stall_chance = step.value
            case "delay":
                network.delay_s = (0.0001, step.value)

    def _surroundings(self, step: Step) -> None:
        world = self.world
        session = world.sessions.get(step.who)
        match step.kind:
            case "metadata away":
                world.metadata.away = True
                self._away_until_s = max(self._away_until_s, world.loop.time() + step.value)
                world.loop.call_later(step.value, self._metadata_back)
            case "metadata cut" if session is not None and not session.cut:
                session.cut = True
                world.loop.call_later(step.value, session.reach)
            case "metadata forgets":
                world.metadata.listings_empty = True
                world.loop.call_later(step.value, self._listings_back)
            case "metadata unknown":
                world.metadata.unknown_chance = step.value
            case "metadata slow":
                world.metadata.delay_s = (0.0005, step.value)
            case "metadata late":
                world.metadata.late_chance = step.value
            case "lease" if session is not None and not session.cut:
                session.expire()
            case "lease away" if session is not None and not session.cut:
                session.lose_session(noticed_s=min(1.0, step.value / 2))
                world.loop.call_later(step.value, session.renew_session)
            case "watch gap" if session is not None and not session.cut:
                session.lose_events()
            case "clock":
                world.clock_of(step.who).wrong_ms += int(step.value * 1000)

    def _metadata_back(self) -> None:
        if self.world.loop.time() >= self._away_until_s:
            self.world.metadata.away = False

    def _listings_back(self) -> None:
        self.world.metadata.listings_empty = False

    async def heal(self) -> None:
        """End all faults and start every bookie."""
        world = self.world
        self._listings_back()
        world.metadata.unknown_chance = world.metadata.late_chance = 0.0
        world.metadata.delay_s = (0.0005, 0.004)
        world.metadata.away, self._away_until_s = False, 0.0
        world.loop.network.stall_chance, world.loop.network.delay_s = 0.0, (0.0001, 0.002)
        world.loop.network.heal()
        for host in sorted(world.bookies):
            _free(world, host)
            world.bookies[host].disk.forget_planned()
            world.bookies[host].disk._latency_s = min(world.bookies[host].disk._latency_s, 0.005)
        await asyncio.sleep(0)
        for _ in range(100):
            for host, place in sorted(world.bookies.items()):
                if place.running is not None and place.running.failed.done():
                    world.crash_bookie(host, "none")
                if place.node is None:
                    await self._start(host)
            pending = [host for host, place in world.bookies.items() if place.running is None or place.stopping]
            if not pending:
                break
            await asyncio.sleep(0.5)
        else:
            raise AssertionError(f"bookies do not start although all faults are over: {pending}")
        world.loop.note("all faults are over")


def _free(world: World, host: str) -> None:
    place = world.bookies.get(host)
    if place is not None and host not in world.stay_full:
        place.disk.capacity_bytes = ROOMY_BYTES
        for mount in place.disk._mounts:
            place.disk.mount(mount, ROOMY_BYTES)


async def disturb(
    world: World,
    clients: Sequence[str],
    seconds: float,
    *,
    down_max: int,
    kinds: Mapping[str, int] = WEIGHTS,
    surely: Sequence[str] = (),
) -> None:
    """Carry out faults drawn from the world's chance, each kind of `surely` at least once; then end all of them."""
    faults = Faults(world, Targets(sorted(world.bookies), [*clients], down_max))
    script = random.Random(world.chance.randrange(1 << 30))
    seconds = world.loop.plan.seconds(seconds)
    steps = draw(script, faults.targets, seconds, kinds)
    steps += [drawn(script, faults.targets, script.uniform(0.0, seconds), kind) for kind in surely]
    await faults.run(world.loop.plan.choose(steps), seconds)
    await faults.heal()
