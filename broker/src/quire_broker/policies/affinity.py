"""The bookie affinity groups of a namespace: which groups of bookies hold its ledgers. Pure.

They are in the namespace's local policies, in Pulsar's form: names of groups of the rack map, separated by commas.
"""

from collections.abc import Mapping
from typing import Any, Final

from quire_bookie.control_characters import has_control_characters
from quire_broker.policies.fields import object_of, text

BOOKIE_AFFINITY: Final = "bookieAffinityGroup"
"""Field of the local policies."""
_PRIMARY: Final = "bookkeeperAffinityGroupPrimary"
_SECONDARY: Final = "bookkeeperAffinityGroupSecondary"
FORM: Final = object_of((_PRIMARY,), **{_PRIMARY: text, _SECONDARY: text})


def affinity_names(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the primary and the secondary groups; a value that is no text names none."""
    primary, secondary = (value.get(name) for name in (_PRIMARY, _SECONDARY))
    return str(primary) if isinstance(primary, str) else "", str(secondary) if isinstance(secondary, str) else ""


def flaw_of_affinity(value: Any) -> str | None:
    """Return why a value may not be stored; None: it may."""
    expected = FORM(value)
    if expected:
        return f"bookie affinity groups must be {expected}"
    names = affinity_names(value)
    if not any(name.strip() for name in names[0].split(",")):
        return f"{_PRIMARY} is {names[0][:100]!r}; name at least one group of bookies"
    if has_control_characters("".join(names)):
        return "a name of a group of bookies must not contain control characters"
    return None
