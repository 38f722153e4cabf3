"""Knows the brokers of the cluster: as they have registered, or as the configuration names them.

Registered brokers are followed by a watch. While the metadata store does not answer, the last known ones stay: a proxy
serves on.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.retrying import with_retries
from quire_bookie.metadata.store import MetadataStore
from quire_broker.ownership.listeners import listeners_of
from quire_broker.ownership.registration import BROKERS, follow_registrations
from quire_broker.policies.store import Json, decode_json
from quire_broker.proxy.targets import Address, address_of, addresses_of

_log = logging.getLogger("quire.proxy")


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """One broker. `native`: address of the Pulsar protocol; `web`: URL of its REST; `addresses`: all native ones."""

    native: Address | None
    web: str
    addresses: frozenset[Address]


class BrokerBook(Protocol):
    """The brokers that a proxy may use."""

    def brokers(self) -> list[KnownBroker]:
        """Return them, the best choice for the next lookup or request first."""
        ...

    def has(self, address: Address) -> bool:
        """Return whether a broker serves the Pulsar protocol at this address."""
        ...


class _Turns:
    """Returns brokers in turns, so that each gets its share."""

    def __init__(self) -> None:
        self._next = 0

    def of(self, found: list[KnownBroker]) -> list[KnownBroker]:
        self._next = (self._next + 1) % len(found) if found else 0
        return found[self._next :] + found[: self._next]


class StaticBrokers:
    """The brokers behind configured addresses."""

    def __init__(self, native: str, web: str) -> None:
        """`native`: `pulsar://host:port,host:port`; `web`: `http://host:port,host:port`. ValueError."""
        natives, webs = addresses_of(native), addresses_of(web)
        self._brokers = [
            KnownBroker(
                natives[number % len(natives)] if natives else None,
                f"{web.partition('://')[0]}://{webs[number % len(webs)]}" if webs else "",
                frozenset(natives),
            )
            for number in range(max(len(natives), len(webs)))
        ]
        self._natives = frozenset(natives)
        self._turns = _Turns()

    def brokers(self) -> list[KnownBroker]:
        """Return the configured brokers in turns."""
        return self._turns.of(self._brokers)

    def has(self, address: Address) -> bool:
        """Return whether the configuration names this address."""
        return address in self._natives


class RegisteredBrokers:
    """The brokers whose registration is in the metadata store. Complete once `ready` is set."""

    def __init__(self, metadata: MetadataStore, *, tls: bool) -> None:
        """`tls`: the proxy connects to the ports with TLS."""
        self._metadata = metadata
        self._tls = tls
        self._brokers: dict[str, KnownBroker] = {}
        self._turns = _Turns()
        self.ready = asyncio.Event()

    def brokers(self) -> list[KnownBroker]:
        """Return the registered brokers in turns."""
        return self._turns.of(list(self._brokers.values()))

    def has(self, address: Address) -> bool:
        """Return whether a registered broker has this address."""
        return any(address in broker.addresses for broker in self._brokers.values())

    async def follow(self) -> None:
        """Keep the brokers current until cancelled."""
        await follow_registrations(self._metadata, self, self.ready, _log.info)

    async def read_all(self) -> None:
        """Read all registrations."""

        async def read() -> dict[str, bytes]:
            return {n.key: n.value async for page in self._metadata.scan(f"{BROKERS}/") for n in page}

        found = await with_retries(read, "read the registered brokers", _log.info)
        self._brokers = {key: broker for key, value in found.items() if (broker := self._decoded(key, value))}

    async def read_one(self, key: str) -> None:
        """Read one registration."""
        node = await with_retries(lambda: self._metadata.get(key), f"read {key}", _log.info)
        if node is not None and (broker := self._decoded(key, node.value)) is not None:
            self._brokers[key] = broker

    def forget(self, key: str) -> None:
        """Remove a broker whose registration ended."""
        self._brokers.pop(key, None)

    def _decoded(self, key: str, value: bytes) -> KnownBroker | None:
        try:
            return known_broker(decode_json(key, value), tls=self._tls)
        except (MetadataFormatError, ValueError) as error:
            _log.warning("the broker %s is not used: its registration is invalid: %s", key, error)
            return None


def known_broker(data: Json, *, tls: bool) -> KnownBroker:
    """Return a broker from its registration. ValueError."""
    suffix = "Tls" if tls else ""
    native = str(data.get(f"pulsarServiceUrl{suffix}") or "")
    further: Iterable[str] = (
        one.native_tls if tls else one.native for one in listeners_of(data.get("advertisedListeners"))
    )
    addresses = frozenset(address_of(url) for url in (native, *further) if url)
    web = str(data.get(f"webServiceUrl{suffix}") or "")
    return KnownBroker(address_of(native) if native else None, web.rstrip("/"), addresses)
