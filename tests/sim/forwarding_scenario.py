"""Admin requests for a partitioned topic whose partitions many brokers own: any broker answers each of them.

A client asks a broker drawn at random to create and delete subscriptions, skip backlogs, truncate, unload and delete,
and repeats a request that fails. Meanwhile brokers are killed, stopped and cut off from each other and from the
metadata store. Success means that every partition shows the effect; a failure of some partitions names one; no request
is redirected or forwarded in a loop.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import aiohttp
from aiohttp import web
from yarl import URL

from quire_bookie.errors import QuireError
from quire_broker.admin.forwarding import FORWARDED, Answered, Call, Forwarding
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.names import parse_topic
from quire_broker.security.settings import AccessSettings
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic
from quire_client import Client
from tests.sim.broker_faults import Brokers
from tests.sim.broker_hosts import simulated_machines
from tests.sim.brokers_scenario import LEASE_S, SETTINGS
from tests.sim.history import HistoryError
from tests.sim.loop import SimLoop
from tests.sim.web import simulated_http
from tests.sim.world import World, retry
from tests.support.raw_client import Producer

TOPIC = parse_topic("persistent://public/default/parts")
PARTITIONS = TOPIC.partitions(6)
SUBSCRIPTIONS = ("one", "two")
PATH = f"/admin/v2/persistent/{TOPIC.namespace}/{TOPIC.local}"
REDIRECTS_MAX = 2
ASK_S = 65.0
"""How long a client waits for one response; a broker bounds a request to all partitions by 50 s."""
PATIENCE_S = 120.0
"""How long a request may fail after all faults are over."""
FAULTS = {
    "pause": 3,
    "kill broker": 2,
    "start broker": 8,
    "cut brokers": 4,
    "heal": 1,
    "metadata cut": 2,
    "metadata away": 1,
    "metadata slow": 1,
    "metadata unknown": 1,
    "lease away": 2,
    "lease": 1,
    "watch gap": 1,
}
_SOME_FAILED = re.compile(r"\d+ of \d+ partitions failed")


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    status: int
    reason: str


class Admin:
    """The client, with what it has asked for."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        self._world, self._brokers, self._chance = world, brokers, brokers.chance()
        self.log: list[tuple[str, str, int]] = []
        self.existing: dict[str, bool] = dict.fromkeys(SUBSCRIPTIONS, False)

    # ---- HTTP
    async def ask(self, method: str, path: str, body: object = None) -> Response:
        """Send one request to any broker and follow redirects. OSError, TimeoutError, aiohttp.ClientError."""
        url = URL(self._chance.choice(self._brokers.hosts).web + path)
        async with aiohttp.ClientSession() as session, asyncio.timeout(ASK_S):
            for _ in range(REDIRECTS_MAX + 1):
                async with session.request(method, url, json=body, allow_redirects=False) as answer:
                    if answer.status != 307:
                        return Response(answer.status, await answer.text())
                    if "Location" not in answer.headers:
                        raise HistoryError(f"{method} {path} is redirected to nowhere")
                    url = URL(answer.headers["Location"])
        raise HistoryError(f"{method} {path} is redirected more than {REDIRECTS_MAX} times")

    async def insist(self, method: str, path: str, body: object = None, fine: tuple[int, ...] = ()) -> None:
        """Repeat a request until it succeeds, or fails in a way that a repetition may: `fine`."""
        until_s = self._world.loop.time() + 600.0
        while True:
            before = self.served()
            try:
                found = await self.ask(method, path, body)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._world.loop.note(f"{method} {path}: {error!r}")
            else:
                self._world.loop.note(f"{method} {path}: {found.status} {found.reason[:150]}")
                self.log.append((method, path, found.status))
                if found.status < 300:
                    self.check_effect(method, path, before)
                    return
                if found.status in fine:
                    return
                self._check_failure(f"{method} {path}", found)
            if self._world.loop.time() > until_s:
                raise HistoryError(f"{method} {path} does not succeed")
            await asyncio.sleep(self._chance.uniform(0.2, 1.5))

    @staticmethod
    def _check_failure(what: str, found: Response) -> None:
        if _SOME_FAILED.search(found.reason) and not any(str(name) in found.reason for name in PARTITIONS):
            raise HistoryError(f"{what}: {found.status} does not name the partition that failed: {found.reason}")
        if found.status not in (404, 409, 412, 421, 500, 503):
            raise HistoryError(f"{what}: {found.status} {found.reason}")

    # ---- effects
    def served(self) -> list[tuple[Callable[[], bool], Topic]]:
        """Return the loaded partitions of brokers that certainly own them, each with a check that this still holds."""
        found: list[tuple[Callable[[], bool], Topic]] = []
        for host in self._brokers.hosts:
            broker = host.broker
            if broker is None or not host.reaches:
                continue
            for topic in broker.topics.loaded:
                if topic.name in PARTITIONS and not topic.closing:
                    tenure = {one: broker.owners.tenure(one) for one in broker.owners.held}

                    def stays(host: Any = host, broker: Any = broker, tenure: Any = tenure) -> bool:
                        same = {one: broker.owners.tenure(one) for one in broker.owners.held} == tenure
                        return host.broker is broker and host.reaches and same and all(tenure.values())

                    found.append((stays, topic))
        return found

    def subscriptions(self) -> Iterator[Subscription]:
        """Yield the durable subscriptions of the partitions that are served."""
        for stays, topic in self.served():
            if stays():
                yield from topic.durable_subscriptions

    def check_effect(self, method: str, path: str, before: list[tuple[Callable[[], bool], Topic]]) -> None:
        """Check that a request that succeeded shows on every partition. `before`: as `served` said."""
        what, end = f"{method} {path}", path.removeprefix(PATH)
        nodes = self._world.metadata.nodes
        if end.startswith("/subscription/") and not end.endswith("skip_all"):
            name = end.removeprefix("/subscription/").partition("?")[0]
            for partition in PARTITIONS:
                stored = f"{node_path(partition.ledger_name)}/{name}" in nodes
                if stored != (method == "PUT"):
                    raise HistoryError(
                        f"{what}: success, but {partition} {'still has' if stored else 'has not got'} it"
                    )
        elif end == "/createMissedPartitions":
            missing = [str(one) for one in PARTITIONS if node_path(one.ledger_name) not in nodes]
            if missing:
                raise HistoryError(f"{what}: success, but {missing} do not exist")
        elif end.startswith("/unload"):
            left = [str(topic.name) for stays, topic in before if stays() and not topic.closing]
            if left:
                raise HistoryError(f"{what}: success, but {left} are not unloaded")
        elif end.startswith("/partitions") and method == "DELETE":
            left = [str(one) for one in PARTITIONS if node_path(one.ledger_name) in nodes]
            if left:
                raise HistoryError(f"{what}: success, but {left} exist")
        elif end.endswith(("skip_all", "/truncate")):
            wanted = SUBSCRIPTIONS if end == "/truncate" else (end.split("/")[2],)
            for one in self.subscriptions():
                if one.name in wanted and one.cursor.backlog:
                    raise HistoryError(f"{what}: success, but {one.cursor.backlog} messages are left")

    # ---- the work
    async def create(self) -> None:
        """Create the topic with all partitions."""
        await self.insist("PUT", f"{PATH}/partitions", len(PARTITIONS), fine=(409,))
        await self.insist("POST", f"{PATH}/createMissedPartitions")

    async def change(self) -> None:
        """Ask for one change, drawn at random."""
        name = self._chance.choice(SUBSCRIPTIONS)
        one = f"{PATH}/subscription/{name}"
        kind = self._chance.choice(("subscription", "subscription", "skip", "unload", "unload", "truncate", "delete"))
        if kind == "subscription" and self.existing[name]:
            await self.insist("DELETE", f"{one}?force=true", fine=(404,))
            self.existing[name] = False
        elif kind == "subscription":
            await self.insist("PUT", one, "earliest", fine=(409,))
            self.existing[name] = True
        elif kind == "skip" and self.existing[name]:
            await self.insist("POST", f"{one}/skip_all")
        elif kind == "unload":
            await self.insist("PUT", f"{PATH}/unload")
        elif kind == "truncate":
            await self.insist("DELETE", f"{PATH}/truncate")
        elif kind == "delete" and self._chance.random() < 0.4:
            await self.insist("DELETE", f"{PATH}/partitions?force=true", fine=(404,))
            self.existing = dict.fromkeys(SUBSCRIPTIONS, False)
            await self.create()

    async def publish(self) -> None:
        """Publish some messages to a partition, or fail."""
        topic = str(self._chance.choice(PARTITIONS))
        client = Client(self._chance.choice(self._brokers.hosts).url)
        try:
            producer = Producer(await client.brokers.owner(topic))
            await producer.open(topic)
            for _ in range(3):
                await producer.send([b"message"], key=None, properties={}, now_ms=1)
            await producer.flush()
        except (QuireError, OSError) as error:
            self._world.loop.note(f"nothing is published: {error}")
        finally:
            client.close()

    async def move(self) -> None:
        """Let brokers hand their bundles to each other again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 4.0))
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                found = await self.ask("PUT", f"/admin/v2/namespaces/{TOPIC.namespace}/unload")
                self._world.loop.note(f"moved: {found.status} {found.reason[:150]}")

    async def run(self, end_s: float) -> None:
        """Create the topic and change it until the end."""
        await self.create()
        while self._world.loop.time() < end_s:
            await self.publish()
            await self.change()
            await asyncio.sleep(self._chance.uniform(0.1, 0.5))


def forwarded_once() -> ExitStack:
    """Return a context in which a broker that forwards a forwarded request raises HistoryError."""
    proper = Forwarding.send

    async def checked(self: Forwarding, request: web.Request, base: str, call: Call) -> Answered:
        if FORWARDED in request.headers:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{call.method} {call.path} is forwarded again to {base}"}
            )
        return await proper(self, request, base, call)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Forwarding, "send", checked))
    return stack


async def run(loop: SimLoop, seed: int) -> list[tuple[str, str, int]]:
    """Run one seed. Raises HistoryError or AssertionError if a guarantee is violated."""
    world = World(loop, seed)
    world.metadata.session_timeout_s = LEASE_S
    loop.network.reset_after_s = 6.0
    await world.start_bookies(3)
    settings = replace(
        SETTINGS,
        balancing=replace(SETTINGS.balancing, shedding=False, split=False),
        access=AccessSettings(admin_remote=True),
    )
    brokers = Brokers(world, settings, world.chance.choice((2, 3, 3)), http=True)
    with simulated_machines(brokers.hosts), simulated_http(), forwarded_once():
        await brokers.start()
        admin = Admin(world, brokers)
        seconds = world.chance.uniform(10.0, 25.0)
        working = loop.run_on(brokers.client, admin.run(loop.time() + seconds + 5.0))
        moving = None if loop.plan.calm else loop.run_on(brokers.client, admin.move())
        await brokers.disturb(seconds, FAULTS, ("kill broker", "cut brokers"))
        async with asyncio.timeout(PATIENCE_S + 600.0):
            await working
        if moving is not None:
            moving.cancel()
        for _ in range(4):
            await retry(lambda: loop.run_on(brokers.client, admin.change()), seconds=PATIENCE_S)
    return admin.log
