"""Two processes of the operator, of which the lease's holder reconciles; either may be suspended or killed.

`Leadership` and `reconcile_bookie` are production code. Each process reaches the simulated API server through a `Link`,
which suspends it before it checks whether it may still write, as if its machine were suspended.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from quire_operator.builders import Manifest, ReadManifest
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.paths import object_path
from quire_operator.errors import OperatorError
from quire_operator.running.lease import NAME, Leadership, LeaseLostError
from tests.sim.history import HistoryError
from tests.sim.operator_api import NAMESPACE, OperatorKilledError, SimKube

LEASE = object_path("coordination.k8s.io/v1", "Lease", NAMESPACE, NAME)
NAMES = ("op-a", "op-b")


@dataclass
class Link:
    """Replaces `Kube`: the access of one process to the API server."""

    kube: SimKube
    name: str
    before_writing: Callable[[], None] = lambda: None
    still_until_s: float = 0.0
    """The process is suspended until this time."""

    async def awake(self) -> None:
        """Wait until the process is not suspended."""
        loop = asyncio.get_running_loop()
        while (left_s := self.still_until_s - loop.time()) > 0:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(left_s)

    async def get(self, path: str) -> Manifest | None:
        await self.awake()
        return await self.kube.get(path)

    async def list(self, path: str, selector: str = "") -> list[Manifest]:
        await self.awake()
        return await self.kube.list(path, selector)

    async def apply(self, manifest: ReadManifest) -> Manifest:
        await self._may_write()
        return await self.kube.apply(manifest)

    async def merge(self, path: str, patch: ReadManifest) -> Manifest:
        await self._may_write()
        return await self.kube.merge(path, patch)

    async def set_finalizer(self, path: str, meta: Any, finalizer: str, present: bool) -> None:
        await self._may_write()
        await self.kube.set_finalizer(path, meta, finalizer, present)

    async def replace(self, path: str, manifest: ReadManifest) -> Manifest:
        await self._may_write(of_the_lease=path == LEASE)
        return await self.kube.replace(path, manifest)

    async def create(self, path: str, manifest: ReadManifest) -> Manifest:
        await self._may_write(of_the_lease=path == LEASE.rpartition("/")[0])
        return await self.kube.create(path, manifest)

    async def delete(self, path: str, uid: str, *, orphan: bool = False, force: bool = False) -> None:
        await self._may_write()
        await self.kube.delete(path, uid, orphan=orphan, force=force)

    async def _may_write(self, *, of_the_lease: bool = False) -> None:
        await self.awake()
        self.before_writing()
        holder = self.kube.objects.get(LEASE, {}).get("spec", {}).get("holderIdentity")
        if not of_the_lease and holder != self.name:
            raise HistoryError(f"{self.name} writes, but {holder} holds the lease: two operators act")


@dataclass
class Operators:
    """Runs both processes and restarts each after its end."""

    kube: SimKube
    chance: random.Random
    work: Callable[[Link, Memory], Awaitable[None]]
    """Reconciles once."""
    note: Callable[[str], None]
    links: dict[str, Link] = field(default_factory=dict)
    """The running processes by name."""
    kills_max: int = 1_000_000
    kills: int = 0
    lost: int = 0
    """Number of lost leases."""

    async def run(self) -> None:
        """Run until cancelled, or until a guarantee is violated."""
        await asyncio.gather(*map(self._process, NAMES))

    def stand_still(self, seconds: float) -> None:
        """Suspend the holder of the lease for a while."""
        holder = self.kube.objects.get(LEASE, {}).get("spec", {}).get("holderIdentity")
        if holder in self.links:
            self.note(f"{holder} stands still for {seconds:.0f} s")
            self.links[holder].still_until_s = asyncio.get_running_loop().time() + seconds

    async def _process(self, name: str) -> None:
        for number in range(1_000_000):
            identity = f"{name}-{number}"  # as of a recreated pod
            link = self.links[identity] = Link(self.kube, identity)
            try:
                await self._life(link)
            except OperatorKilledError:
                self.kills += 1
                if self.kills < self.kills_max:
                    self.kube.kill_at = self.kube.writes + self.chance.randrange(1, 25)
            except LeaseLostError as error:
                self.lost += 1
                self.note(f"{identity}: {error}")
            del self.links[identity]
            await asyncio.sleep(self.chance.uniform(0.0, 20.0))

    async def _life(self, link: Link) -> None:
        loop, kube = asyncio.get_running_loop(), link
        leadership = Leadership(kube, NAMESPACE, link.name, loop.time)  # type: ignore[arg-type]
        link.before_writing = leadership.check
        tasks = [asyncio.ensure_future(leadership.run()), asyncio.ensure_future(self._passes(link, leadership))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # If the lease expired during a suspension, either task notices that only after the suspension.
            if link.still_until_s > loop.time():
                await link.awake()
                await asyncio.wait(tasks[1:], timeout=0.5)
            for task in reversed(tasks):  # the end of the lease must not hide a violated guarantee
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _passes(self, link: Link, leadership: Leadership) -> None:
        memory = Memory()
        await leadership.held.wait()
        while True:
            try:
                await self.work(link, memory)
            except LeaseLostError:
                raise
            except OperatorError as error:
                self.note(f"operator: {error}")
            await asyncio.sleep(self.chance.uniform(0.5, 3.0))
