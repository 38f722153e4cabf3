"""Owns a broker's nodes: its registration, and the number that makes its generated producer names unique.

    /loadbalance/brokers/<host:http port>   ephemeral, broker data in JSON
    /counters/producer-name/-<n>            ephemeral and empty; n is this start's instance number

Both are created again with a renewed session.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import BadVersionError, MetadataError, NodeMissingError
from quire_bookie.metadata.retrying import watch_with_retries
from quire_bookie.metadata.store import ABSENT, EventKind, MetadataStore, SessionState
from quire_broker.ownership.listeners import listeners_json
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.policies.store import Json, decode_json, encode_json

BROKERS = "/loadbalance/brokers"
DRAINING = "draining"
"""Field of a broker's node, true while the broker is being drained. Stock brokers do not know it."""
COUNTER = "/counters/producer-name"
log = logging.getLogger("quire.broker.ownership")


class Registrations(Protocol):
    """A picture of the brokers' nodes that `follow_registrations` keeps current."""

    async def read_all(self) -> None:
        """Read all nodes again."""
        ...

    async def read_one(self, key: str) -> None:
        """Read a node that is new or changed."""
        ...

    def forget(self, key: str) -> None:
        """Remove a node that was deleted."""
        ...


async def follow_registrations(
    metadata: MetadataStore, kept: Registrations, ready: asyncio.Event, say: Callable[..., None]
) -> None:
    """Keep a picture current until cancelled; set `ready` once it is complete. `say` logs retries."""
    watch = await watch_with_retries(metadata, f"{BROKERS}/", say)
    try:
        await kept.read_all()
        ready.set()
        async for event in watch:
            if event.kind is EventKind.RESYNC:
                await kept.read_all()
            elif event.kind is EventKind.DELETED:
                kept.forget(event.key)
            else:
                await kept.read_one(event.key)
    finally:
        await watch.close()


def broker_data(urls: BrokerUrls, version: str, now_ms: int, *, non_persistent: bool = True) -> Json:
    """Return the data that other brokers and tools read, without any load yet."""
    idle = {"usage": 0.0, "limit": 100.0}
    found = {
        "webServiceUrl": urls.http,
        "webServiceUrlTls": urls.http_tls,
        "pulsarServiceUrl": urls.native,
        "pulsarServiceUrlTls": urls.native_tls,
    }
    return {key: url for key, url in found.items() if url} | {
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": non_persistent,
        "cpu": idle,
        "memory": idle,
        "directMemory": idle,
        "bandwidthIn": idle,
        "bandwidthOut": idle,
        "msgThroughputIn": 0.0,
        "msgThroughputOut": 0.0,
        "msgRateIn": 0.0,
        "msgRateOut": 0.0,
        "lastUpdate": now_ms,
        "lastStats": {},
        "numTopics": 0,
        "numBundles": 0,
        "numConsumers": 0,
        "numProducers": 0,
        "bundles": [],
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": version,
        "protocols": {},
        "advertisedListeners": listeners_json(urls.listeners),
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
        "startTimestamp": now_ms,
        "maxResourceUsage": 0.0,
        "loadReportType": "LocalBrokerData",
    }


async def registered(metadata: MetadataStore, broker_id: str) -> Json | None:
    """Return the data in a broker's node; None if the broker is not available. MetadataError."""
    key = f"{BROKERS}/{broker_id}"
    node = await metadata.get(key)
    return None if node is None else decode_json(key, node.value)


class Registration:
    """Keeps the broker's node alive while `run` runs."""

    def __init__(
        self,
        metadata: MetadataStore,
        broker_id: str,
        urls: BrokerUrls,
        version: str,
        clock: WallClock,
        *,
        non_persistent: bool = True,
    ) -> None:
        """`non_persistent`: whether the broker serves topics whose messages are not stored."""
        self._metadata = metadata
        self._key = f"{BROKERS}/{broker_id}"
        self.data = broker_data(urls, version, clock.now_ms(), non_persistent=non_persistent)
        """The content of the node."""
        self._renewed = asyncio.Event()
        self._forget_session = metadata.on_session(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.RENEWED:
            self._renewed.set()

    async def register(self) -> None:
        """Create the broker's node, replacing one left by an earlier run."""
        value = encode_json(self.data)
        node = await self._metadata.get(self._key)
        if node is not None and not node.owned:
            try:
                await self._metadata.delete(self._key, expected=node.version)
            except BadVersionError:
                log.info("%s changed its owner while it was taken over", self._key)
        if node is None or not node.owned:
            await self._metadata.put(self._key, value, expected=ABSENT, ephemeral=True)

    async def publish(self, changes: Json) -> None:
        """Update fields of the broker's node: its load, or that it is draining. MetadataError."""
        self.data = self.data | changes
        await self._metadata.put(self._key, encode_json(self.data), ephemeral=True)

    async def instance_number(self) -> int:
        """Return a number that no other start of a broker in this cluster has."""
        key = await self._metadata.put_sequential(f"{COUNTER}/-", b"", ephemeral=True)
        return int(key.rsplit("-", 1)[1])

    async def run(self, retry_s: float = 1.0) -> None:
        """Register again after each renewed session, until cancelled."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            try:
                await self.register()
            except MetadataError as error:
                log.warning("cannot register the broker again yet: %s", error)
                self._renewed.set()
                await asyncio.sleep(retry_s)

    async def close(self) -> None:
        """Remove the broker's node."""
        self._forget_session()
        try:
            await self._metadata.delete(self._key)
        except NodeMissingError:
            return
