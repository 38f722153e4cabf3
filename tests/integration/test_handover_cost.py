"""How many writes of the metadata store wait for each other while a topic has no owner that accepts messages."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire_bookie.metadata import layout
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.names import parse_topic
from quire_broker.ownership.owners import Bundle
from quire_broker.server.broker import BrokerSettings
from quire_broker.topic.topic import TopicSettings
from quire_broker.wire.kinds import Kind
from tests.support.broker_wire import TOPIC, Wire, received, stored
from tests.support.broker_world import BrokerWorld, running_brokers

LEDGER = parse_topic(TOPIC).ledger_name
LIST = node_path(LEDGER)


def _with_deduplication(_: int, common: BrokerSettings) -> BrokerSettings:
    return replace(common, topics=replace(common.topics, topic=TopicSettings(deduplication=True)))


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with running_brokers(tmp_path, 2, of_broker=_with_deduplication) as world:
        yield world


class Write(NamedTuple):
    """One write of the metadata store."""

    begun_s: float
    ended_s: float
    keys: tuple[str, ...]


def _watch(world: BrokerWorld, monkeypatch: pytest.MonkeyPatch) -> list[Write]:
    """Note all writes of all brokers from now on."""
    found: list[Write] = []

    def noted(call: Callable[..., Awaitable[Any]], keys: Callable[..., list[str]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*args: Any, **options: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return await call(*args, **options)
            finally:
                found.append(Write(begun_s, time.perf_counter(), tuple(keys(*args))))

        return wrapped

    for session in world.sessions:
        for name, keys in (
            ("put", lambda key, *_: [key]),
            ("delete", lambda key, *_: [key]),
            ("transact", lambda _, operations, *__: [each.key for each in operations]),
        ):
            monkeypatch.setattr(session, name, noted(getattr(session, name), keys))
    return found


def _in_a_row(writes: list[Write]) -> list[Write]:
    """The longest chain of writes of which each one began after the one before had ended."""
    chains: list[list[Write]] = []
    ordered = sorted(writes)
    for number, write in enumerate(ordered):
        before = [chains[at] for at in range(number) if ordered[at].ended_s <= write.begun_s]
        chains.append([*max(before, key=len, default=[]), write])
    return max(chains, key=len, default=[])


def _tail(world: BrokerWorld) -> str:
    """The node of the topic's last ledger."""
    listed = decode_list(world.server.nodes[LIST].value).ledgers
    return layout.ledger_path(LedgerId(listed[-1].ledger_id))


async def _in_use(world: BrokerWorld) -> tuple[Wire, Bundle]:
    """A topic with a producer, a consumer and deduplication."""
    first = world.brokers[0]
    wire = await Wire.open(first)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(wire, range(10))
    assert await received(await Wire.open(first), 10) == list(range(10))
    return wire, next(iter(first.owners.held))


async def test_two_writes_wait_for_each_other_between_the_last_receipt_and_the_next(
    pair: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = pair.brokers
    _, bundle = await _in_use(pair)
    tail, found = _tail(pair), _watch(pair, monkeypatch)
    await pair.brokers[0].unload_bundle(bundle, second.broker_id)
    again = await Wire.open(second)
    assert (await again.produce()).type == Kind.PRODUCER_SUCCESS
    await stored(again, range(10, 20))
    (close,) = (write for write in found if tail in write.keys)
    listed, taken = (
        next(write for write in found if key in write.keys and write.begun_s >= close.ended_s)
        for key in (LIST, bundle.key)
    )
    end_s = max(listed.ended_s, taken.ended_s)
    assert len(_in_a_row([one for one in found if one.begun_s >= close.begun_s and one.ended_s <= end_s])) == 2
    assert bundle.key in close.keys, "the offer is completed with the close"
    cursors = {key for key in close.keys if key.startswith(f"{LIST}/")}
    assert len(cursors) == 2, "of the subscription, and of deduplication"
    assert await received(await Wire.open(second), 20) == list(range(20))
