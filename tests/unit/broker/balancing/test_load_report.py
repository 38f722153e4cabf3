"""Load reports: Pulsar's JSON both ways, bounded size, and published only when the load has changed enough."""

import json
from typing import Any

import pytest

from quire_broker.balancing.load_report import BundleStats, Usage, changed_enough, load_of, report_of
from quire_broker.balancing.plan.loads import BundleName
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.ownership.registration import broker_data
from quire_broker.policies.store import encode_json
from quire_broker.settings.balancing import BalancingSettings
from tests.unit.broker.balancing.brokers import Clock

SETTINGS = BalancingSettings()
STOCK = (
    '{"webServiceUrl":"http://127.0.0.1:8085","cpu":{"usage":90.0,"limit":200.0},"memory":{"usage":1000.0,"limit":'
    '1024.0},"directMemory":{"usage":300.0,"limit":3072.0},"bandwidthIn":{"usage":5.0,"limit":-1000.0},"msgRateIn":'
    '10.0,"msgRateOut":20.0,"msgThroughputIn":100.0,"msgThroughputOut":200.0,"lastStats":{"public/default/0x0_0x1":'
    '{"msgRateIn":1.0,"msgRateOut":2.0,"msgThroughputIn":3.0,"msgThroughputOut":4.0,"consumerCount":5,'
    '"producerCount":6,"topics":7,"cacheSize":0}},"numTopics":70,"numBundles":16,"bundles":["public/default/0x0_0x1"]}'
)
"""Of a stock broker, shortened."""


def stats(**values: Any) -> BundleStats:
    return BundleStats(**{"topics": 2, "producers": 3, "consumers": 4, "rate_in": 5.0, "bytes_in": 6.0} | values)


def test_a_report_of_a_stock_broker_is_understood() -> None:
    found = load_of("a:1", json.loads(STOCK), 7.0)
    assert (found.usage, found.resource, found.reported_s) == (0.45, "cpu", 7.0)
    assert (found.bundle_count, found.topics, found.messages_per_s, found.bytes_per_s) == (16, 70, 30.0, 300.0)
    (bundle,) = found.bundles
    assert (bundle.topics, bundle.sessions, bundle.messages_per_s, bundle.bytes_per_s) == (7, 11, 3.0, 7.0)


@pytest.mark.parametrize(
    "damaged", [{}, {"cpu": 3}, {"cpu": {"usage": "x", "limit": None}}, {"lastStats": [1], "numBundles": "many"}]
)
def test_what_is_invalid_in_a_report_counts_as_nothing(damaged: dict[str, Any]) -> None:
    assert load_of("a:1", damaged, 0.0).usage == 0.0


def test_a_report_has_the_fields_of_a_stock_broker_and_reads_back() -> None:
    base = broker_data(BrokerUrls("pulsar://a:1", "http://a:2"), "0.1", 5)
    usage = Usage(30.0, 100.0, 200 << 20, 400 << 20, 1e6, 2e6, nic_gbps=0.02)
    name = BundleName("public/default/0x0_0x1")
    report = report_of(usage, {name: stats()}, ["gone"], Clock().now_ms(), 10)
    assert report.keys() <= base.keys(), "no field that stock brokers do not have"
    assert (report["lastBundleGains"], report["lastBundleLosses"]) == ([name], ["gone"])
    found = load_of("a:1", json.loads(encode_json(base | report)), 0.0)
    assert found.usage == pytest.approx(0.8)
    assert found.resource == "bandwidthOut"
    assert report["maxResourceUsage"] == found.usage
    assert found.bundles == (stats().load(name),)


def test_a_report_has_the_most_loaded_bundles_only() -> None:
    bundles = {BundleName(f"public/default/0x{n:08x}_0x{n + 1:08x}"): stats(rate_in=float(n)) for n in range(10_000)}
    report = report_of(Usage(), bundles, (), 1, SETTINGS.report_bundles_max)
    assert len(report["lastStats"]) == len(report["bundles"]) == 200
    assert "public/default/0x0000270f_0x00002710" in report["lastStats"]
    assert report["numBundles"] == 10_000
    assert report["msgRateIn"] == sum(range(10_000))
    assert len(encode_json(report)) < 64_000


@pytest.mark.parametrize(
    ("change", "enough"),
    [
        ({}, False),
        ({"numBundles": 17}, True),
        ({"draining": True}, True),
        ({"cpu": {"usage": 105.0, "limit": 200.0}}, False),
        ({"cpu": {"usage": 115.0, "limit": 200.0}}, True),
        ({"msgRateIn": 11.0}, False),
        ({"msgRateIn": 15.0}, True),
        ({"msgThroughputOut": 240.0}, True),
        ({"numTopics": 75}, False),
        ({"numTopics": 90}, True),
    ],
)
def test_a_report_is_worth_a_write_when_it_has_changed_enough(change: dict[str, Any], enough: bool) -> None:
    before = json.loads(STOCK)
    assert changed_enough(load_of("a", before, 0.0), load_of("a", before | change, 1.0), SETTINGS) is enough


def test_a_trickle_of_traffic_is_not_worth_a_write() -> None:
    before, after = {"msgRateIn": 1.0}, {"msgRateIn": 5.0}
    assert not changed_enough(load_of("a", before, 0.0), load_of("a", after, 1.0), SETTINGS)
