"""Which brokers may serve a namespace: namespace isolation policies, in stock Pulsar's JSON.

    /admin/clusters/<c>/namespaceIsolationPolicies    {name: {"namespaces": [regex], "primary": [regex], "secondary":
        [regex], "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", ...}}}}

Names of namespaces and hosts of brokers must match a pattern (see `patterns`) as a whole. The first policy by name
that a namespace matches counts; without any, every broker may serve it. Brokers of `secondary` may while fewer than
`min_limit` of `primary` are up. A bundle that is owned already stays where it is until it is unloaded.
"""

import logging
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quire_bookie.metadata.store import MetadataStore
from quire_broker.errors import ServiceNotReadyError
from quire_broker.ownership.listeners import listeners_of
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owner
from quire_broker.ownership.patterns import pattern_of
from quire_broker.ownership.registration import BROKERS
from quire_broker.policies.store import Json, PolicyStore, decode_json

_log = logging.getLogger("quire.broker.isolation")
_SHOWN_CHARACTERS = 100
_TOLD_MAX = 100


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """One policy."""

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_limit: int = 1

    def allowed(self, hosts: Iterable[str]) -> set[str]:
        """Those of the brokers that are up which may serve the namespaces now."""
        hosts = set(hosts)
        first = {host for host in hosts if _matches(self.primary, host)}
        if len(first) >= self.min_limit:
            return first
        return first | {host for host in hosts if _matches(self.secondary, host)}


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any(pattern_of(pattern).matches(text) for pattern in patterns)


def policy_of(data: Any) -> IsolationPolicy:
    """A policy of its JSON. ValueError says what is wrong."""
    if not isinstance(data, dict):
        raise ValueError("a policy is a JSON object")
    lists = {}
    for key in ("namespaces", "primary", "secondary"):
        value = data.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{key} is a list of regular expressions")
        for one in value:
            try:
                pattern_of(one)
            except ValueError as error:
                shown = one if len(one) <= _SHOWN_CHARACTERS else f"{one[:_SHOWN_CHARACTERS]}..."
                raise ValueError(f"{key}: {shown!r} is no regular expression of this broker: {error}") from error
        lists[key] = tuple(value)
    if not lists["namespaces"] or not lists["primary"]:
        raise ValueError("namespaces and primary must not be empty")
    failover = data.get("auto_failover_policy") or {}
    limit = str((failover.get("parameters") or {}).get("min_limit", "1")) if isinstance(failover, dict) else ""
    if re.fullmatch("[0-9]{1,9}", limit) is None:
        raise ValueError("auto_failover_policy.parameters.min_limit is a whole number from 0 to 999999999")
    return IsolationPolicy(lists["namespaces"], lists["primary"], lists["secondary"], int(limit))


@lru_cache(maxsize=_TOLD_MAX)
def _pass_over(name: str, reason: str) -> None:
    """Log a policy that is not used, once."""
    _log.warning("the namespace isolation policy %s is not used: %s", name, reason)


def policy_for(namespace: str, policies: Json) -> IsolationPolicy | None:
    """The one that counts for a namespace; None: every broker may serve it. One that makes no sense is passed over."""
    for name in sorted(policies):
        try:
            found = policy_of(policies[name])
        except ValueError as error:
            _pass_over(name, str(error))  # of another broker; the REST refuses it
            continue
        if _matches(found.namespaces, namespace):
            return found
    return None


class Isolation:
    """Asks policies and registrations whether a bundle may be taken here, and who else should."""

    def __init__(self, metadata: MetadataStore, policies: PolicyStore, host: str) -> None:
        """`host`: our own, as other brokers see it."""
        self._metadata = metadata
        self._policies = policies
        self._host = host

    async def elsewhere(self, bundle: Bundle) -> Owner | None:
        """Who is to be asked instead of us; None: we may take it.

        ServiceNotReadyError: we may not, and nobody who may is up. MetadataError.
        """
        # Not from the cache: two brokers with policies of different ages would send a client to and fro.
        policy = policy_for(str(bundle.namespace), await self._policies.isolation())
        if policy is None:
            return None
        ids = await self._metadata.children(BROKERS)
        allowed = policy.allowed(host_of(one) for one in ids)
        if self._host in allowed:
            return None
        candidates = sorted(one for one in ids if host_of(one) in allowed)
        urls = await self._urls(candidates, bundle)
        if urls is None:
            raise ServiceNotReadyError(f"no broker is up that may serve {bundle.namespace} by its isolation policy")
        return Owner(urls, ours=False)

    async def _urls(self, ids: Sequence[str], bundle: Bundle) -> BrokerUrls | None:
        """Of one of them, for the same bundle the same one, as long as it is there."""
        start = zlib.crc32(bundle.key.encode())
        for step in range(len(ids)):
            key = f"{BROKERS}/{ids[(start + step) % len(ids)]}"
            node = await self._metadata.get(key)
            if node is not None:
                return _urls_of(decode_json(key, node.value))
        return None


def host_of(broker_id: str) -> str:
    """`host` of `host:port`, letter by letter as the broker advertises it: an IPv6 address has colons of its own."""
    return broker_id.rpartition(":")[0] or broker_id


def _urls_of(data: Json) -> BrokerUrls:
    def text(key: str) -> str:
        return str(data.get(key) or "")

    return BrokerUrls(
        text("pulsarServiceUrl"),
        text("webServiceUrl"),
        text("pulsarServiceUrlTls"),
        text("webServiceUrlTls"),
        listeners=listeners_of(data.get("advertisedListeners")),
    )
