"""Counters of a metadata store for the metrics collector. They only increase."""

from dataclasses import dataclass


@dataclass(slots=True)
class MetadataStats:
    """Counts the operations of a store since it was opened. A counter that does not apply to a store stays 0."""

    calls: int = 0
    writes: int = 0
    commits: int = 0
    unknown_writes: int = 0
    failovers: int = 0
    leases_granted: int = 0
    sessions_lost: int = 0
    watches_reopened: int = 0
    certificates_renewed: int = 0
