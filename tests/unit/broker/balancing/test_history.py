"""Averages of bundles: samples, the nodes in Pulsar's format, and what a node of another broker is worth."""

import json
import random

from quire_broker.balancing.history import BUNDLE_DATA, Average, History
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleLoad, BundleName, Snapshot
from tests.sim.metadata import SimMetadata, SimMetadataStore

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
