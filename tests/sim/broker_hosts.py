"""Broker processes on hosts of their own: started, killed, stopped for seconds as by SIGSTOP, and their usage of CPU.

Each runs `start_broker`, the whole product with its wire protocol. A message costs `MESSAGE_CPU_S`, so that the load
reports follow the traffic; the memory is constant.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

from quire_bookie.errors import QuireError
from quire_broker.balancing import usage
from quire_broker.broker_process import start_broker
from quire_broker.names import TopicName
from quire_broker.ownership.owners import Bundle
from quire_broker.server.broker import BrokerSettings, RunningBroker
from tests.sim.history import HistoryError
from tests.sim.loop import current_node
from tests.sim.world import SimChance, SimClient, World

PORT = 6650
HTTP_PORT = 8080
MESSAGE_CPU_S = 0.015
BUSY_CPU = 0.6
"""Share of its CPU that a busy broker uses in addition."""
MACHINE_BYTES = 1 << 34
SETTLED_S = 5.0
"""A process that was stopped or cut off is trusted to know its bundles again after this time."""
AGREED_S = 4.0


class BrokerHost:
    """One host, with the broker that runs on it, if any."""

    def __init__(self, world: World, host: str, settings: BrokerSettings, *, http: bool = False) -> None:
        """`http`: whether it has a port for the admin API; see `tests.sim.web`."""
        self._world, self.host = world, host
        self._settings = replace(settings, port=PORT, http_port=HTTP_PORT if http else None, advertise=host)
        self._client: SimClient | None = None
        self._starting = False
        self.broker: RunningBroker | None = None
        self.paused = False
        self.unsure_until_s = 0.0
        """Until when this broker may believe in an ownership that it has lost."""
        self._busy: list[tuple[float, float]] = []

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"pulsar://{self.host}:{PORT}"

    @property
    def web(self) -> str:
        """The address of the admin API."""
        return f"http://{self.host}:{HTTP_PORT}"

    async def start(self) -> None:
        """Start a broker, unless one runs; tries again while a start fails."""
        if self._starting or self.broker is not None:
            return
        self._starting = True
        try:
            while not await self._start():  # noqa: ASYNC110  virtual time
                await asyncio.sleep(1.0)
        finally:
            self._starting = False

    async def _start(self) -> bool:
        world = self._world
        try:
            self._client = client = await world.start_client(self.host)
            chance = SimChance(world.chance.randrange(1 << 30))
            starting = start_broker(
                self._settings,
                metadata=client.session,
                ledger_client=client.ledgers,
                clock=world.clock_of(self.host),
                chance=chance,
            )
            self.broker = await world.on(client, starting)
        except QuireError as error:
            world.loop.note(f"{self.host} does not start: {error}")
            if self._client is not None:
                world.kill_client(self._client)
            return False
        return True

    def kill(self) -> None:
        """End the process at once; its lease expires later."""
        if self.broker is not None and self._client is not None and not self.paused:
            self.broker = None
            self._world.kill_client(self._client)

    def pause(self, seconds: float) -> None:
        """Stop the process for some seconds. It loses its lease if that is too long, and notices after it goes on."""
        if self.broker is None or self._client is None or self.paused or self._client.session.cut:
            return
        self.paused = True
        self._world.loop.pause(self._client.node)
        timeout_s = self._world.metadata.session_timeout_s
        if seconds > timeout_s:
            self._world.loop.call_later(timeout_s, self._client.session.lease_ran_out)
        self._world.loop.call_later(seconds, self._go_on, self._client, seconds > timeout_s)

    def _go_on(self, client: SimClient, lost: bool) -> None:
        self.paused = False
        self.unsure()
        if lost:
            self._world.loop.call_later(self._world.chance.uniform(0.0, 1.0), client.session.expire)
        self._world.loop.resume(client.node)

    @property
    def loaded(self) -> list[str]:
        """The topics that its broker has open, or is closing."""
        return [] if self.broker is None else [str(topic.name) for topic in self.broker.topics.loaded]

    def hand_over(self, name: TopicName) -> None:
        """Let the broker hand the bundle of a topic to another one, chosen by the leader, if it has the topic open."""
        if self.broker is None or self._client is None or self.paused:
            return
        if self.broker.topics.find(name) is not None:
            self._world.on(self._client, self._hand_over(self.broker, name))

    async def _hand_over(self, broker: RunningBroker, name: TopicName) -> None:
        try:
            await broker.unload_bundle(await broker.owners.bundle_of(name))
        except QuireError as error:
            self._world.loop.note(f"{self.host} does not hand {name} over: {error}")

    def unsure(self) -> None:
        """Record that the process was cut off until now."""
        self.unsure_until_s = self._world.loop.time() + SETTLED_S

    @property
    def reaches(self) -> bool:
        """Whether the broker runs, reaches the metadata store, and has for some seconds."""
        if self._client is not None and self._client.session.cut:
            self.unsure()
        alive = self.broker is not None and not self.paused
        return alive and self._world.loop.time() >= self.unsure_until_s and not self._world.metadata.away

    def work(self, seconds: float) -> None:
        """Make the broker busy for this time, beside its messages."""
        now_s = self._world.loop.time()
        self._busy.append((now_s, now_s + seconds))

    def rest(self) -> None:
        """End what makes the broker busy beside its messages."""
        now_s = self._world.loop.time()
        self._busy = [(from_s, min(until_s, now_s)) for from_s, until_s in self._busy]

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        if self.broker is None:
            return 0.0
        stats, now_s = self.broker.parts.stats, self._world.loop.time()
        busy_s = sum(min(until_s, now_s) - from_s for from_s, until_s in self._busy)
        return MESSAGE_CPU_S * (stats.messages_in + stats.messages_out) + BUSY_CPU * busy_s


def simulated_machines(hosts: Sequence[BrokerHost]) -> ExitStack:
    """Return a context in which brokers measure the CPU time and memory of their simulated hosts."""
    by_name = {one.host: one for one in hosts}

    def cpu_s() -> float:
        node = current_node()
        return by_name[node.host].cpu_s() if node is not None and node.host in by_name else 0.0

    stack = ExitStack()
    for name, read in (
        ("process_cpu_s", cpu_s),
        ("process_memory_bytes", lambda: MACHINE_BYTES // 100),
        ("machine_memory_bytes", lambda: MACHINE_BYTES),
        ("machine_cpus", lambda: 1.0),
    ):
        stack.enter_context(mock.patch.object(usage, name, read))
    return stack


class OwnerWatch:
    """Raises HistoryError if two brokers that reach the metadata store stay certain of the same bundle."""

    def __init__(self, world: World, hosts: Sequence[BrokerHost]) -> None:
        self._world, self._hosts = world, hosts
        self._since_s: dict[Bundle, float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(0.2)
            self.look()

    def look(self) -> None:
        """Compare what the brokers are certain of now."""
        now_s = self._world.loop.time()
        certain: dict[Bundle, list[str]] = {}
        for one in self._hosts:
            if one.reaches and one.broker is not None:
                for bundle in one.broker.owners.held:
                    if one.broker.owners.certain(bundle):
                        certain.setdefault(bundle, []).append(one.host)
        doubled = {bundle: hosts for bundle, hosts in certain.items() if len(hosts) > 1}
        self._since_s = {bundle: self._since_s.get(bundle, now_s) for bundle in doubled}
        for bundle, since_s in self._since_s.items():
            if now_s - since_s > AGREED_S:
                raise HistoryError(f"{doubled[bundle]} have been certain to own {bundle} for {AGREED_S} s")
