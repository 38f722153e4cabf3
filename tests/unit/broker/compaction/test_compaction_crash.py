"""A broker that dies at any step of a compaction loses no message, and its ledgers are deleted in the end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire_broker.compaction.compacted_entry import encode
from quire_broker.compaction.compacted_output import CompactedOutput, custom_of
from quire_broker.compaction.latest_messages import LatestMessages, summary_of
from quire_broker.compaction.topic_compaction import NO_LEDGER
from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.topic.topic import Topic
from tests.sim.metadata import SimMetadataStore
from tests.support.sampling import one_in
from tests.unit.broker.compaction.messages import Keyed, batch, entry, received, values
from tests.unit.broker.managed_ledger.ledgers import FakeClient, FakeReader, FakeWriter
from tests.unit.broker.managed_ledger.world import Process, World, append, run
from tests.unit.broker.topic.test_topics import TOPIC, Broker

SETTLED_S = 40
MESSAGES: list[Keyed] = [(f"k{number % 5}", b"" if number in (7, 16) else b"%d" % number) for number in range(24)]
LATER: list[Keyed] = [(f"k{number % 4 + 3}", b"later %d" % number) for number in range(9)]


class Steps:
    """Counts the calls of a process to metadata and bookies, and kills it at one of them."""

    def __init__(self, process: Process, patch: pytest.MonkeyPatch, kill_at: int, *, after: bool) -> None:
        self.process = process
        self.count = -1
        """-1: not counting yet."""
        self.killed = False
        self._kill_at = kill_at
        self._after = after
        for kind, names in (
            (SimMetadataStore, ("transact", "put", "delete")),
            (FakeClient, ("create_ledger", "open_ledger", "delete_ledger")),
            (FakeWriter, ("close",)),
            (FakeReader, ("read",)),
        ):
            for name in names:
                patch.setattr(kind, name, self._counted(getattr(kind, name)))

    def _counted(self, method: Any) -> Any:
        async def call(owner: Any, *args: Any, **options: Any) -> Any:
            if self.count < 0 or self.killed:
                return await method(owner, *args, **options)
            step, self.count = self.count, self.count + 1
            if step == self._kill_at and not self._after:
                await self._die()
            result = await method(owner, *args, **options)
            if step == self._kill_at:
                await self._die()
            return result

        return call

    async def _die(self) -> None:
        self.killed = True
        self.process.kill()
        await asyncio.get_running_loop().create_future()


async def publish(topic: Topic, messages: list[Keyed]) -> None:
    """Publish an entry and a batch of two to each of many ledgers."""
    for number in range(0, len(messages), 3):
        single, *more = messages[number : number + 3]
        await append(topic.ledger, entry(*single), batch(more))
        await topic.ledger.roll()


async def compacted(topic: Topic) -> None:
    """Compact a topic whose only subscription acknowledges everything meanwhile: its ledgers may then be deleted."""
    topic.compaction.start()
    await asyncio.sleep(0)
    await (await topic.subscription("drained", create=True, initial=EARLIEST)).skip_all()
    while topic.compaction.running:  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.1)


async def adopted(topic: Topic) -> None:
    """Put a ledger that a job wrote into use while the only subscription acknowledges everything."""
    ledger, current, horizon = topic.ledger, topic.ledger.compacted.current, topic.ledger.last_confirmed
    entries = await ledger.read(EARLIEST, 100)
    if current is not None and topic.compaction.reader is not None:
        former = await topic.compaction.reader.read(EARLIEST, 100, 1 << 20)
        entries = former + [each for each in entries if each.position > current.horizon]
    latest = LatestMessages(keyless=False, bytes_max=1 << 20)
    for each in entries:
        latest.note(each.position, each.data, summary_of(each.data))
    writer = await ledger.compacted.create(custom_of(TOPIC, horizon))
    output = CompactedOutput(writer)
    for each in entries:
        kept = latest.kept(each.position, each.data, summary_of(each.data))
        if kept is not None:
            await output.add(encode(each.position, TOPIC.partition, kept.data, kept.live), each.position)
    await output.finish()
    former_id = NO_LEDGER if current is None else current.ledger_id
    adopting = asyncio.create_task(topic.compaction.adopt(writer.ledger_id, horizon, former_id))
    await asyncio.sleep(0)
    await (await topic.subscription("drained", create=True, initial=EARLIEST)).skip_all()
    await adopting


def named_ledgers(world: World, topic: Topic) -> set[int]:
    """Return the ledgers that list and cursors name."""
    found = {record.ledger_id for record in world.list_node(TOPIC.ledger_name).ledgers}
    for cursor in topic.ledger.cursors:
        node = world.cursor_node(cursor, TOPIC.ledger_name)
        found |= {node.ledger_id, *node.state.properties.values()} - {-1}
    return found


def check_ledgers(world: World, topic: Topic) -> None:
    """Check that no compacted ledger is left over. One that was not recorded yet may stay, empty."""
    assert named_ledgers(world, topic) <= set(world.bookies.ledgers)
    left_over = set(world.bookies.of_topic(b"compacted-topic")) - named_ledgers(world, topic)
    assert len(left_over) <= 1 and not any(world.bookies.ledgers[ledger].entries for ledger in left_over)


def died_at(kill_at: int, *, after: bool, again: bool, by: Callable[[Topic], Awaitable[None]]) -> bool:
    """Play a compaction with a death at one call. Return whether it came that far."""
    died = False

    async def play(world: World) -> None:
        nonlocal died
        process = world.process()
        steps = Steps(process, patch, kill_at, after=after)

        async def first() -> None:
            broker = Broker(process)
            await broker.namespace()
            topic = await broker.topics.get(TOPIC)
            await topic.subscription("drained", create=True, initial=EARLIEST)
            await publish(topic, MESSAGES)
            if again:
                await compacted(topic)
                await publish(topic, LATER)
            await asyncio.sleep(SETTLED_S)
            steps.count = 0
            await by(topic)
            await asyncio.sleep(SETTLED_S)
            await broker.topics.close()
            steps.count = -1

        task = world.loop.run_on(process.node, first())
        while not task.done() and not steps.killed:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(1)
        if task.done():
            task.result()
        died = steps.killed
        await asyncio.sleep(SETTLED_S)
        await check(world)

    async def check(world: World) -> None:
        process = world.process()
        expected = values(MESSAGES + LATER if again else MESSAGES)

        async def second() -> None:
            topic = await Broker(process).topics.get(TOPIC)
            assert values(await received(topic)) == expected
            await asyncio.sleep(SETTLED_S)
            check_ledgers(world, topic)
            await append(topic.ledger, entry("k0", b"last"))
            await compacted(topic)
            assert topic.compaction.stats.status == "SUCCESS", topic.compaction.stats.last_error
            await asyncio.sleep(SETTLED_S)
            assert await received(topic, compacted=False) == [("k0", b"last")], "the other ledgers are deleted"
            found = await received(topic)
            assert values(found) == {**expected, "k0": b"last"} and len(found) == len(values(found))
            await asyncio.sleep(SETTLED_S)
            check_ledgers(world, topic)

        await process.run(second())

    with pytest.MonkeyPatch.context() as patch:
        run(play, settings=ManagedLedgerSettings(rollover_age_min_s=0.0, trim_interval_s=1.0))
    return died


@one_in(5)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("again", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("by", [compacted, adopted], ids=["broker", "job"])
def test_a_death_at_any_step_loses_nothing(
    after: bool, again: bool, by: Callable[[Topic], Awaitable[None]], every: int
) -> None:
    step = 0
    while died_at(step, after=after, again=again, by=by):
        step += every
    assert step > 10
