"""Shared and Key_Shared under random joins, leaves, acks, redeliveries and skips, with delayed entries and a clock that
jumps: no entry lost, doubled, early or out of order."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import Delivery, KeyShared
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.kinds import SubscriptionType
from tests.unit.broker.dispatch.doubles import Clock, Link, MemoryCursor, MemoryLedger, settle, spec

WHAT = ["publish", "delay", "join", "leave", "flow", "ack", "nack", "skip", "pass", "back", "run", "tick"]
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 30)), max_size=50)


class Checked(Link):
    """Fails if an entry is sent while another consumer holds it, or without a permit."""

    def __init__(self, world: "World", index: int) -> None:
        super().__init__()
        self.world = world
        self.index = index

    def deliver(self, consumer_id: int, deliveries: Any, messages: int) -> None:
        for delivery in deliveries:
            self.world.sent(self.index, delivery)
        super().deliver(consumer_id, deliveries, messages)


class SlowLedger(MemoryLedger):
    """A ledger whose reads take several loop iterations."""

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        found = await super().read(start, entries_max, bytes_max)
        for _ in range(3):
            await asyncio.sleep(0)
        return found


class World:
    """A dispatcher, and a model of the entries that clients hold."""

    def __init__(self, *, key_shared: bool, consistent: bool = True) -> None:
        self.ledger = SlowLedger()
        self.cursor = MemoryCursor(self.ledger)
        chosen = DispatchSettings(
            look_ahead_per_consumer=4,
            read_batch_entries=5,
            key_shared_consistent_hashing=consistent,
            delayed_entries_max=6,
        )
        clock = self.clock = Clock()
        self.dispatcher = (
            KeySharedDispatcher(self.cursor, self.ledger, chosen, clock, KeyShared())
            if key_shared
            else SharedDispatcher(self.cursor, self.ledger, chosen, clock)
        )
        self.key_shared = key_shared
        self.nacked: set[int] = set()
        self.keys: list[str] = []
        self.deliver_at_ms: dict[int, int] = {}
        self.holder: dict[int, int] = {}
        self.granted: dict[int, int] = {}
        self.members: dict[int, Consumer] = {}
        self.joined = 0

    def sent(self, index: int, delivery: Delivery) -> None:
        entry = delivery.position.entry_id
        assert entry not in self.holder, f"entry {entry} is with {self.holder[entry]} and now with {index}"
        assert entry not in self.cursor.acked
        assert self.deliver_at_ms.get(entry, 0) <= self.clock.now, "sent early"
        self.granted[index] -= 1
        assert self.granted[index] >= 0, "sent without a permit"
        if self.key_shared:
            same_key = [other for other in range(len(self.keys)) if self.keys[other] == self.keys[entry]]
            for other in same_key:
                assert self.holder.get(other, index) == index, "two consumers hold entries of one key"
                free = self.cursor.acked | self.nacked | self.deliver_at_ms.keys()
                if other < entry and other not in free:
                    assert other in self.holder, f"entry {entry} overtook {other}"
        self.holder[entry] = index
        self.nacked.discard(entry)

    def publish(self, key: int, **metadata: Any) -> None:
        self.keys.append(f"key{key % 6}")
        self.ledger.publish(partition_key=self.keys[-1], **metadata)
        self.dispatcher.appended()

    def delay(self, key: int, delay_ms: int) -> None:
        self.deliver_at_ms[len(self.keys)] = self.clock.now + delay_ms
        self.publish(key, deliver_at_time=self.clock.now + delay_ms)

    def pass_time(self, ms: int) -> None:
        self.clock.now += ms
        self.dispatcher.wake()

    def skip(self, through: int) -> None:
        self.cursor.acknowledge([Position(7, entry) for entry in range(through + 1)])
        self.dispatcher.acknowledged_through(Position(7, through))
        self.holder = {entry: who for entry, who in self.holder.items() if entry > through}

    def join(self) -> None:
        index, self.joined = self.joined, self.joined + 1
        member = Consumer(spec(index, SubscriptionType.SHARED), Checked(self, index))
        self.members[index] = member
        self.granted[index] = 0
        self.dispatcher.add(member)
        self.flow(index, 3)

    def flow(self, index: int, permits: int) -> None:
        self.granted[index] += permits
        self.members[index].flow(permits)
        self.dispatcher.wake()

    def pick(self, value: int) -> int | None:
        return sorted(self.members)[value % len(self.members)] if self.members else None

    def apply(self, what: str, value: int) -> None:
        index = self.pick(value)
        if what == "publish":
            for _ in range(value % 4 + 1):
                self.publish(value)
        elif what == "delay":
            for more in range(value % 4 + 1):
                self.delay(value, 100 * value + 700 * more)
        elif what in ("pass", "back"):
            self.pass_time(40 * value if what == "pass" else -60 * value)
        elif what == "skip":
            self.skip(min(value, len(self.keys)) - 1)
        elif what == "join" and len(self.members) < 4:
            self.join()
        elif index is None:
            return
        elif what == "leave":
            self.dispatcher.remove(self.members.pop(index))
            self.holder = {entry: who for entry, who in self.holder.items() if who != index}
        elif what == "flow":
            self.flow(index, value % 5 + 1)
        else:
            self.answer(what, index, value)

    def answer(self, what: str, index: int, value: int) -> None:
        held = sorted(entry for entry, who in self.holder.items() if who == index)
        if not held:
            return
        entry = held[value % len(held)]
        position = Position(7, entry)
        del self.holder[entry]
        if what == "ack":
            self.cursor.acknowledge([position])
            self.dispatcher.acknowledged(self.members[index], [position])
        elif what == "nack":
            self.nacked.add(entry)
            self.dispatcher.redeliver(self.members[index], [position], None)
        else:
            self.holder[entry] = index

    async def finish(self) -> None:
        """Add a consumer that takes and acknowledges everything; then every entry must arrive."""
        if not self.members:
            self.join()
        self.pass_time(100_000)
        for _ in range(400):
            for index in list(self.members):
                self.flow(index, 2)
            await settle()
            for entry, index in sorted(self.holder.items()):
                del self.holder[entry]
                position = Position(7, entry)
                self.cursor.acknowledge([position])
                self.dispatcher.acknowledged(self.members[index], [position])
            if not self.cursor.backlog:
                break
        assert self.cursor.backlog == 0, "an entry was never delivered"
        assert self.dispatcher.unacked == 0
        assert len(self.dispatcher.replay) == 0 and len(self.dispatcher.delayed) == 0


async def play(world: World, steps: list[tuple[str, int]]) -> None:
    failures: list[BaseException] = []
    world.dispatcher.failed = lambda: failures.append(AssertionError("see the log"))  # type: ignore[method-assign]
    running = asyncio.get_running_loop().create_task(world.dispatcher.run())
    try:
        for what, value in steps:
            if what == "run":
                await settle()
            elif what == "tick":
                await asyncio.sleep(0)  # so that the next step may find a read in flight
            else:
                world.apply(what, value)
        await settle()
        assert not failures
        await world.finish()
        assert not failures
    finally:
        world.dispatcher.retire()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@given(STEPS)
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("form", ["shared", "ring", "ranges"])
def test_nothing_is_lost_doubled_or_out_of_order(form: str, steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        await play(World(key_shared=form != "shared", consistent=form == "ring"), steps)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(40))
def test_a_long_walk_loses_doubles_and_sends_early_nothing(seed: int) -> None:
    chance = random.Random(seed)
    weighted = [*WHAT, "delay", "flow", "run", "pass"]
    steps = [("join", 0), ("join", 0), *((chance.choice(weighted), chance.randint(0, 30)) for _ in range(100))]

    async def main() -> None:
        await play(World(key_shared=seed % 3 > 0, consistent=seed % 3 == 1), steps)

    asyncio.run(main())
