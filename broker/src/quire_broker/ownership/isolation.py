"""Decides which brokers may serve a namespace, by namespace isolation policies in Pulsar's JSON.

    /admin/clusters/<c>/namespaceIsolationPolicies    {name: {"namespaces": [regex], "primary": [regex], "secondary":
        [regex], "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", ...}}}}

Names of namespaces and hosts of brokers must match a pattern (see `patterns`) completely. The first policy by name
that matches a namespace applies; without any, every broker may serve it. Brokers of `secondary` may while fewer than
`min_limit` of `primary` are up. A bundle that already has an owner stays there until it is unloaded.
"""

import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.store import MetadataStore
from quire_broker.errors import ServiceNotReadyError
from quire_broker.limits import PATTERN_CHARACTERS_MAX
from quire_broker.names import NamespaceName
from quire_broker.ownership.listeners import listeners_of
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owner
from quire_broker.ownership.registration import BROKERS, DRAINING, registered
from quire_broker.patterns import pattern_of
from quire_broker.policies.store import Json, PolicyStore

_log = logging.getLogger("quire.broker.isolation")
_SHOWN_CHARACTERS = 100
_TOLD_MAX = 100


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """One isolation policy."""

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1

    def allowed(self, hosts: Iterable[str]) -> set[str]:
        """Return the available brokers that may serve the namespaces now."""
        hosts = set(hosts)
        first = {host for host in hosts if _matches(self.primary, host)}
        if len(first) >= self.min_limit:
            return first
        return first | {host for host in hosts if _matches(self.secondary, host)}

    def names_first(self, host: str) -> bool:
        """Return whether a broker is one of the primary ones."""
        return _matches(self.primary, host)

    def names_second(self, host: str) -> bool:
        """Return whether a broker is one of the secondary ones."""
        return _matches(self.secondary, host)


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any(pattern_of(pattern, PATTERN_CHARACTERS_MAX).matches(text) for pattern in patterns)


def policy_of(data: Any) -> IsolationPolicy:
    """Parse a policy. ValueError with the reason."""
    if not isinstance(data, dict):
        raise ValueError("a policy must be a JSON object")
    lists = {}
    for key in ("namespaces", "primary", "secondary"):
        value = data.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{key} must be a list of regular expressions")
        for one in value:
            try:
                pattern_of(one, PATTERN_CHARACTERS_MAX)
            except ValueError as error:
                shown = one if len(one) <= _SHOWN_CHARACTERS else f"{one[:_SHOWN_CHARACTERS]}..."
                raise ValueError(f"{key}: {shown!r} is not a supported regular expression: {error}") from error
        lists[key] = tuple(value)
    if not lists["namespaces"] or not lists["primary"]:
        raise ValueError("namespaces and primary must not be empty")
    failover = data.get("auto_failover_policy") or {}
    limit = str((failover.get("parameters") or {}).get("min_limit", "1")) if isinstance(failover, dict) else ""
    if re.fullmatch("[0-9]{1,9}", limit) is None:
        raise ValueError("auto_failover_policy.parameters.min_limit must be an integer from 0 to 999999999")
    return IsolationPolicy(lists["namespaces"], lists["primary"], lists["secondary"], int(limit))


@lru_cache(maxsize=_TOLD_MAX)
def _log_skipped(name: str, reason: str) -> None:
    """Log a policy that is not used, once."""
    _log.warning("the namespace isolation policy %s is not used: %s", name, reason)


def usable_policies(policies: Json) -> Iterator[tuple[str, IsolationPolicy]]:
    """Yield the policies by name, in order. Invalid ones are skipped."""
    for name in sorted(policies):
        try:
            yield name, policy_of(policies[name])
        except ValueError as error:
            _log_skipped(name, str(error))  # written by another broker; the REST API refuses it


def policy_for(namespace: str, policies: Json) -> IsolationPolicy | None:
    """Return the policy of a namespace; None: every broker may serve it."""
    return next((found for _, found in usable_policies(policies) if _matches(found.namespaces, namespace)), None)


class Isolation:
    """Checks policies and registrations: whether this broker may own a bundle, and which others may."""

    def __init__(self, metadata: MetadataStore, policies: PolicyStore, host: str, broker_id: str = "") -> None:
        """`host` and `broker_id`: this broker's own, as other brokers see them."""
        self._metadata = metadata
        self._policies = policies
        self._host = host
        self._id = broker_id
        self.draining = False
        """Whether this broker may own nothing any more."""

    async def elsewhere(self, bundle: Bundle) -> Owner | None:
        """Return another broker that may own the bundle; None: this broker may.

        ServiceNotReadyError: this broker may not, and no broker that may is available. MetadataError.
        """
        if self.draining:
            found = await self._successor(bundle)
        else:
            # Not from the cache: two brokers with policies of different ages would redirect a client back and forth.
            policy = policy_for(str(bundle.namespace), await self._policies.isolation())
            if policy is None:
                return None
            ids = await self._metadata.children(BROKERS)
            allowed = policy.allowed(host_of(one) for one in ids)
            if self._host in allowed:
                return None
            ids = sorted(one for one in ids if host_of(one) in allowed)
            found = await self._first(ids, _start_of(bundle), even_draining=True)
        if found is None:
            raise ServiceNotReadyError(f"no broker that may own bundles of {bundle.namespace} is available; start one")
        return Owner(urls_of(found[1]), ours=False)

    async def permits(self, namespace: NamespaceName, broker_id: str) -> bool:
        """Return whether that broker, which is available, may own bundles of the namespace. MetadataError."""
        policy = policy_for(str(namespace), await self._policies.isolation())
        if policy is None:
            return True
        return host_of(broker_id) in policy.allowed(host_of(one) for one in await self._metadata.children(BROKERS))

    async def successor(self, bundle: Bundle) -> str | None:
        """Return the id of another broker that may own the bundle; None if there is none. MetadataError.

        Bundles of a namespace are spread over these brokers. Draining ones get none.
        """
        found = await self._successor(bundle)
        return None if found is None else found[0]

    async def _successor(self, bundle: Bundle) -> tuple[str, Json] | None:
        policy = policy_for(str(bundle.namespace), await self._policies.isolation())
        ids = [one for one in await self._metadata.children(BROKERS) if one != self._id]
        if policy is not None:
            allowed = policy.allowed(host_of(one) for one in ids)
            ids = [one for one in ids if host_of(one) in allowed]
        return await self._first(ids, _start_of(bundle))

    async def others_take_bundles(self) -> bool:
        """Return whether any other broker is available and not draining. MetadataError."""
        ids = [one for one in await self._metadata.children(BROKERS) if one != self._id]
        return await self._first(ids, 0) is not None

    async def _first(self, ids: Sequence[str], start: int, *, even_draining: bool = False) -> tuple[str, Json] | None:
        """Return the first of these brokers, beginning at `start`, that is available and not draining, and its data."""
        for step in range(len(ids)):
            broker_id = ids[(start + step) % len(ids)]
            data = await registered(self._metadata, broker_id)
            if data is not None and (even_draining or data.get(DRAINING) is not True):
                return broker_id, data
        return None


def _start_of(bundle: Bundle) -> int:
    """Return a number that spreads bundles over brokers: always the same for a bundle."""
    return zlib.crc32(bundle.key.encode())


def host_of(broker_id: str) -> str:
    """Return `host` of `host:port`, exactly as the broker advertises it: an IPv6 address contains colons."""
    return broker_id.rpartition(":")[0] or broker_id


def urls_of(data: Json) -> BrokerUrls:
    """Return the addresses in a broker's node."""

    def text(key: str) -> str:
        return str(data.get(key) or "")

    return BrokerUrls(
        text("pulsarServiceUrl"),
        text("webServiceUrl"),
        text("pulsarServiceUrlTls"),
        text("webServiceUrlTls"),
        listeners=listeners_of(data.get("advertisedListeners")),
    )
