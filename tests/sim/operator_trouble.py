"""Events for the operator: requests of administrators, and faults. Most occur at a chosen step."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire_bookie.metadata import layout
from quire_bookie.metadata.drains import DRAIN_PROGRESS, DRAINS
from quire_bookie.server.upkeep.read_only import ReadOnlyReason
from quire_operator.builders.naming import REPLACE_ANNOTATION
from tests.sim.operator_checks import OBSERVED_S
from tests.sim.operator_pool import ENSEMBLE, NAME, POOL, Pool, host_of
from tests.sim.world import SimBookie

PATIENCE_S = 3000.0
STEP_PATIENCE_S = 300.0
FEWEST = 4
DRAIN_STEPS = ("Copying", "Verifying", "Shrinking", "RemovingCookie", "ReleasingClaims")
ROLL_STEPS = ("Waiting", "Replacing", "Settling")
EXPAND_STEPS = ("ResizingClaims", "Orphaning", "Recreating")
REPLACE_STEPS = ("Copying", "Unbinding", "Rejoining", "RemovingCookie")


@dataclass
class Trouble:
    """Causes events on one pool. `more_ledgers`: has a client write new ledgers."""

    pool: Pool
    more_ledgers: Callable[[], Awaitable[None]]

    async def wish(self, what: str, step: str) -> None:
        """Cause one event. `step`: the step of an operation at which an event with a duration begins."""
        pool, world = self.pool, self.pool.world
        replicas = self._replicas
        pod = f"{NAME}-bookie-{world.chance.randrange(replicas)}"
        world.loop.note(f"{what}: {pod}")
        if what == "more":
            pool.change(replicas=replicas + 1)
        elif what == "fewer":
            pool.change(replicas=max(FEWEST, replicas - 1))
        elif what == "roll":
            pool.change(image=f"quire:{world.chance.randrange(1000)}")
        elif what in ("larger volumes", "more volumes"):
            there = pool.kube.objects[POOL]["spec"]["storage"]["ledgers"]
            more = what == "more volumes"
            size_gib = int(there["size"].removesuffix("Gi")) + (0 if more else 10)
            pool.change_storage(size_gib=size_gib, volumes=there.get("volumes", 1) + more)
        elif what.startswith("lost"):
            pool.lose_node(pod)
            if what == "lost at once":
                world.loop.call_later(10.0, pool.ask_when_there, pod, REPLACE_ANNOTATION)
        elif what == "replace a living one":
            pool.annotate(pod, REPLACE_ANNOTATION)
        elif what == "crash":
            self._crash(host_of(pod))
        elif what == "unrepaired":
            await self._unrepaired(pod)
        elif what == "full, and fewer":
            await self._full_and_fewer()
        else:
            await self._reach(step)
            await self._for_a_while(what)

    def _crash(self, host: str) -> None:
        """Cut the power of a bookie; does nothing if its pod has not started it yet."""
        if host in self.pool.world.bookies:
            self.pool.world.crash_bookie(host, "random")

    @property
    def _replicas(self) -> int:
        return int(self.pool.kube.objects[POOL]["spec"]["replicas"])

    async def _until(self, holds: Callable[[], bool], patience_s: float, what: str) -> None:
        end_s = self.pool.world.loop.time() + patience_s
        while not holds():
            assert self.pool.world.loop.time() < end_s, f"{what}: {self.pool.status}"
            await asyncio.sleep(1.0)
            self.pool.check()

    async def _reach(self, step: str) -> None:
        """Return right after a step is recorded in the status; give up if it does not come."""
        pool, loop = self.pool, self.pool.world.loop
        end_s, patient_s = loop.time() + STEP_PATIENCE_S, loop.time() + 60.0
        while (pool.status.get("operation") or {}).get("step") != step and loop.time() < end_s:
            pool.promises.step.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pool.promises.step.wait(), 5.0)
            pool.check()
            if loop.time() > patient_s and pool.is_quiet():
                return

    async def _for_a_while(self, what: str) -> None:
        """Cause an event with a duration; it has ended when this returns."""
        pool, world, replicas = self.pool, self.pool.world, self._replicas
        seconds = world.chance.uniform(5.0, 120.0 if what == "metadata away" else 60.0)
        if what == "call off":
            pool.change(replicas=max(FEWEST, replicas - 1))
            await asyncio.sleep(seconds)
            pool.change(replicas=replicas)
        elif what == "pause":
            pool.change(paused=True)
            await asyncio.sleep(seconds)
            pool.change(paused=False)
        elif what == "too few":
            pool.change(replicas=ENSEMBLE - 1)
            await self._until(self._says_too_few, PATIENCE_S, "no condition reports too few bookies")
            pool.change(replicas=FEWEST)
        elif what == "metadata away":
            pool.promises.metadata_goes(away=True)
            await asyncio.sleep(seconds)
            pool.promises.metadata_goes(away=False)
        elif what == "stand still":
            await asyncio.sleep(world.chance.uniform(0.0, 3.0))
            pool.operators.stand_still(seconds)
        else:
            assert what == "delete", what
            await pool.delete_and_apply(PATIENCE_S)

    def _says_too_few(self) -> bool:
        return any(one["reason"] == "BelowEnsemble" for one in self.pool.status.get("conditions", ()))

    async def _unrepaired(self, pod: str) -> None:
        """Take a bookie away until its ledgers are marked; when it is back, auto-recovery is down for a while."""
        pool, loop, host = self.pool, self.pool.world.loop, host_of(pod)
        pool.held.add(host)
        self._crash(host)
        end_s = loop.time() + 120.0
        while loop.time() < end_s and not any(key in pool.world.metadata.nodes for key in pool.promises.marked_s):  # noqa: ASYNC110  virtual
            await asyncio.sleep(0.1)
        hosts = self._stop_recovery()
        marked = sorted(pool.world.metadata.nodes.keys() & pool.promises.marked_s)
        loop.note(f"{host} is away, auto-recovery is down: {marked}")
        await asyncio.sleep(OBSERVED_S)  # until every observation of the operator includes the marks
        pool.held.discard(host)
        await asyncio.sleep(pool.world.chance.uniform(40.0, 90.0))
        await self._start_recovery(hosts)

    def _stop_recovery(self) -> list[str]:
        running = [place for place in self.pool.cluster.recoverers if place.running is not None]
        for place in running:
            self.pool.cluster.kill(place)
        return [place.host for place in running]

    async def _start_recovery(self, hosts: list[str]) -> None:
        for host in hosts:
            place = next(one for one in self.pool.cluster.recoverers if one.host == host)
            await self.pool.cluster.start_again(place, 0.1)

    async def _full_and_fewer(self) -> None:
        """Drain a bookie that is read-only for lack of space, and make it writable when auto-recovery is down.

        Auto-recovery has recorded it as emptied, with a clock that may be wrong, and the operator reads that late.
        """
        pool, world, replicas = self.pool, self.pool.world, self._replicas
        place = world.bookies.get(host_of(f"{NAME}-bookie-{replicas - 1}"))
        if replicas <= FEWEST or place is None or place.running is None or place.node is None:
            return
        for host in ("ar1", "ar2"):
            world.clock_of(host).wrong_ms = 1000 * world.chance.choice((0, 0, -60, 60))
        bookie, running = place.running.bookie_id, place.running
        await world.loop.run_on(place.node, running.read_only_mode.set(ReadOnlyReason.DISK, True))
        await self._until(lambda: f"{layout.READ_ONLY}/{bookie}" in world.metadata.nodes, 60.0, "not read-only")
        pool.change(replicas=replicas - 1)
        await self._reach("Copying")
        end_s = world.loop.time() + STEP_PATIENCE_S
        while not self._is_wished(bookie) and world.loop.time() < end_s:  # noqa: ASYNC110  virtual
            await asyncio.sleep(0.1)
        pool.change(paused=True)
        while self._progress_of(bookie) != "emptied" and world.loop.time() < end_s:  # noqa: ASYNC110  virtual
            await asyncio.sleep(1.0)
        hosts = self._stop_recovery()
        if place.running is running and place.node is not None:
            await world.loop.run_on(place.node, running.read_only_mode.set(ReadOnlyReason.DISK, False))
        await self._wait_for_writable(place)
        world.loop.note(f"{bookie}: {self._progress_of(bookie)}, and read-only no more: {place.running is running}")
        await self.more_ledgers()
        pool.change(paused=False)
        await asyncio.sleep(world.chance.uniform(20.0, 60.0))
        for host in ("ar1", "ar2"):
            world.clock_of(host).wrong_ms = 0
        await self._start_recovery(hosts)

    async def _wait_for_writable(self, place: SimBookie) -> None:
        """Wait briefly: the bookie may be read-only for another reason."""
        end_s = self.pool.world.loop.time() + 10.0
        while self.pool.world.loop.time() < end_s:
            if place.running is not None and f"{layout.AVAILABLE}/{place.running.bookie_id}" in (
                self.pool.world.metadata.nodes
            ):
                return
            await asyncio.sleep(0.1)

    def _is_wished(self, bookie: str) -> bool:
        node = self.pool.world.metadata.nodes.get(DRAINS)
        return node is not None and bookie.encode() in node.value

    def _progress_of(self, bookie: str) -> str:
        node = self.pool.world.metadata.nodes.get(f"{DRAIN_PROGRESS}/{bookie}")
        return "" if node is None else str(json.loads(node.value)["state"])
