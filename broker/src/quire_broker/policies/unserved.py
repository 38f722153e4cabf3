"""Policies that no broker here would enforce, and why: they are refused, at namespaces and at topics. Data only."""

from typing import Final

_AT_BOTH: Final = {
    "replicatorDispatchRate": "topics are not replicated to other clusters",
}
OF_NAMESPACES: Final = _AT_BOTH
"""Maps the path of a namespace's policy to the reason."""
OF_TOPICS: Final = _AT_BOTH
"""Maps the path of a topic's policy to the reason."""
