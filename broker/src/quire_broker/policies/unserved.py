"""Policies that no broker here would enforce, and why: they are refused, at namespaces and at topics. Data only."""

from typing import Final

_AT_BOTH: Final = {
    "replicatorDispatchRate": "topics are not replicated to other clusters",
    "dispatcherPauseOnAckStatePersistent": "delivery does not wait until acknowledgments are stored",
}
OF_NAMESPACES: Final = _AT_BOTH | {
    "resourcegroup": "there are no resource groups",
}
"""Maps the path of a namespace's policy to the reason."""
VALUES: Final[dict[str, object]] = {
    "dispatcherPauseOnAckStatePersistent": False,
}
"""Values that are always in force at namespaces; the others have none."""
OF_TOPICS: Final = _AT_BOTH | {
    "offloadPolicies": "offloading is set for whole namespaces",
}
"""Maps the path of a topic's policy to the reason."""
