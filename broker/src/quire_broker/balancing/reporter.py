"""Publishes this broker's load: measures at an interval, writes when the load has changed enough.

A change of the number of bundles is published at the next look, because the leader counts the bundles that it has
assigned as pending until then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import QuireError
from quire_broker.balancing.bundle_counts import BundleCounts
from quire_broker.balancing.load_report import BundleStats, changed_enough, load_of, report_of
from quire_broker.balancing.plan.loads import BrokerLoad, BundleName
from quire_broker.balancing.usage import UsageMeter
from quire_broker.ownership.owners import Owners
from quire_broker.ownership.registration import Registration
from quire_broker.policies.store import Json
from quire_broker.settings.balancing import BalancingSettings

LOOK_S = 5.0
"""Shortest time between two reports."""
_log = logging.getLogger("quire.broker.balancing")


class Reporter:
    """Measures and publishes the load of one broker."""

    def __init__(
        self,
        broker_id: str,
        registration: Registration,
        owners: Owners,
        counts: BundleCounts,
        meter: UsageMeter,
        clock: WallClock,
        settings: BalancingSettings,
        on_measured: Callable[[dict[BundleName, BundleStats]], Awaitable[None]],
    ) -> None:
        """`on_measured`: called with the bundles after each measurement of the interval."""
        self._broker_id, self._registration, self._owners = broker_id, registration, owners
        self._counts, self._meter = counts, meter
        self._clock, self._settings, self._on_measured = clock, settings, on_measured
        self._published: BrokerLoad | None = None
        self._published_s = 0.0
        self._bundles: dict[BundleName, BundleStats] = {}
        """The last measurement."""
        self.published = 0
        """How many reports were written."""

    async def run(self) -> None:
        """Measure and publish until cancelled."""
        loop, settings = asyncio.get_running_loop(), self._settings
        self._meter.measure()
        measured_s = loop.time()
        while True:
            await asyncio.sleep(min(LOOK_S, settings.report_interval_s))
            due = loop.time() - measured_s >= settings.report_interval_s
            if not due and len(self._owners.held) == (self._published.bundle_count if self._published else 0):
                continue
            try:
                if due:
                    measured_s = loop.time()
                    await self.measure_and_publish()
                    await self._on_measured(self._bundles)
                else:
                    await self._publish_bundles()
            except QuireError as error:
                _log.info("cannot publish the load of this broker yet: %s", error)

    async def measure_and_publish(self, *, always: bool = False) -> None:
        """Measure, and publish if the load has changed enough or the last report is old. MetadataError."""
        data = await self._report()
        now_s = asyncio.get_running_loop().time()
        load = load_of(self._broker_id, self._registration.data | data, now_s)
        old = now_s - self._published_s >= self._settings.report_interval_max_s
        if always or old or self._published is None or changed_enough(self._published, load, self._settings):
            await self._registration.publish(data)
            self._published, self._published_s = load, now_s
            self.published += 1

    async def _publish_bundles(self) -> None:
        """Publish the bundles, with the usage of the last measurement: a usage of a few seconds says little."""
        data = await self._report(measure=False)
        await self._registration.publish(data)
        self._published = load_of(self._broker_id, self._registration.data, asyncio.get_running_loop().time())
        self.published += 1

    async def _report(self, *, measure: bool = True) -> Json:
        self._bundles = await self._counts.measure()
        return report_of(
            self._meter.measure() if measure else self._meter.last,
            self._bundles,
            self._registration.data["bundles"],
            self._clock.now_ms(),
            self._settings.report_bundles_max,
        )
