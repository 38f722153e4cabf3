"""Reads what a leader decides from: the load reports of all brokers, and the rules of administrators."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.retrying import with_retries
from quire_bookie.metadata.store import MetadataStore
from quire_broker.balancing.load_report import load_of
from quire_broker.balancing.plan.candidates import Rules
from quire_broker.balancing.plan.carried import Measured, learned, remembered, with_carried
from quire_broker.balancing.plan.loads import BrokerId, BrokerLoad, BundleName, Snapshot, is_bundle_name
from quire_broker.ownership.owners import OWNERS, owner_urls
from quire_broker.ownership.registration import BROKERS, follow_registrations
from quire_broker.policies.store import Json, PolicyStore, decode_json

ISOLATION_S = 0.1
"""How long isolation policies may be stale."""
PLACED_S = 1.0
"""How long the owners of namespaces with a group may be stale."""
_KNOWN_MIN = 1000
"""Bundles whose loads are remembered before the old ones are looked for."""
_SHOWN_MAX = 200
"""Characters of an invalid name in the log."""
_log = logging.getLogger("quire.broker.balancing")


async def read_snapshot(metadata: MetadataStore, clock: WallClock, told: set[str] | None = None) -> Snapshot:
    """Read all load reports once; each is as old as it states. MetadataError.

    Where the clocks of two machines differ, a report seems older or younger by the difference. One from the future
    counts as equally old: a clock that is far off must not make a report current.

    `told`: the keys of reports with invalid names that are in the log already.
    """
    now_s, now_ms = asyncio.get_running_loop().time(), clock.now_ms()
    found: dict[BrokerId, BrokerLoad] = {}
    told = set() if told is None else told
    async for page in metadata.scan(f"{BROKERS}/"):
        for node in page:
            load = _load(node.key, node.value, now_s, now_ms, told)
            if load is not None:
                found[load.broker] = load
    return Snapshot(now_s, found)


def _load(key: str, value: bytes, now_s: float, now_ms: int, told: set[str]) -> BrokerLoad | None:
    """Decode a report. Its time is the one that it states."""
    try:
        load = load_of(key.removeprefix(f"{BROKERS}/"), decode_json(key, value), now_s)
        load = replace(load, reported_s=now_s - abs(now_ms - load.stated_ms) / 1000)
    except MetadataFormatError as error:
        _log.warning("a load report is not used: %s", error)
        return None
    bundles = tuple(each for each in load.bundles if is_bundle_name(each.name))
    if len(bundles) == len(load.bundles):
        return load
    if key not in told:
        told.add(key)
        wrong = next(each.name for each in load.bundles if not is_bundle_name(each.name))
        _log.warning("%s: %r is not a name of a bundle: such bundles are not moved", key, wrong[:_SHOWN_MAX])
    return replace(load, bundles=bundles)


class LoadBook:
    """The load reports, each with the time at which it was made. Complete once `ready` is set.

    A report that replaces one that is known here was made when it arrives; the first one of a broker when it states.
    A broker that registers again repeats its last report, which does not become younger by that. A bundle that has just
    moved keeps its load until the new owner has measured it, see `carried`.
    """

    def __init__(self, metadata: MetadataStore, clock: WallClock) -> None:
        self._metadata, self._clock = metadata, clock
        self._loads: dict[BrokerId, BrokerLoad] = {}
        self._measured: dict[BundleName, Measured] = {}
        self._measured_max = _KNOWN_MIN
        """Number of bundles in `_measured` at which the old ones are dropped."""
        self._told: set[str] = set()
        """Keys of reports whose invalid names are in the log."""
        self.ready = asyncio.Event()

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        return Snapshot(asyncio.get_running_loop().time(), dict(self._loads))

    def _note(self, load: BrokerLoad) -> None:
        self._loads[load.broker] = with_carried(load, self._measured)
        self._measured |= learned(self._measured, load)
        if len(self._measured) >= self._measured_max:
            self._measured = remembered(self._measured, asyncio.get_running_loop().time())
            self._measured_max = max(_KNOWN_MIN, 2 * len(self._measured))

    async def follow(self) -> None:
        """Keep the reports current until cancelled."""
        try:
            await follow_registrations(self._metadata, self, self.ready, _log.info)
        finally:
            self.ready.clear()

    async def read_all(self) -> None:
        """Read all reports; one that was read before keeps its time."""
        found = await with_retries(
            lambda: read_snapshot(self._metadata, self._clock, self._told), "read the load reports", _log.info
        )
        for broker, load in found.brokers.items():
            known = self._loads.get(broker)
            # A new one is not older than the one before it; when it arrived is unknown.
            since_s = load.reported_s if known is None else known.reported_s
            same = known is not None and known.stated_ms == load.stated_ms
            self._note(replace(load, reported_s=since_s if same else max(since_s, load.reported_s)))
        for gone in self._loads.keys() - found.brokers.keys():
            del self._loads[gone]
            self._told.discard(f"{BROKERS}/{gone}")

    def forget(self, key: str) -> None:
        """Remove the report of a broker that is gone."""
        self._loads.pop(BrokerId(key.removeprefix(f"{BROKERS}/")), None)
        self._told.discard(key)

    async def read_one(self, key: str) -> None:
        """Read one report."""
        node = await with_retries(lambda: self._metadata.get(key), f"read {key}", _log.info)
        if node is None:
            return  # the event of its deletion follows
        now_s = asyncio.get_running_loop().time()
        load = _load(key, node.value, now_s, self._clock.now_ms(), self._told)
        if load is None:
            return
        known = self._loads.get(load.broker)
        if known is not None:
            made_s = known.reported_s if known.stated_ms == load.stated_ms else now_s
            load = replace(load, reported_s=made_s)
        self._note(load)


class RuleBook:
    """Reads isolation policies, anti-affinity groups and failure domains, and keeps them for a short time."""

    def __init__(self, metadata: MetadataStore, policies: PolicyStore) -> None:
        self._metadata, self._policies = metadata, policies
        self._reading = asyncio.Lock()
        self._isolation: Json = {}
        self._read = Rules()
        self._isolation_until_s = self._until_s = 0.0
        self._changes = -1

    async def rules(self) -> Rules:
        """Return the rules. Concurrent calls share one reading. MetadataError."""
        async with self._reading:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._isolation_until_s:
                self._isolation = await self._policies.isolation()
                self._isolation_until_s = now_s + ISOLATION_S
            changes = self._policies.changes
            if self._changes != changes:
                groups = await self._policies.anti_affinity_groups()
                domains = await self._policies.failure_domains() if groups else {}
                of_broker = {BrokerId(broker): name for name, brokers in domains.items() for broker in brokers}
                self._read, self._until_s, self._changes = Rules({}, groups, of_broker), 0.0, changes
            if now_s >= self._until_s:
                self._read = replace(self._read, placed=await self._placed(self._read.groups))
                self._until_s = now_s + PLACED_S
            return replace(self._read, isolation=self._isolation)

    async def _placed(self, groups: Mapping[str, str]) -> dict[BrokerId, frozenset[str]]:
        found: dict[BrokerId, set[str]] = {}
        for namespace in groups:
            async for page in self._metadata.scan(f"{OWNERS}/{namespace}/"):
                for node in page:
                    broker = owner_urls(decode_json(node.key, node.value)).broker_id
                    found.setdefault(BrokerId(broker), set()).add(namespace)
        return {broker: frozenset(namespaces) for broker, namespaces in found.items()}
