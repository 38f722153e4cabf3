"""Load reports of a broker: published when its bundles or its usage change, and after a time, but not otherwise."""

import asyncio
from typing import Any, cast

import pytest

from quire_broker.balancing import reporter as reporter_module
from quire_broker.balancing.bundle_counts import BundleCounts
from quire_broker.balancing.load_report import BundleStats, Usage, load_of
from quire_broker.balancing.plan.loads import BundleName
from quire_broker.balancing.reporter import Reporter
from quire_broker.balancing.usage import UsageMeter
from quire_broker.ownership.registration import BROKERS
from quire_broker.policies.store import decode_json
from quire_broker.settings.balancing import BalancingSettings
from tests.unit.broker.balancing.brokers import BalancedBroker, Clock, balanced_brokers, until


class Counts:
    """Counts the bundles of a broker without topics."""

    def __init__(self, broker: BalancedBroker) -> None:
        self._broker = broker

    async def measure(self) -> dict[BundleName, BundleStats]:
        return {BundleName(str(each)): BundleStats() for each in self._broker.owners.held}


class Meter:
    """Measures what a test says."""

    def __init__(self) -> None:
        self.last = Usage()

    def measure(self) -> Usage:
        return self.last


async def ignored(bundles: object) -> None:
    del bundles


def reporter_of(broker: BalancedBroker, **settings: Any) -> tuple[Reporter, Meter]:
    meter = Meter()
    return (
        Reporter(
            broker.id,
            broker.registration,
            broker.owners,
            cast(BundleCounts, Counts(broker)),
            cast(UsageMeter, meter),
            Clock(),
            BalancingSettings(**settings),
            ignored,
        ),
        meter,
    )


async def test_a_report_is_written_only_when_the_load_has_changed_enough() -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        reporter, meter = reporter_of(broker)
        for cpu, published in ((10.0, 1), (15.0, 1), (25.0, 2), (25.0, 2)):
            meter.last = Usage(cpu_percent=cpu)
            await reporter.measure_and_publish()
            assert reporter.published == published
        node = await broker.session.get(f"{BROKERS}/{broker.id}")
        assert node is not None
        assert node.ephemeral
        assert load_of(broker.id, decode_json(node.key, node.value), 0.0).usage == 0.25


async def test_an_old_report_is_written_again() -> None:
    async with balanced_brokers("a", bundles=1) as (broker,):
        reporter, _ = reporter_of(broker, report_interval_max_s=0.0)
        for published in (1, 2, 3):
            await reporter.measure_and_publish()
            assert reporter.published == published


async def test_a_changed_number_of_bundles_is_published_before_the_next_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporter_module, "LOOK_S", 0.01)
    async with balanced_brokers("a", bundles=1) as (broker,):
        reporter, _ = reporter_of(broker, report_interval_s=3600.0)
        running = asyncio.ensure_future(reporter.run())
        await broker.find(1)
        await until(lambda: reporter.published == 1)
        assert broker.registration.data["numBundles"] == 1
        (held,) = broker.owners.held
        broker.owners.leave(held)
        await until(lambda: reporter.published == 2)
        assert broker.registration.data["numBundles"] == 0
        running.cancel()


async def test_the_store_that_is_away_does_not_end_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter_module, "LOOK_S", 0.01)
    async with balanced_brokers("a", bundles=1) as (broker,):
        reporter, _ = reporter_of(broker, report_interval_s=3600.0)
        await broker.find(1)
        broker.session.cut = True
        running = asyncio.ensure_future(reporter.run())
        await until(lambda: broker.registration.data["numBundles"] == 1)
        assert reporter.published == 0
        broker.session.reach()
        await until(lambda: reporter.published == 1)
        running.cancel()


async def test_the_first_measurement_has_no_rates() -> None:
    meter = UsageMeter(lambda: (10_000_000, 20_000_000), 1.0)
    first = meter.measure()
    assert (first.cpu_percent, first.bytes_in_per_s, first.bytes_out_per_s) == (0.0, 0.0, 0.0)
    assert 0 < first.memory_bytes < first.memory_limit_bytes
    assert 0 < first.cpu_limit_percent <= 100
