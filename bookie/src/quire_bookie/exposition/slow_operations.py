"""Adds the counters of slow operations, of a bookie or of a broker."""

from collections.abc import Mapping
from typing import TypeAlias

from quire_bookie.env.slow_log import SlowLog
from quire_bookie.exposition.families import Families, Kind

Named: TypeAlias = tuple[str, Kind, str]
"""Name, kind and help text of a metric."""


def add_slow_operations(
    families: Families, log: SlowLog, operations: Named, suppressed: Named, labels: Mapping[str, str]
) -> None:
    """Add how many operations were slow, by kind, and how many of them have no line in the log."""
    for operation, count in log.counts.items():
        families.add(*operations, count, {**labels, "operation": operation})
    families.add(*suppressed, log.suppressed, labels)
