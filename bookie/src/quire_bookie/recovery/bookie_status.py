"""Classifies the bookies of one ledger: draining, or temporarily absent and not yet considered lost. Read-only."""

import asyncio
import logging
from dataclasses import replace

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.model import BookieId, LedgerMetadata
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health, ReplicaReport

_log = logging.getLogger("quire.recovery.repair")


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """The state of a ledger's bookies. `leaving`: being drained.

    `away`: unregistered, expected back within `back_s` s.
    """

    leaving: frozenset[BookieId]
    away: frozenset[BookieId] = frozenset()
    back_s: float = 0.0

    def with_drained(self, reports: list[ReplicaReport]) -> list[ReplicaReport]:
        """Return the reports with every replica on a leaving bookie as one that must move, whatever its state."""
        return [
            replace(
                report,
                health=Health.LEAVING,
                to_store=((report.fragment.first, report.fragment.last),),
                reason="its bookie is drained",
            )
            if report.bookie in self.leaving and report.health is not Health.GONE
            else report
            for report in reports
        ]


async def lost_after_s(access: ClusterAccess, controls: RecoveryControls) -> float:
    """Return how long a bookie may be away, in seconds: from the metadata, else as configured.

    Raises MetadataUnavailableError.
    """
    try:
        found = await controls.lost_bookie_delay_s()
    except MetadataFormatError as error:
        _log.warning("using the configured delay before a bookie counts as lost: %s", error)
        found = None
    return access.settings.lost_bookie_delay_s if found is None else found


async def read_bookie_status(
    access: ClusterAccess, controls: RecoveryControls, metadata: LedgerMetadata, leaving: frozenset[BookieId]
) -> BookieStatus:
    """Return the state of a ledger's bookies now. Raises MetadataError."""
    members = frozenset(bookie for segment in metadata.segments for bookie in segment.ensemble)
    missing = members - access.registered - leaving
    if not missing:
        return BookieStatus(leaving)
    delay_s = await lost_after_s(access, controls)
    now_s = asyncio.get_running_loop().time()
    left_s = {bookie: delay_s - access.absences.away_s(bookie, now_s) for bookie in missing}
    away = frozenset(bookie for bookie, seconds in left_s.items() if seconds > 0)
    return BookieStatus(leaving, away, min((left_s[bookie] for bookie in away), default=0.0))
