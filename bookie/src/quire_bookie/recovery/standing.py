"""What is to be thought of the bookies of one ledger: who leaves, and whose absence is no loss yet. Acts on nothing."""

import asyncio
import logging
from dataclasses import dataclass, replace

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.model import BookieId, LedgerMetadata
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health, ReplicaReport

_log = logging.getLogger("quire.recovery.repair")


@dataclass(frozen=True, slots=True)
class Standing:
    """`leaving`: a person wants them emptied. `away`: not registered, and expected back within `back_s` seconds."""

    leaving: frozenset[BookieId]
    away: frozenset[BookieId] = frozenset()
    back_s: float = 0.0

    def judged(self, reports: list[ReplicaReport]) -> list[ReplicaReport]:
        """The reports, with every replica on a leaving bookie as one that has to move, whatever its state."""
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
    """How long a bookie may be away, in seconds: what a person said, else as configured. MetadataUnavailableError."""
    try:
        found = await controls.lost_bookie_delay_s()
    except MetadataFormatError as error:
        _log.warning("the default is taken: %s", error)
        found = None
    return access.settings.lost_bookie_delay_s if found is None else found


async def standing_of(
    access: ClusterAccess, controls: RecoveryControls, metadata: LedgerMetadata, leaving: frozenset[BookieId]
) -> Standing:
    """The bookies of a ledger now. MetadataError."""
    members = frozenset(bookie for segment in metadata.segments for bookie in segment.ensemble)
    missing = members - access.registered - leaving
    if not missing:
        return Standing(leaving)
    delay_s = await lost_after_s(access, controls)
    now_s = asyncio.get_running_loop().time()
    left_s = {bookie: delay_s - access.absences.away_s(bookie, now_s) for bookie in missing}
    away = frozenset(bookie for bookie, seconds in left_s.items() if seconds > 0)
    return Standing(leaving, away, min((left_s[bookie] for bookie in away), default=0.0))
