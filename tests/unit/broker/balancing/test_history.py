"""Averages of bundles: samples, the nodes in Pulsar's format, and what a node of another broker is worth."""

import asyncio
import json
import random

import pytest

from quire_broker.balancing import history as history_module
from quire_broker.balancing.history import BUNDLE_DATA, Average, History
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.balancing.brokers import until

NAME = BundleName("shop/orders/0x00000000_0xffffffff")
KEY = f"{BUNDLE_DATA}/{NAME}"


def snapshot(rate: float, reported_s: float) -> Snapshot:
    load = BundleLoad(NAME, topics=10, messages_per_s=rate, bytes_per_s=4096.0)
    return Snapshot(0.0, {BrokerId("a:1"): BrokerLoad(BrokerId("a:1"), 0.1, bundles=(load,), reported_s=reported_s)})


def store() -> SimMetadataStore:
    return SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))


def test_an_average_forgets_old_samples() -> None:
    average = Average(2)
    for rate in (10.0, 20.0, 30.0):
        average.add(BundleLoad(NAME, messages_per_s=rate))
    assert (average.samples, average.messages_per_s) == (2, 22.5)


def test_a_report_is_one_sample_however_often_it_is_seen() -> None:
    history = History(store())
    for rate, reported_s in ((100.0, 1.0), (100.0, 1.0), (200.0, 2.0)):
        history.add(snapshot(rate, reported_s))
    assert history.weight_of(NAME) == 150.0 + 1.0 + 1.0


async def test_averages_are_written_as_in_pulsar_and_only_when_they_change() -> None:
    session = store()
    history = History(session)
    history.add(snapshot(100.0, 1.0))
    assert await history.write() == 1
    assert await history.write() == 0
    node = await session.get(KEY)
    assert node is not None
    assert json.loads(node.value) == {
        "shortTermData": {
            "maxSamples": 10,
            "numSamples": 1,
            "msgThroughputIn": 4096.0,
            "msgThroughputOut": 0.0,
            "msgRateIn": 100.0,
            "msgRateOut": 0.0,
        },
        "longTermData": {
            "maxSamples": 1000,
            "numSamples": 1,
            "msgThroughputIn": 4096.0,
            "msgThroughputOut": 0.0,
            "msgRateIn": 100.0,
            "msgRateOut": 0.0,
        },
        "topics": 10,
    }
    later = History(session)
    await later.load()
    assert later.weight_of(NAME) == history.weight_of(NAME)


async def test_a_bundle_without_usable_averages_has_no_known_weight() -> None:
    session = store()
    for value, expected in ((None, None), (b"[]", None), (b'{"longTermData": 3, "topics": "x"}', 0.0)):
        if value is not None:
            await session.put(KEY, value)
        history = History(session)
        await history.load()
        assert history.weight_of(NAME) == expected


async def test_a_bundle_that_is_in_no_report_is_dropped_and_its_weight_kept_if_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_module, "PRUNE_ROUNDS", 2)
    for written in (False, True):
        history = History(store())
        for _ in range(9):
            history.add(snapshot(100.0, 1.0))
        known = history.weight_of(NAME)
        assert len(history._bundles) == 1, "its report is old, but it is still there"
        if written:
            await history.write()
        for _ in range(4):
            history.add(Snapshot(0.0, {}))
        assert not history._bundles
        assert history.weight_of(NAME) == (known if written else None)
        history.add(snapshot(300.0, 1.0))
        assert history.weight_of(NAME) == 302.0, "the report of a broker that came back counts"


async def test_a_bundle_whose_averages_are_deleted_is_forgotten_and_not_written_again() -> None:
    session = store()
    earlier = History(session)
    earlier.add(snapshot(100.0, 1.0))
    await earlier.write()
    other = KEY.replace("orders", "others")
    await session.put(other, b'{"longTermData":{"msgRateIn":7.0}}')
    history = History(session)
    following = asyncio.create_task(history.follow())
    await until(lambda: history.weight_of(NAME) is not None)
    history.add(snapshot(900.0, 1.0))
    for key in (KEY, other):
        await session.delete(key)
    await until(lambda: history.weight_of(NAME) is None)
    await until(lambda: history.weight_of(BundleName(NAME.replace("orders", "others"))) is None)
    assert await history.write() == 0
    following.cancel()
