"""Asks the leader which broker gets a bundle, and learns which bundles are to leave this broker.

    /loadbalance/assignments/<t>/<ns>/<bundle>   ephemeral
        {"askedBy": id}                 a question: who takes a bundle without owner
        {"askedBy": id, "from": id}     a question: who gets a bundle of this broker
        {"broker": id}                  the leader's answer
        {"broker": id, "from": id}      the bundle is to move

    lookup of a bundle without owner:
        this broker leads       -> decide
        an assignment is stored -> its broker
        a leader exists         -> ask by the node, wait for the answer for a short time
        otherwise               -> this broker takes the bundle, if an isolation policy does not forbid it

A broker that gives a bundle away asks in the same way; without an answer, any other broker gets it.

An assignment is a hint. Which broker owns a bundle is decided by the bundle's owner node alone, so a lost or late hint
costs balance and never an owner. The leader removes an assignment when its bundle has an owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError, MetadataError, MetadataFormatError
from quire_bookie.metadata.retrying import watch_with_retries, with_retries
from quire_bookie.metadata.store import ABSENT, EventKind, MetadataStore, Node
from quire_broker.balancing.events import BalancingEvents
from quire_broker.balancing.events import EventKind as Happened
from quire_broker.balancing.plan.loads import BrokerId
from quire_broker.ownership.isolation import Isolation, urls_of
from quire_broker.ownership.owners import Bundle, Owner, bundle_named
from quire_broker.ownership.registration import BROKERS, DRAINING, registered
from quire_broker.policies.store import Json, decode_json, encode_json

ASSIGNMENTS = "/loadbalance/assignments"
LEADER = "/loadbalance/leader"
ASK_S = 2.0
"""How long a lookup waits for the leader's answer."""
OTHERS_S = 1.0
"""How long a broker may believe that it is alone."""
_log = logging.getLogger("quire.broker.balancing")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The content of an assignment node. Without `broker` it is a question."""

    broker: BrokerId | None = None
    source: BrokerId | None = None
    """The broker that is to give the bundle away; in a question the one that does."""
    asked_by: str = ""

    def encode(self) -> bytes:
        """Encode the node's value."""
        found = {"broker": self.broker, "from": self.source, "askedBy": self.asked_by}
        return encode_json({key: value for key, value in found.items() if value})


def assignment_of(node: Node) -> Assignment:
    """Decode a node. MetadataFormatError."""
    data = decode_json(node.key, node.value)
    broker, source = data.get("broker"), data.get("from")
    return Assignment(
        BrokerId(str(broker)) if broker else None,
        BrokerId(str(source)) if source else None,
        str(data.get("askedBy") or ""),
    )


def key_of(bundle: Bundle) -> str:
    """Return the key of a bundle's assignment."""
    return f"{ASSIGNMENTS}/{bundle}"


def bundle_of_key(key: str) -> Bundle | None:
    """Return the bundle of an assignment's key; None for another key."""
    name = key.removeprefix(f"{ASSIGNMENTS}/")
    return bundle_named(name) if name.count("/") == 2 else None


async def leader_of(metadata: MetadataStore) -> Json | None:
    """Return `{"brokerId", "serviceUrl"}` of the leader; None if there is none at the moment."""
    node = await metadata.get(LEADER)
    return None if node is None else decode_json(LEADER, node.value)


class Assignments:
    """Finds the broker that gets a bundle. `decide`: of the leader in this process, None while it does not lead."""

    def __init__(
        self,
        metadata: MetadataStore,
        broker_id: str,
        isolation: Isolation,
        owns: Callable[[Bundle], bool],
        events: BalancingEvents,
    ) -> None:
        """`owns`: whether a bundle is this broker's, so that a move of it matters here."""
        self._metadata, self._id = metadata, BrokerId(broker_id)
        self._isolation, self._owns, self._events = isolation, owns, events
        self.closed = False
        """Whether answers arrive no more: this broker stops."""
        self._alone = False
        self._others_until_s = 0.0
        self._waiting: dict[Bundle, asyncio.Future[BrokerId | None]] = {}
        self.decide: Callable[[Bundle, BrokerId | None], Awaitable[BrokerId | None]] | None = None
        self.on_question: Callable[[Bundle], None] = lambda bundle: None
        """Called, without waiting, for each question that is stored."""
        self.on_move: Callable[[Bundle, BrokerId], None] = lambda bundle, target: None
        """Called, without waiting, for each bundle that is to leave this broker."""

    async def elsewhere(self, bundle: Bundle) -> Owner | None:
        """Return the broker that gets a bundle without owner; None: this one. ServiceNotReadyError, MetadataError."""
        if self.closed or self._isolation.draining or await self._is_alone():
            return await self._isolation.elsewhere(bundle)
        broker = await self._assigned(bundle, None)
        if broker == self._id:
            return None
        if broker is not None:
            data = await registered(self._metadata, broker)
            if data is not None:
                return Owner(urls_of(data), ours=False)
        self._events.add(Happened.FALLBACK, f"{bundle}: no leader assigned it")
        return await self._isolation.elsewhere(bundle)

    async def successor(self, bundle: Bundle) -> str | None:
        """Return the broker to which this one gives a bundle of its own: the leader's choice, without one any other.

        None: there is none. MetadataError.
        """
        broker = None if self.closed else await self._assigned(bundle, self._id)
        if broker is not None and broker != self._id:
            return broker
        return await self._isolation.successor(bundle)

    async def _is_alone(self) -> bool:
        """Return whether there is no other broker. The answer may be a second old."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._others_until_s:
            self._alone = await self._metadata.children(BROKERS) == [self._id]
            self._others_until_s = now_s + OTHERS_S
        return self._alone

    async def _assigned(self, bundle: Bundle, source: BrokerId | None) -> BrokerId | None:
        """Return the leader's choice; `source` gives the bundle away. None without an answer."""
        try:
            async with asyncio.timeout(ASK_S):
                return await (self._ask(bundle, source) if self.decide is None else self.decide(bundle, source))
        except TimeoutError:
            return None
        except MetadataError as error:
            _log.info("cannot ask which broker gets %s: %s", bundle, error)
            return None

    async def _ask(self, bundle: Bundle, source: BrokerId | None) -> BrokerId | None:
        """Return the stored assignment, or ask for one. None if no broker leads."""
        answer: asyncio.Future[BrokerId | None] = asyncio.get_running_loop().create_future()
        self._waiting[bundle] = answer
        key, question = key_of(bundle), Assignment(source=source, asked_by=self._id).encode()
        try:
            try:
                await self._metadata.put(key, question, expected=ABSENT, ephemeral=True)
            except BadVersionError:
                node = await self._metadata.get(key)
                found = None if node is None else assignment_of(node).broker
                if found is not None and found != source and await self._takes_bundles(found):
                    return found
                # An old question, or a broker that is gone or being drained: the leader notices a new version.
                expected = ABSENT if node is None else node.version
                await self._metadata.put(key, question, expected=expected, ephemeral=True)
            if await self._metadata.get(LEADER) is None:
                return None
            return await answer
        except BadVersionError:
            return await answer  # another broker was faster: the answer is on its way
        finally:
            if self._waiting.get(bundle) is answer:
                del self._waiting[bundle]

    async def _takes_bundles(self, broker: BrokerId) -> bool:
        """Return whether the broker is available, and not being drained since it was assigned a bundle."""
        if broker == self._id:
            return True
        data = await registered(self._metadata, broker)
        return data is not None and data.get(DRAINING) is not True

    async def _read_answer(self, bundle: Bundle) -> None:
        node = await self._metadata.get(key_of(bundle))
        try:
            found = None if node is None else assignment_of(node)
        except MetadataFormatError as error:
            _log.warning("an assignment is not used: %s", error)
            return
        if found is not None and found.broker is not None:
            self._settle(bundle, found.broker)
            if found.source == self._id:
                self.on_move(bundle, found.broker)

    def _settle(self, bundle: Bundle, broker: BrokerId | None) -> None:
        """End the wait for an answer about the bundle, if there is one."""
        waiting = self._waiting.get(bundle)
        if waiting is not None and not waiting.done():
            waiting.set_result(broker)

    async def follow(self) -> None:
        """Notice answers, moves and, as the leader, questions, until cancelled."""
        watch = await watch_with_retries(self._metadata, f"{ASSIGNMENTS}/", _log.info)
        try:
            async for event in watch:
                bundle = bundle_of_key(event.key)
                if event.kind is EventKind.RESYNC:
                    for asked in list(self._waiting):
                        self._settle(asked, None)
                elif bundle is not None and event.kind is EventKind.DELETED:
                    self._settle(bundle, None)  # no broker may have it, or it has an owner by now
                elif bundle is not None:
                    if self.decide is not None:
                        self.on_question(bundle)
                    if bundle in self._waiting or self._owns(bundle):
                        read = partial(self._read_answer, bundle)
                        await with_retries(read, f"read {event.key}", _log.info)
        finally:
            await watch.close()
