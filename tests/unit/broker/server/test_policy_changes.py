"""Changed policies: which topics they concern, and how many passes many changes cost."""

import asyncio
import logging
from collections.abc import Callable

from quire_bookie.env.background import Background
from quire_broker.names import TopicName, parse_topic
from quire_broker.policies.store import nodes_of
from quire_broker.server.policy_changes import PolicyChanges

TOPICS = [parse_topic(f"persistent://a/b/{name}") for name in ("plain", "parted-partition-0", "parted-partition-1")]
NAMESPACE = "/admin/policies/a/b"
LOCAL = "/admin/local-policies/a/b"
PARTED = nodes_of(TOPICS[1])[-1]


class World:
    """Passes over three loaded topics; each waits until it may go on."""

    def __init__(self) -> None:
        self.passes: list[list[str]] = []
        self.may_go_on = asyncio.Event()
        self.background = Background(logging.getLogger("test"))
        self.changes = PolicyChanges(self.apply, self.background)

    async def apply(self, concerned: Callable[[TopicName], bool]) -> None:
        self.passes.append([topic.local for topic in TOPICS if concerned(topic)])
        await self.may_go_on.wait()


async def settled(world: World) -> None:
    world.may_go_on.set()
    await world.background.drain()


async def test_a_change_concerns_the_topics_of_its_namespace_or_the_partitions_of_its_topic() -> None:
    for node, expected in (
        (NAMESPACE, ["plain", "parted-partition-0", "parted-partition-1"]),
        (LOCAL, ["plain", "parted-partition-0", "parted-partition-1"]),
        (PARTED, ["parted-partition-0", "parted-partition-1"]),
        ("", ["plain", "parted-partition-0", "parted-partition-1"]),
        ("/admin/policies/a/other", []),
    ):
        world = World()
        world.changes.notice(node)
        await settled(world)
        assert world.passes == [expected], node


async def test_changes_during_a_pass_cost_one_more_pass_together() -> None:
    world = World()
    world.changes.notice("/admin/policies/a/other")
    await asyncio.sleep(0)
    for number in range(1000):
        world.changes.notice(f"{PARTED}{number}")
    world.changes.notice(PARTED)
    await settled(world)
    assert world.passes == [[], ["parted-partition-0", "parted-partition-1"]]
    world.changes.notice(NAMESPACE)
    await settled(world)
    assert len(world.passes) == 3, "a later change is applied, too"
