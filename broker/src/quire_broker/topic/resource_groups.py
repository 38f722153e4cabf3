"""The limits that the topics of a resource group share on this broker, and the part of each rate that it may use.

    /loadbalance/resource-groups/<broker>   ephemeral, {group: [[used per second, whether it used its part], ...]}

`GroupLimits` are shared by topics. `GroupParts` measures what a group uses here, publishes it, reads what it uses at
other brokers, and divides its rates (`policies.resource_groups`). While the metadata store is unavailable, the parts
stay as they are.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from quire_bookie.errors import MetadataError, MetadataFormatError, NodeMissingError
from quire_bookie.metadata.store import MetadataStore
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.limits import RESOURCE_GROUPS_EXCHANGE_S
from quire_broker.policies.resource_group_nodes import ResourceGroupNodes
from quire_broker.policies.resource_groups import RATES, Demand, is_full, limits_of, part_of, rates_of
from quire_broker.policies.store import decode_json, encode_json
from quire_broker.topic.publish_limit import PublishLimit

USAGE = "/loadbalance/resource-groups"
_STEADY = 0.1
"""A part that changes by less than this much of itself stays: a new one begins with a burst."""
log = logging.getLogger("quire.broker.topic")


class GroupLimits:
    """The limits of one resource group on this broker."""

    def __init__(self) -> None:
        self.publish = PublishLimit()
        self.dispatch = DispatchLimit()
        self.parts: tuple[int, ...] = (0,) * len(RATES)
        """Its part of each rate; 0: no limit."""
        self.demands = [Demand()] * len(RATES)
        self._counted = self._totals()

    def _totals(self) -> tuple[int, ...]:
        return (*self.publish.charged, *self.dispatch.charged)

    def measure(self, elapsed_s: float) -> None:
        """Note the use of each rate since the last call."""
        totals = self._totals()
        used = [(now - before) / elapsed_s for now, before in zip(totals, self._counted, strict=True)]
        self.demands = [Demand(each, is_full(each, part)) for each, part in zip(used, self.parts, strict=True)]
        self._counted = totals

    def use(self, parts: tuple[int, ...]) -> bool:
        """Apply other parts. Return whether one of them differs from the present one by much."""
        if all(_is_close(old, new) for old, new in zip(self.parts, parts, strict=True)):
            return False
        self.parts = parts
        publish, dispatch = limits_of(parts)
        self.publish.use(publish)
        self.dispatch.use(dispatch)
        return True


def _is_close(old: int, new: int) -> bool:
    return abs(new - old) <= _STEADY * old if old and new else old == new


NO_GROUP: Final = GroupLimits()
"""Limits nothing."""


class ResourceGroups:
    """The groups that loaded topics belong to; those without topics are forgotten."""

    def __init__(self) -> None:
        self._used: WeakValueDictionary[str, GroupLimits] = WeakValueDictionary()
        self.changed = asyncio.Event()
        """Set when a group has its first topic, and when one may have changed."""

    def of(self, name: object) -> GroupLimits:
        """Return the limits of a group; without a name those that limit nothing."""
        if not isinstance(name, str) or not name:
            return NO_GROUP
        found = self._used.get(name)
        if found is None:
            found = self._used[name] = GroupLimits()
            self.changed.set()
        return found

    @property
    def used(self) -> dict[str, GroupLimits]:
        """The groups of the loaded topics, by name."""
        return dict(sorted(self._used.items()))


class GroupParts:
    """Keeps the parts of one broker. `on_change`: called after limits have changed, with these."""

    def __init__(
        self,
        groups: ResourceGroups,
        metadata: MetadataStore,
        broker_id: str,
        on_change: Callable[[set[GroupLimits]], Awaitable[None]],
    ) -> None:
        self._groups, self._metadata, self._nodes = groups, metadata, ResourceGroupNodes(metadata)
        self._key = f"{USAGE}/{broker_id}"
        self._on_change = on_change
        self._published = False

    async def run(self) -> None:
        """Divide the rates now and again, until cancelled; at once after a change.

        No variable here may hold a group while it waits: a group without topics is forgotten.
        """
        loop, changed = asyncio.get_running_loop(), self._groups.changed
        measured_s = loop.time()
        while True:
            active = bool(self._groups.used) or self._published
            pause_s = measured_s + RESOURCE_GROUPS_EXCHANGE_S - loop.time() if active else None
            try:
                async with asyncio.timeout(pause_s):
                    await changed.wait()
            except TimeoutError:
                self._measure(loop.time() - measured_s)
                measured_s = loop.time()
            else:
                if pause_s is None:
                    measured_s = loop.time()
            changed.clear()
            try:
                await self.divide()
            except MetadataError as error:
                log.info("the rates of resource groups stay divided as they are: %s", error)

    def _measure(self, elapsed_s: float) -> None:
        for group in self._groups.used.values():
            group.measure(elapsed_s)

    async def divide(self) -> None:
        """Publish what the groups use here, and apply their parts. MetadataError."""
        used = self._groups.used
        if not used:
            await self._withdraw()
            return
        usage = {name: [[round(one.used, 1), one.is_full] for one in group.demands] for name, group in used.items()}
        await self._metadata.put(self._key, encode_json(usage), ephemeral=True)
        self._published = True
        others, known = await self._others(), await self._nodes.all()
        touched = set()
        for name, group in used.items():
            rates = rates_of(known.get(name))
            demands = [_demands(usage[name]) for usage in others if name in usage]
            parts = tuple(
                part_of(rate, group.demands[place], [one[place] for one in demands]) for place, rate in enumerate(rates)
            )
            if group.use(parts):
                touched.add(group)
        if touched:
            await self._on_change(touched)

    async def _withdraw(self) -> None:
        if self._published:
            with contextlib.suppress(NodeMissingError):
                await self._metadata.delete(self._key)
            self._published = False

    async def _others(self) -> list[dict[str, Any]]:
        """Return what the other brokers have published."""
        found = []
        async for page in self._metadata.scan(f"{USAGE}/"):
            for node in page:
                if node.key != self._key:
                    try:
                        found.append(decode_json(node.key, node.value))
                    except MetadataFormatError as error:
                        log.warning("a broker's use of resource groups does not count: %s", error)
        return found


def _demands(value: Any) -> list[Demand]:
    """Decode the use at another broker; unreadable values count as unknown."""
    found = [_demand(one) for one in value] if isinstance(value, list) else []
    return (found + [Demand()] * len(RATES))[: len(RATES)]


def _demand(value: Any) -> Demand:
    if not isinstance(value, list) or len(value) != 2:
        return Demand()
    used, was_full = value
    if not isinstance(used, int | float) or isinstance(used, bool) or not 0 <= used < float("inf"):
        return Demand()
    return Demand(float(used), bool(was_full))
