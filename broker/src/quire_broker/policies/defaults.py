"""The policies that follow from a broker's settings: they hold where a namespace and a topic set none. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from quire_broker.policies.rates import BY_CLUSTER

STRATEGY: Final = "schema_compatibility_strategy"
OLD_STRATEGY: Final = "schema_auto_update_compatibility_strategy"
"""Field of a namespace's policies that holds if `STRATEGY` is UNDEFINED, as in Pulsar."""
UNSET: Final[Mapping[str, Any]] = {
    STRATEGY: "UNDEFINED",
    "schema_validation_enforced": False,
    "encryption_required": False,
    "subscription_types_enabled": [],
    **{name: {} for name in BY_CLUSTER},
}
"""What a new namespace has in these fields, as in Pulsar: it counts as not set. Of the others None does."""


def with_defaults(policies: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies of a namespace over those of its broker. Do not change the result."""
    if not defaults:
        return policies
    own = {name: value for name, value in policies.items() if value is not None and value != UNSET.get(name)}
    found = {**defaults, **own}
    if own.get(OLD_STRATEGY) and STRATEGY not in own:
        found.pop(STRATEGY, None)
    return found
