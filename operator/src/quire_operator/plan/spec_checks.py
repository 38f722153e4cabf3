"""Finds errors of a spec that CEL rules cannot detect: missing objects, and unknown keys of other programs. Pure.

Errors become a condition with the remedy, and the cluster is not changed: no pods end in a crash loop.
"""

import difflib
from collections.abc import Collection

from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_spec import BookieAuthentication, BookieSpec
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import Brokers
from quire_operator.builders import tuning
from quire_operator.builders.proxy import proxy_settings_of_fields
from quire_operator.builders.settings import bookie_settings_of_fields, broker_settings_of_fields
from quire_operator.generated.known_settings import BOOKIE_KEYS, BROKER_KEYS, PROXY_KEYS

_MAY_BE_SAID = frozenset(
    {"authorizationEnabled", "brokerShutdownTimeoutMs", "httpServerAllowedHosts", "proxyShutdownTimeoutMs"}
)
"""Keys that are set by fields and that `settings` may override."""


def bookie_faults(resource: Bookie, lacking_secret_keys: Collection[str] = ()) -> list[str]:
    """Return errors of the spec; empty if it is valid. `lacking_secret_keys`: of the Secret of `authentication`."""
    given = resource.spec.engine.settings
    return [
        *_lacking_keys(resource.spec.authentication, lacking_secret_keys),
        *_small_limits(resource.spec),
        *_unknown_keys("engine.settings", given, BOOKIE_KEYS),
        *_taken_keys("engine.settings", given, bookie_settings_of_fields(resource.spec).keys() - _MAY_BE_SAID),
    ]


def _lacking_keys(wanted: BookieAuthentication | None, lacking: Collection[str]) -> list[str]:
    if wanted is None or not lacking:
        return []
    return [
        f"authentication: Secret {wanted.token_key_secret} lacks {', '.join(sorted(lacking))}: add them "
        "(`quire tokens create-secret-key` and `quire tokens create --subject ROLE`); until then no pod is changed"
    ]


def _small_limits(spec: BookieSpec) -> list[str]:
    """Return the error of a limit in which no caches fit. Caches of the user's are the user's responsibility."""
    limit, engine = tuning.memory_limit_mib(spec.resources), spec.engine
    is_derived = (engine.write_cache, engine.read_cache, engine.index_cache) == (None, None, None)
    if not is_derived or limit is None or limit >= tuning.BOOKIE_LEAST_MIB:
        return []
    return [_small("resources", limit, tuning.BOOKIE_LEAST_MIB, "engine.writeCache, readCache or indexCache")]


def _small(field: str, limit_mib: int, least_mib: int, fields: str) -> str:
    return (
        f"{field}.limits.memory is {limit_mib}Mi, but caches that follow from a limit need {least_mib}Mi: raise it, or "
        f"set {fields}"
    )


def managed_ledger_faults(resource: ManagedLedger, pool: Bookie | None, bookies: int | None) -> list[str]:
    """Return errors of the spec. `bookies`: how many the cluster has, writable or not; None if not known."""
    spec = resource.spec
    found = _unknown_keys("brokers.settings", spec.brokers.settings, BROKER_KEYS)
    if spec.proxy is not None:
        found += _unknown_keys("proxy.settings", spec.proxy.settings, PROXY_KEYS)
        of_proxy = proxy_settings_of_fields(resource, spec.proxy).keys() - _MAY_BE_SAID
        found += _taken_keys("proxy.settings", spec.proxy.settings, of_proxy)
    external = spec.brokers.external
    if external is not None and external.listener_name in {one.name for one in spec.brokers.advertised_listeners}:
        found.append(
            f"brokers.external.listenerName is {external.listener_name}, which brokers.advertisedListeners has too: "
            "rename one"
        )
    limit = tuning.memory_limit_mib(spec.brokers.resources)
    if spec.brokers.cache is None and limit is not None and limit < tuning.BROKER_LEAST_MIB:
        found.append(_small("brokers.resources", limit, tuning.BROKER_LEAST_MIB, "brokers.cache"))
    if pool is not None:
        of_fields = broker_settings_of_fields(spec, pool.spec).keys() - _MAY_BE_SAID
        found += _taken_keys("brokers.settings", spec.brokers.settings, of_fields)
    if pool is None:
        found.append(f"bookieRef: Bookie {spec.bookie_ref.name} not found in this namespace: create it")
    elif bookies is not None and spec.replication.ensemble > bookies:
        found.append(
            f"replication.ensemble is {spec.replication.ensemble}, but the cluster has {bookies} bookies, so no ledger "
            "can be created: add bookies, or lower the ensemble"
        )
    return found


def not_served_by_bookies(resource: Bookie) -> list[str]:
    """Return fields of the spec that are accepted but have no effect yet: none at present."""
    return []


def not_served_by_brokers(resource: ManagedLedger) -> list[str]:
    """Return fields of the spec that are accepted but have no effect on brokers yet."""
    spec = resource.spec
    tls, of_proxy = spec.brokers.tls, None if spec.proxy is None else spec.proxy.tls
    served_later = {
        # Probes and the operator's requests have no client certificate, so brokers are never configured to require one.
        "spec.brokers.tls.clientAuthentication": tls is not None and tls.client_authentication,
        "spec.brokers.tls.authorizedRoles": tls is not None and bool(tls.authorized_roles),
        "spec.proxy.tls.clientAuthentication": of_proxy is not None and of_proxy.client_authentication,
        "spec.proxy.tls.authorizedRoles": of_proxy is not None and bool(of_proxy.authorized_roles),
        "spec.access": bool(spec.access) and not _asks_for_roles(spec.brokers),
    }
    return [name for name, given in served_later.items() if given]


def _asks_for_roles(brokers: Brokers) -> bool:
    """Return whether brokers authorize clients by role, through `authentication` or explicit settings."""
    given = brokers.settings.get("authorizationEnabled", str(brokers.authentication is not None))
    return given.strip().lower() == "true"


def _taken_keys(field: str, settings: dict[str, str], taken: Collection[str]) -> list[str]:
    """Return errors for keys that fields set already: the value in `settings` would bypass the checks of the field."""
    return [f"{field}: {key} is set by another field of the spec: remove it" for key in sorted(settings.keys() & taken)]


def _unknown_keys(field: str, settings: dict[str, str], known: frozenset[str]) -> list[str]:
    found = []
    for key in sorted(set(settings) - known):
        close = difflib.get_close_matches(key, known, n=1)
        found.append(f"{field}: {key} is not a known setting" + (f"; did you mean {close[0]}?" if close else ""))
    return found
