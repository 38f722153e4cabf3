"""The limits that topics of a resource group share, divided among brokers on the loop's clock."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire_bookie.env.background import Background
from quire_broker.limits import RESOURCE_GROUPS_EXCHANGE_S
from quire_broker.policies.resource_group_nodes import ResourceGroupNodes
from quire_broker.policies.store import RESOURCE_GROUPS
from quire_broker.topic.resource_groups import NO_GROUP, USAGE, GroupLimits, GroupParts, ResourceGroups
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore


class Broker:
    """The groups of one broker."""

    def __init__(self, name: str, metadata: SimMetadata, background: Background) -> None:
        self.groups, self.changes = ResourceGroups(), 0
        self.store = SimMetadataStore(metadata)
        self.parts = GroupParts(self.groups, self.store, name, self._changed)
        background.keep(self.parts.run, "resource groups")

    async def _changed(self, changed: set[GroupLimits]) -> None:
        self.changes += len(changed)

    async def publish(self, group: GroupLimits, seconds: float) -> int:
        """Publish as much as the group permits. Return the number of messages."""
        loop, count = asyncio.get_running_loop(), 0
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            count += 1
            if not group.publish.active:
                await asyncio.sleep(0.01)
            elif not group.publish.charge(1, 100):
                await asyncio.sleep(max(0.0, group.publish.ready_s - loop.time()))
        return count


def scenario(work: Callable[[list[Broker], ResourceGroupNodes], Coroutine[Any, Any, None]], brokers: int = 1) -> None:
    async def run(loop: SimLoop) -> None:
        metadata, background = SimMetadata(random.Random(1), delay_s=(0.0, 0.0)), Background()
        found = [Broker(f"broker-{number}:8080", metadata, background) for number in range(brokers)]
        try:
            await work(found, ResourceGroupNodes(SimMetadataStore(metadata)))
        finally:
            await background.close()

    simulate(run, seed=1)


def test_without_a_name_nothing_is_limited() -> None:
    groups = ResourceGroups()
    assert groups.of(None) is groups.of("") is groups.of(7) is NO_GROUP
    assert not NO_GROUP.publish.active and not NO_GROUP.dispatch.active


def test_topics_of_a_group_share_its_limits_and_a_group_without_topics_is_forgotten() -> None:
    groups = ResourceGroups()
    first = groups.of("g")
    assert groups.of("g") is first and list(groups.used) == ["g"] and groups.changed.is_set()
    del first
    assert not groups.used


def test_a_group_applies_soon_after_its_first_topic_and_follows_changes() -> None:
    async def work(brokers: list[Broker], nodes: ResourceGroupNodes) -> None:
        await nodes.put("g", {"publishRateInMsgs": 100, "dispatchRateInBytes": 5000})
        group = brokers[0].groups.of("g")
        await asyncio.sleep(1)
        assert (group.publish.rate.messages, group.publish.rate.size_bytes) == (100, 0)
        assert (group.dispatch.rate.messages, group.dispatch.rate.size_bytes) == (0, 5000)
        await nodes.put("g", {"publishRateInMsgs": 200})
        await asyncio.sleep(2 * RESOURCE_GROUPS_EXCHANGE_S)
        assert group.publish.rate.messages == 200 and group.dispatch.rate.size_bytes == 5000
        assert brokers[0].changes == 2
        await nodes.delete("g")
        brokers[0].groups.changed.set()
        await asyncio.sleep(1)
        assert not group.publish.active and not group.dispatch.active

    scenario(work)


@pytest.mark.parametrize("busy", [1, 2, 3])
def test_brokers_together_publish_at_the_rate_of_the_group(busy: int) -> None:
    async def work(brokers: list[Broker], nodes: ResourceGroupNodes) -> None:
        await nodes.put("g", {"publishRateInMsgs": 300})
        groups = [broker.groups.of("g") for broker in brokers]
        await asyncio.gather(*(broker.publish(groups[place], 30) for place, broker in enumerate(brokers[:busy])))
        sent = await asyncio.gather(*(broker.publish(groups[place], 60) for place, broker in enumerate(brokers[:busy])))
        assert 0.9 * 300 * 60 <= sum(sent) <= 1.1 * 300 * 60
        assert min(sent) >= 0.8 * max(sent), "each gets the same"

    scenario(work, brokers=3)


def test_what_a_group_uses_is_published_and_removed_with_its_last_topic() -> None:
    async def work(brokers: list[Broker], nodes: ResourceGroupNodes) -> None:
        await nodes.put("g", {"publishRateInMsgs": 300})
        group = brokers[0].groups.of("g")
        await brokers[0].publish(group, 3 * RESOURCE_GROUPS_EXCHANGE_S)
        node = await brokers[0].store.get(f"{USAGE}/broker-0:8080")
        assert node is not None and node.owned
        used, is_full = json.loads(node.value)["g"][0]
        assert 250 < used < 350 and is_full is True
        del group
        await asyncio.sleep(3 * RESOURCE_GROUPS_EXCHANGE_S)
        assert await brokers[0].store.get(f"{USAGE}/broker-0:8080") is None

    scenario(work)


@pytest.mark.parametrize(
    "value", [b"[", b"[]", b'{"g": 7}', b'{"g": [["x", 1], [NaN, 0], 5]}', b'{"g": [[1e999, false]]}'], ids=repr
)
def test_what_another_program_wrote_counts_as_unknown(value: bytes) -> None:
    async def work(brokers: list[Broker], nodes: ResourceGroupNodes) -> None:
        await nodes.put("g", {"publishRateInMsgs": 300})
        await brokers[0].store.put(f"{USAGE}/other:8080", value)
        group = brokers[0].groups.of("g")
        await asyncio.sleep(1)
        assert group.publish.rate.messages in (150, 300)

    scenario(work)


def test_without_the_metadata_store_the_parts_stay_and_a_damaged_group_limits_nothing() -> None:
    async def work(brokers: list[Broker], nodes: ResourceGroupNodes) -> None:
        await nodes.put("g", {"publishRateInMsgs": 300})
        group = brokers[0].groups.of("g")
        await asyncio.sleep(1)
        brokers[0].store.cut = True
        await asyncio.sleep(10 * RESOURCE_GROUPS_EXCHANGE_S)
        assert group.publish.rate.messages == 300
        brokers[0].store.reach()
        await brokers[0].store.put(f"{RESOURCE_GROUPS}/g", b"[")
        await asyncio.sleep(2 * RESOURCE_GROUPS_EXCHANGE_S)
        assert not group.publish.active

    scenario(work)
