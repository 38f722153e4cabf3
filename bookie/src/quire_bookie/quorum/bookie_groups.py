"""The groups of bookies that may hold a ledger, and which bookies these are. Pure.

The custom metadata of a ledger name its groups, in the form of Pulsar's placement policy. So its writer, its recovery
and auto-recovery choose bookies by the same groups, as stock brokers do.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Final

from quire_bookie.dataclass import dataclass
from quire_bookie.model import BookieId

DEFAULT_GROUP: Final = "default"
"""Group of the bookies that are in none, as in Pulsar's tools."""
PLACEMENT: Final = "EnsemblePlacementPolicyConfig"
"""Key of the custom metadata."""
_POLICY: Final = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
_PRIMARY: Final = "isolationBookieGroups"
_SECONDARY: Final = "secondaryIsolationBookieGroups"


@dataclass(frozen=True, slots=True)
class BookieGroups:
    """The names of the groups. Bookies of `secondary` are used where those of `primary` do not suffice."""

    primary: frozenset[str]
    secondary: frozenset[str] = frozenset()

    @classmethod
    def named(cls, primary: str, secondary: str = "") -> "BookieGroups | None":
        """Return the groups of two lists of names, separated by commas; None without a primary one."""
        first, second = (frozenset(filter(None, map(str.strip, names.split(",")))) for names in (primary, secondary))
        return cls(first, second) if first else None

    @property
    def described(self) -> str:
        """Return the names for messages."""
        return ", ".join([*sorted(self.primary), *(f"{name} (secondary)" for name in sorted(self.secondary))])

    def custom(self) -> dict[str, bytes]:
        """Return the custom metadata of a ledger of these groups."""
        properties = {_PRIMARY: ",".join(sorted(self.primary))}
        if self.secondary:
            properties[_SECONDARY] = ",".join(sorted(self.secondary))
        return {PLACEMENT: json.dumps({"policyClass": _POLICY, "properties": properties}).encode()}

    def members(
        self,
        candidates: frozenset[BookieId],
        group_of: Callable[[BookieId], str],
        needed: int,
        ensemble_max: Callable[[Collection[BookieId]], int] = len,
    ) -> frozenset[BookieId]:
        """Return the candidates of the primary groups; with those of the secondary ones if they do not suffice.

        They suffice for an ensemble of `needed`. `ensemble_max`: returns the size of the largest one of bookies.
        """
        first = frozenset(one for one in candidates if group_of(one) in self.primary)
        if ensemble_max(first) >= needed:
            return first
        return first | frozenset(one for one in candidates if group_of(one) in self.secondary)


def groups_of(custom: Mapping[str, bytes]) -> BookieGroups | None:
    """Return the groups in the custom metadata of a ledger; None: every bookie may hold it.

    Another program may have written the value: an unreadable one names no group.
    """
    value = custom.get(PLACEMENT)
    if value is None:
        return None
    try:
        properties = json.loads(value)["properties"]
        primary, secondary = (properties.get(name) or "" for name in (_PRIMARY, _SECONDARY))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(primary, str) or not isinstance(secondary, str):
        return None
    return BookieGroups.named(primary, secondary)
