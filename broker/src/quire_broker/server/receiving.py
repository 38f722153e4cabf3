"""Receives the bundles that other brokers offer to this one; see `handover`.

    offer                 the topics' next ledgers are created, the policies read; the offer is answered
    completed offer       the topics' nodes are read, then the bundle is taken and its topics are opened at once

Requests for topics of an offered bundle wait until it is taken or will not be. A prepared ledger is only used if it is
still valid, see `managed_ledger.preparation`. If this broker does not get the bundle, it closes what it has opened.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quire_bookie.env.background import Background
from quire_bookie.errors import MetadataError, QuireError
from quire_bookie.metadata.store import Node
from quire_broker.errors import ServiceNotReadyError
from quire_broker.limits import (
    HANDOVER_ARRIVAL_S,
    HANDOVER_LOADS_MAX,
    HANDOVER_PREPARED_MAX,
    HANDOVER_TOPICS_MAX,
)
from quire_broker.names import TopicName, parse_topic
from quire_broker.ownership.offers import Offer
from quire_broker.ownership.owners import Bundle, Owners
from quire_broker.policies.store import PolicyStore
from quire_broker.server.steps import Steps
from quire_broker.topic.topics import Topics

T = TypeVar("T")
log = logging.getLogger("quire.broker.handover")


class Receiving:
    """Takes bundles from other brokers."""

    def __init__(self, owners: Owners, topics: Topics, policies: PolicyStore, background: Background) -> None:
        self._owners = owners
        self._topics = topics
        self._policies = policies
        self._background = background
        self._loads = asyncio.Semaphore(HANDOVER_LOADS_MAX)
        self._preparing = asyncio.Semaphore(HANDOVER_LOADS_MAX)
        """Not the same: loads wait until the bundle is taken."""
        self._offered: dict[Bundle, list[TopicName]] = {}
        """The prepared topics of each expected bundle."""

    def modified(self, bundle: Bundle) -> None:
        """Look whether another broker offers the bundle to this one."""
        self._background.start(self._look(bundle), f"look at {bundle}")

    async def _look(self, bundle: Bundle) -> None:
        steps = Steps()
        try:
            # An expected bundle was probably completed: its ledgers are read at the same time.
            ahead, offered = await asyncio.gather(
                self._each(self._offered.get(bundle, ()), self._topics.look_ahead), self._owners.offered(bundle)
            )
            if offered is None:
                self._end(bundle)
            elif offered[0].closed:
                names = [name for name, is_ahead in ahead.items() if is_ahead]
                await self._take(bundle, *offered, names, steps)
            elif bundle not in self._offered:
                await self._prepare(bundle, *offered)
        except (MetadataError, ServiceNotReadyError) as error:
            self._end(bundle)
            log.info("%s is not taken: %s", bundle, error)

    async def _prepare(self, bundle: Bundle, offer: Offer, node: Node) -> None:
        names = [parse_topic(name) for name in offer.topics[:HANDOVER_PREPARED_MAX]]
        await self._policies.policies(bundle.namespace)
        if not names:
            return
        self._offered[bundle] = names
        self._owners.arrivals.expect(bundle.key, HANDOVER_ARRIVAL_S)
        self._background.start(self._withdraw_in_time(bundle), f"the answer to the offer of {bundle}")
        await self._each(names, self._topics.prepare)
        await self._owners.readiness.announce(str(bundle), node.version, self._owners.data)

    async def _withdraw_in_time(self, bundle: Bundle) -> None:
        """Remove our answer when the bundle has arrived, or will not."""
        await self._owners.arrivals.wait(bundle.key)
        self._offered.pop(bundle, None)
        try:
            await self._owners.readiness.withdraw(str(bundle))
        except MetadataError as error:
            log.debug("the answer to the offer of %s stays until it is replaced: %s", bundle, error)

    def _end(self, bundle: Bundle) -> None:
        self._offered.pop(bundle, None)
        self._owners.arrivals.end(bundle.key)

    async def _take(self, bundle: Bundle, offer: Offer, node: Node, ahead: list[TopicName], steps: Steps) -> None:
        """Take the bundle. Meanwhile open the topics that were read ahead, and let all others wait for it."""
        steps.done("read")
        if not self._owners.arrivals.expects(bundle.key):
            self._owners.arrivals.expect(bundle.key, HANDOVER_ARRIVAL_S)
        loads = [
            self._background.spawn(self._load(parse_topic(name)), f"load {name}, which was handed over")
            for name in offer.topics[:HANDOVER_TOPICS_MAX]
        ]
        self._topics.arriving.update(ahead)
        opening = self._background.spawn(self._each(ahead, self._topics.open_ahead), f"open ledgers of {bundle}")
        is_ours = False
        try:
            is_ours = await self._owners.take_offered(bundle, node)
            steps.done("taken")
        finally:
            self._end(bundle)
            if not is_ours:
                self._topics.arriving.difference_update(ahead)
                for ledger in (await opening).values():
                    if ledger is not None:
                        await ledger.close()
        await asyncio.gather(*loads)
        self._topics.arriving.difference_update(ahead)
        steps.done("loaded")
        if is_ours:
            log.info("%s is ours now, with %d topics in use: %s", bundle, len(loads), steps)

    async def _load(self, name: TopicName) -> None:
        async with self._loads:
            await self._topics.load_again(name)

    async def _each(
        self, names: Sequence[TopicName], work: Callable[[TopicName], Awaitable[T]]
    ) -> dict[TopicName, T | None]:
        """Run the work for each topic, several at once. Return the results by name; a failure is only logged."""

        async def one(name: TopicName) -> T | None:
            async with self._preparing:
                try:
                    return await work(name)
                except QuireError as error:
                    log.info("%s is opened when a client asks for it: %s", name, error)
                    return None

        return dict(zip(names, await asyncio.gather(*(one(name) for name in names)), strict=True))
