"""Policies that no broker here would enforce, and why: they are refused, at namespaces and at topics. Data only."""

from typing import Final

UNSERVED: Final = {
    "replicatorDispatchRate": "topics are not replicated to other clusters",
}
"""Maps the path of a policy to the reason."""
