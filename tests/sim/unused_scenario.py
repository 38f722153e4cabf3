"""Topics that nothing uses are closed, while clients come and go: none is disconnected, and nothing is lost.

Two brokers close a topic after two seconds without clients. A visitor of each topic publishes, consumes everything,
acknowledges it and leaves in order; it may stay away until the topic is closed, or stay connected in silence. Brokers
are killed and stopped for less than their lease, connections break, bookies crash, everything is slow: none of this is
a reason to close a topic that has a client. A message whose acknowledgement was processed does not come back, unless a
broker with the topic was killed since. At the end every topic has its messages, and after a rest none is open.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quire_bookie.errors import QuireError
from quire_broker.names import NamespaceName
from quire_broker.settings.topics import UnusedTopicSettings
from quire_broker.topic.unused import CHECK_S
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client import Client
from quire_client.connection import Connection
from tests.sim.broker_faults import Brokers
from tests.sim.broker_hosts import simulated_machines
from tests.sim.brokers_scenario import LEASE_S, SETTINGS
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.plan import Step
from tests.sim.topic_clients import SUBSCRIPTION, TopicClients, TopicHistory
from tests.sim.world import World, retry
from tests.support.raw_client import Consumer, Received

NAMESPACE = NamespaceName("public", "simulated")
BOUNDARIES = ["0x00000000", "0x80000000", "0xffffffff"]
TOPICS = 4
CLOSE_AFTER_S = 2
ABSENCE_S = 0.5
"""A topic is not closed while its visitor stays away for this time."""
CLOSED = ("the broker closed the consumer", "the broker closed the producer")
"""The errors for close commands."""
LAST_S = 120.0
LOOK_S = 0.3
REST_S = 30.0
UNSAVED_S = 300.0
"""Acknowledgements are saved when a topic is closed, not by time."""
RATE = 20.0
QUIET_S = CLOSE_AFTER_S + 2 * CHECK_S
"""A visitor in silence stays for as long as an unused topic is open at most."""
FAULTS = {
    "pause": 1,
    "kill broker": 1,
    "start broker": 3,
    "break": 1,
    "delay": 1,
    "stalls": 1,
    "slow disk": 1,
    "crash": 1,
    "start": 3,
    "metadata slow": 1,
    "away": 8,
    "quiet": 3,
}


class Visitor:
    """A client of one topic that comes and goes."""

    def __init__(self, topic: str, urls: Sequence[str], chance: random.Random, note: Callable[[str], None]) -> None:
        self.clients = TopicClients(TopicHistory(topic), urls, chance, note)
        self.clients.rate = RATE
        self.history = self.clients.history
        self.acknowledged: set[int] = set()
        """Messages whose acknowledgement a broker has processed. It was not killed since while it had the topic."""
        self.away_s = self.quiet_s = 0.0
        """How long the visitor stays away, and stays in silence, the next time."""
        self.stops = False
        """Whether the next visit without an error is the last one."""
        self.trouble = ""
        """The first violation."""
        self._topic, self._urls, self._chance, self._note = topic, urls, chance, note

    async def run(self) -> None:
        """Come and go until `stops`."""
        done = False
        while not (self.stops and done):
            client = Client(self._chance.choice(self._urls))
            try:
                await self._visit(await client.brokers.owner(self._topic))
                done = True
            except (QuireError, OSError) as error:
                done = False
                self._note(f"the visitor of {self._topic}: {error}")
            finally:
                client.close()
            away_s, self.away_s = self.away_s, 0.0
            await asyncio.sleep(away_s or self._chance.uniform(0.1, ABSENCE_S))

    async def _visit(self, connection: Connection) -> None:
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection._waiting[0] = ended  # as of a request without an answer: it gets the error that ends the connection
        ended.add_done_callback(self._ended)
        try:
            await self._use(connection)
        finally:
            ended.cancel()

    def _ended(self, ended: "asyncio.Future[Any]") -> None:
        error = None if ended.cancelled() else ended.exception()
        if str(error) in CLOSED:
            self.trouble = self.trouble or f"a client is disconnected without a reason: {error}"

    async def _use(self, connection: Connection) -> None:
        await self.clients.publish_some(connection, self._chance.randrange(3))  # this creates the topic
        queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
        consumer = Consumer(connection, -1, queue)
        await consumer.open(self._topic, SUBSCRIPTION, earliest=True)
        acknowledged: set[int] = set()
        while (received := await _next(queue, LOOK_S)) is not None or self.history.undelivered:
            if received is not None:
                number = int(received.message.payload)
                if number in self.acknowledged:
                    self.trouble = self.trouble or f"message {number} comes back although it is acknowledged"
                self.history.delivered.add(number)
                consumer.acknowledge(received)
                acknowledged.add(number)
        quiet_s, self.quiet_s = self.quiet_s, 0.0
        stays = self._chance.choice(("consumer", "producer", "reader")) if quiet_s else ""
        if stays == "reader":
            await Consumer(connection, -1, queue).open(self._topic, None)
        if stays != "consumer":
            body = pb.CommandCloseConsumer(consumer_id=consumer._id)
            await connection.ask(Kind.CLOSE_CONSUMER, "close_consumer", body)
            self.acknowledged |= acknowledged
        if quiet_s:
            self._note(f"a {stays} of {self._topic} is silent for {quiet_s:.1f} s")
            await _next(queue, quiet_s)


async def _next(queue: "asyncio.Queue[Received | QuireError]", wait_s: float) -> Received | None:
    """Return the next message, or None if none comes in time. Raises the error that ended the consumer."""
    try:
        async with asyncio.timeout(wait_s):
            received = await queue.get()
    except TimeoutError:
        return None
    if isinstance(received, QuireError):
        raise received
    return received


class Run:
    """One run: the brokers and the visitors."""

    def __init__(self, world: World) -> None:
        self.world = world
        settings = replace(
            SETTINGS,
            balancing=replace(SETTINGS.balancing, shedding=False, split=False),
            topics=replace(
                SETTINGS.topics, ledger=replace(SETTINGS.topics.ledger, cursor_persist_interval_s=UNSAVED_S)
            ),
            unused_topics=UnusedTopicSettings(CLOSE_AFTER_S),
        )
        self.brokers = Brokers(world, settings, 2)
        urls = [one.url for one in self.brokers.hosts]
        self.visitors = [
            Visitor(f"persistent://{NAMESPACE}/t{number}", urls, self.brokers.chance(), world.loop.note)
            for number in range(TOPICS)
        ]
        self._work: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Start the brokers and the visitors."""
        await self.brokers.start()
        first = self.brokers.hosts[0].broker
        assert first is not None
        await first.policies.create_namespace(NAMESPACE, {"bundles": {"boundaries": BOUNDARIES, "numBundles": 2}})
        self._work = [self.world.loop.run_on(self.brokers.client, one.run()) for one in self.visitors]

    def change(self, step: Step) -> None:
        """Let a visitor stay away, or stay in silence, the next time."""
        chance = random.Random(step.value)
        visitor = chance.choice(self.visitors)
        if step.kind == "away":
            visitor.away_s = chance.uniform(CLOSE_AFTER_S, QUIET_S)
        else:
            visitor.quiet_s = QUIET_S

    def kill(self, step: Step) -> None:
        """Kill a broker. The acknowledgements of topics that it has open may be lost."""
        running = [one for one in self.brokers.hosts if one.broker is not None]
        for host in running:
            if host.host == step.who and len(running) > 1 and not host.paused:
                for visitor in self.visitors:
                    if visitor.history.topic in host.loaded:
                        visitor.acknowledged.clear()
                host.kill()

    def pause(self, step: Step) -> None:
        """Stop a broker for less than its lease."""
        for host in self.brokers.hosts:
            if host.host == step.who:
                host.pause(min(step.value, LEASE_S / 2))

    async def end(self) -> None:
        """Let the visitors end; check what they saw, that their topics are closed after a rest, and what they have."""
        for visitor in self.visitors:
            visitor.stops = True
        try:
            async with asyncio.timeout(LAST_S):
                await asyncio.gather(*self._work)
        except TimeoutError:
            raise HistoryError(f"visits do not succeed although all faults are over for {LAST_S:.0f} s") from None
        finally:
            self.check()
        until_s = self.world.loop.time() + REST_S
        while loaded := [name for one in self.brokers.hosts for name in one.loaded]:
            if self.world.loop.time() > until_s:
                raise HistoryError(f"{loaded} are open although nothing has used them for {REST_S:.0f} s")
            await asyncio.sleep(1.0)
        loop, client = self.world.loop, self.brokers.client
        for one in self.visitors:
            await retry(lambda one=one: loop.run_on(client, one.clients.read_all()), seconds=60)

    def check(self) -> None:
        """Raise HistoryError for what a visitor should not have seen."""
        for visitor in self.visitors:
            if visitor.trouble:
                raise HistoryError(f"{visitor.history.topic}: {visitor.trouble}")


async def run(loop: SimLoop, seed: int) -> list[TopicHistory]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    world.metadata.session_timeout_s = LEASE_S
    await world.start_bookies(3)
    run_ = Run(world)
    with simulated_machines(run_.brokers.hosts):
        await run_.begin()
        more = {"away": run_.change, "quiet": run_.change, "kill broker": run_.kill, "pause": run_.pause}
        await run_.brokers.disturb(world.chance.uniform(20.0, 40.0), FAULTS, ("away", "away", "quiet"), more)
        run_.check()
        await run_.end()
    return [one.history for one in run_.visitors]
