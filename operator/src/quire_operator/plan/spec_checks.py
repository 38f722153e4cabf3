"""What is wrong with a spec that no CEL rule can see: other objects, and keys of other programs. Pure.

A wrong one becomes a condition with what to do, and nothing is changed in the cluster: never a crash-loop of pods.
"""

import difflib
from collections.abc import Collection

from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_spec import BookieAuthentication
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import Brokers
from quire_operator.builders.settings import bookie_settings_of_fields, broker_settings_of_fields
from quire_operator.plan.known_settings import BOOKIE_KEYS, BROKER_KEYS

_MAY_BE_SAID = frozenset({"authorizationEnabled", "httpServerAllowedHosts"})
"""Keys that follow from fields, and that `settings` may say in another way."""


def bookie_faults(resource: Bookie, lacking_secret_keys: Collection[str] = ()) -> list[str]:
    """Sentences; empty: the spec can be acted on. `lacking_secret_keys`: of the Secret of `authentication`."""
    given = resource.spec.engine.settings
    return [
        *_lacking_keys(resource.spec.authentication, lacking_secret_keys),
        *_unknown_keys("engine.settings", given, BOOKIE_KEYS),
        *_taken_keys("engine.settings", given, bookie_settings_of_fields(resource.spec).keys() - _MAY_BE_SAID),
    ]


def _lacking_keys(wanted: BookieAuthentication | None, lacking: Collection[str]) -> list[str]:
    if wanted is None or not lacking:
        return []
    return [
        f"authentication: Secret {wanted.token_key_secret} lacks {', '.join(sorted(lacking))}: add them "
        "(`quire tokens create-secret-key` and `quire tokens create --subject ROLE`); no pod is changed before"
    ]


def managed_ledger_faults(resource: ManagedLedger, pool: Bookie | None, bookies: int | None) -> list[str]:
    """Sentences. `bookies`: how many the cluster has, writable or not; None: not known."""
    spec = resource.spec
    found = _unknown_keys("brokers.settings", spec.brokers.settings, BROKER_KEYS)
    if pool is not None:
        of_fields = broker_settings_of_fields(spec, pool.spec).keys() - _MAY_BE_SAID
        found += _taken_keys("brokers.settings", spec.brokers.settings, of_fields)
    if pool is None:
        found.append(f"bookieRef: there is no Bookie {spec.bookie_ref.name} in this namespace: make it")
    elif bookies is not None and spec.replication.ensemble > bookies:
        found.append(
            f"replication.ensemble is {spec.replication.ensemble}, and the cluster has {bookies} bookies: no ledger "
            "could be made; add bookies, or lower it"
        )
    return found


def not_served_by_bookies(resource: Bookie) -> list[str]:
    """Fields of the spec that are taken and have no effect yet: none at present."""
    return []


def not_served_by_brokers(resource: ManagedLedger) -> list[str]:
    """Fields of the spec that are taken and that the brokers do not act on yet."""
    spec = resource.spec
    tls = spec.brokers.tls
    served_later = {
        # Probes and the operator's own questions have no certificate: brokers are never told to ask for one.
        "spec.brokers.tls.clientAuthentication": tls is not None and tls.client_authentication,
        "spec.brokers.tls.authorizedRoles": tls is not None and bool(tls.authorized_roles),
        "spec.access": bool(spec.access) and not _asks_for_roles(spec.brokers),
    }
    return [name for name, given in served_later.items() if given]


def _asks_for_roles(brokers: Brokers) -> bool:
    """They know who asks, and look at what that role may do: by `authentication`, or by settings of one's own."""
    given = brokers.settings.get("authorizationEnabled", str(brokers.authentication is not None))
    return given.strip().lower() == "true"


def _taken_keys(field: str, settings: dict[str, str], taken: Collection[str]) -> list[str]:
    """A key with two sources would follow the free one: past the rules of the field that has it."""
    return [
        f"{field}: {key} follows from another field of the spec: leave it out"
        for key in sorted(settings.keys() & taken)
    ]


def _unknown_keys(field: str, settings: dict[str, str], known: frozenset[str]) -> list[str]:
    found = []
    for key in sorted(set(settings) - known):
        close = difflib.get_close_matches(key, known, n=1)
        found.append(f"{field}: {key} is no setting" + (f"; did you mean {close[0]}?" if close else ""))
    return found
