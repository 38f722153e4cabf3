"""Splits bundles of this broker that are above a limit. Each broker splits its own: it alone knows their topics."""

import asyncio
import logging

from quire_bookie.errors import MetadataError, QuireError
from quire_bookie.metadata.store import Delete, MetadataStore
from quire_broker.balancing.events import BalancingEvents, EventKind
from quire_broker.balancing.history import BUNDLE_DATA
from quire_broker.balancing.load_report import BundleStats
from quire_broker.balancing.plan.loads import BundleName, namespace_of
from quire_broker.balancing.plan.splitting import boundary, plan_splits
from quire_broker.errors import ConflictError
from quire_broker.limits import POLICIES_CACHE_S, POLICIES_REFRESH_S
from quire_broker.names import parse_namespace
from quire_broker.ownership.owners import Bundle, Owners, bundle_named
from quire_broker.policies.bundles import range_of
from quire_broker.policies.store import PolicyStore
from quire_broker.settings.balancing import BalancingSettings

KNOWN_S = POLICIES_CACHE_S + POLICIES_REFRESH_S + 1.0
"""After this time every broker knows the new bundles."""
_log = logging.getLogger("quire.broker.balancing")


class Splitter:
    """Checks after each measurement, and splits on request."""

    def __init__(
        self,
        metadata: MetadataStore,
        owners: Owners,
        policies: PolicyStore,
        events: BalancingEvents,
        settings: BalancingSettings,
    ) -> None:
        self._metadata, self._owners, self._policies = metadata, owners, policies
        self._events, self._settings = events, settings
        self._hits: dict[BundleName, int] = {}
        self._divided: dict[Bundle, float] = {}
        """Bundles whose nodes are still there, with the time at which they were divided."""
        self._unlisted: dict[Bundle, float] = {}
        """Bundles of this broker that their namespace does not have, with the time at which that was noticed."""

    async def check(self, measured: dict[BundleName, BundleStats]) -> None:
        """Split the bundles that have been above a limit for long enough. Release those that no lookup finds."""
        await self._remove_divided()
        await self._release_unlisted()
        if not self._settings.split:
            return
        namespaces = {namespace_of(name) for name in measured}
        counts = {each: len(await self._names(each)) for each in namespaces}
        loads = [stats.load(name) for name, stats in measured.items()]
        plan = plan_splits(loads, counts, self._hits, self._settings)
        self._hits = dict(plan.hits)
        for split in plan.splits:
            try:
                await self.split(bundle_named(split.bundle), measured[split.bundle], split.reason)
            except QuireError as error:
                _log.info("%s is not split now: %s", split.bundle, error)

    async def _names(self, namespace: str) -> tuple[str, ...]:
        found = await self._policies.bundles(parse_namespace(namespace))
        return () if found is None else found.names

    async def split(
        self, bundle: Bundle, stats: BundleStats, reason: str, algorithm: str = ""
    ) -> tuple[Bundle, Bundle]:
        """Split a bundle of this broker. ConflictError if it cannot be divided. MetadataError."""
        low, high = range_of(bundle.range)
        at = boundary(low, high, algorithm or self._settings.split_algorithm, stats.topic_hashes)
        if at is None:
            raise ConflictError(f"{bundle} cannot be divided: its topics are too few, or have one hash")
        halves = await self._owners.split(bundle, at)
        self._divided[bundle] = asyncio.get_running_loop().time()
        self._events.add(EventKind.SPLIT, f"{bundle} at 0x{at:08x}: {reason}")
        await self._metadata.transact([], [Delete(f"{BUNDLE_DATA}/{bundle}")])
        return halves

    async def _remove_divided(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for bundle, at_s in list(self._divided.items()):
            if now_s - at_s < KNOWN_S:
                continue
            try:
                await self._owners.remove_divided(bundle)
                del self._divided[bundle]
            except MetadataError as error:
                _log.info("cannot remove the node of %s yet: %s", bundle, error)

    async def _release_unlisted(self) -> None:
        """Release the bundles that were divided while they moved to this broker, once all brokers know the parts."""
        held = self._owners.held
        names = {each: await self._names(str(each)) for each in {bundle.namespace for bundle in held}}
        unlisted = {each for each in held if names[each.namespace] and each.range not in names[each.namespace]}
        now_s = asyncio.get_running_loop().time()
        self._unlisted = {each: self._unlisted.get(each, now_s) for each in unlisted}
        for bundle, at_s in self._unlisted.items():
            if now_s - at_s >= KNOWN_S and self._owners.leave(bundle):
                _log.warning("%s is released: its namespace does not have this bundle any more", bundle)
                await self._owners.release(bundle)
