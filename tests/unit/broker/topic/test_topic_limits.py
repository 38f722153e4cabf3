"""Tests of the limits of topics: at the limit, and one above it."""

import asyncio
from typing import Any

import pytest

from quire_broker.errors import NotAllowedError, ServiceNotReadyError, TooManyOperationsError
from quire_broker.limits import PARTITIONS_MAX
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.names import parse_topic
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.settings.topics import LoadSettings
from quire_broker.topic.topic import Topic
from tests.unit.broker.managed_ledger.world import World, run
from tests.unit.broker.topic.test_topics import TOPIC, Broker, scenario


def test_only_so_many_topics_load_at_once() -> None:
    async def work(world: World, broker: Broker) -> None:
        names = [parse_topic(f"persistent://public/default/t{number}") for number in range(4)]
        found = await asyncio.gather(*(broker.topics.get(name) for name in names), return_exceptions=True)
        assert [type(one) for one in found] == [Topic, Topic, Topic, TooManyOperationsError]
        assert "3 topics are being loaded" in str(found[3])
        assert (await broker.topics.get(names[3])).name == names[3], "the others have ended"

    scenario(work, loads_waiting_max=3)


def test_topics_wait_for_their_turn_to_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opening, most = set[str](), []
    proper = ManagedLedgerFactory.open

    async def counted(self: ManagedLedgerFactory, name: str, **options: Any) -> ManagedLedger:
        opening.add(name)
        most.append(len(opening))
        try:
            return await proper(self, name, **options)
        finally:
            opening.discard(name)

    async def work(world: World, broker: Broker) -> None:
        monkeypatch.setattr(ManagedLedgerFactory, "open", counted)
        names = [parse_topic(f"persistent://public/default/t{number}") for number in range(12)]
        found = await asyncio.gather(*(broker.topics.get(name) for name in names))
        assert [topic.name for topic in found] == names
        assert max(most) == 3

    scenario(work, loads=LoadSettings(at_once_max=3))


def test_a_topic_that_does_not_open_in_time_fails_and_is_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: ManagedLedgerFactory, name: str, **options: Any) -> ManagedLedger:
        await asyncio.Event().wait()
        raise AssertionError

    async def work(world: World, broker: Broker) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ManagedLedgerFactory, "open", hangs)
            begun_s = world.loop.time()
            with pytest.raises(ServiceNotReadyError, match="not loaded within 5 s"):
                await broker.topics.get(TOPIC)
            assert world.loop.time() - begun_s == pytest.approx(5.0, abs=0.1)
        assert (await broker.topics.get(TOPIC)).name == TOPIC

    scenario(work, loads=LoadSettings(timeout_s=5.0))


def test_an_opening_that_waits_for_the_metadata_store_ends_in_time_and_leaves_no_ledger() -> None:
    async def work(world: World) -> None:
        process = world.process(ManagedLedgerSettings(open_s=5.0))
        await (await process.open()).close()
        before = set(world.bookies.ledgers)
        world.away(True)
        begun_s = world.loop.time()
        with pytest.raises(ServiceNotReadyError, match="not opened within 5 s"):
            await process.open()
        assert world.loop.time() - begun_s == pytest.approx(5.0, abs=0.1)
        world.away(False)
        assert set(world.bookies.ledgers) == before
        assert (await process.open()).entries == 0

    run(work)


def test_a_partitioned_topic_has_at_most_so_many_partitions() -> None:
    async def work(world: World, broker: Broker) -> None:
        for count in (0, PARTITIONS_MAX + 1):
            with pytest.raises(NotAllowedError, match=rf"between 1 and {PARTITIONS_MAX}; got {count}"):
                await broker.topics.create_partitioned(TOPIC, count)
        await broker.topics.create_partitioned(TOPIC, PARTITIONS_MAX - 1)
        await broker.topics.grow_partitioned(TOPIC, PARTITIONS_MAX)
        with pytest.raises(NotAllowedError, match=rf"got {PARTITIONS_MAX + 1}"):
            await broker.topics.grow_partitioned(TOPIC, PARTITIONS_MAX + 1)
        assert await broker.policies.partitions(TOPIC) == PARTITIONS_MAX

    scenario(work)
