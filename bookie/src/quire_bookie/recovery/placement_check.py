"""Counts ledgers whose ensembles violate the rules of machines, racks and zones; marks them if configured.

Moves nothing.
"""

import logging
from dataclasses import replace

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.model import BookieId, LedgerMetadata
from quire_bookie.quorum.placement import Cluster, SpreadRules, best_move, is_spread
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health, ReplicaReport
from quire_bookie.recovery.fragments import closed_fragments
from quire_bookie.recovery.ledger_folders import ledger_folders
from quire_bookie.recovery.stats import RecoveryStats

_log = logging.getLogger("quire.recovery.placement")


class PlacementCheck:
    """Walks through all ledgers when the auditor requests it."""

    def __init__(self, access: ClusterAccess, stats: RecoveryStats) -> None:
        self._access = access
        self._stats = stats

    async def check(self) -> int:
        """Return the number of ledgers that violate the rules; mark those that can be moved, if configured.

        Raises MetadataError.
        """
        access = self._access
        found = 0
        cluster = access.cluster
        if not cluster.places and cluster.machine_count(cluster.machines) == len(cluster.machines):
            self._stats.ledgers_misplaced = 0
            return 0  # one rack, and each bookie has its own machine: no ensemble could be better
        async for folder in ledger_folders(access.metadata):
            async for page in access.metadata.scan(folder):
                cluster, rules = _cluster_and_rules(access)
                for node in page:
                    ledger = layout.ledger_of_path(node.key)
                    try:
                        metadata = None if ledger is None else decode_ledger_metadata(node.value)
                    except MetadataFormatError:
                        self._stats.ledgers_unreadable += 1
                        continue
                    if ledger is None or metadata is None or not is_misplaced(metadata, cluster, rules):
                        continue
                    found += 1
                    if not access.settings.repair_placement:
                        continue  # to choose the best move costs more than the check
                    movable = {report.bookie for report in misplaced(access, metadata)}
                    if movable:
                        self._stats.marks_made += await access.marks.mark(ledger, movable, again=False)
        self._stats.placement_checks += 1
        self._stats.ledgers_misplaced = found
        _log.info("%d ledgers violate the rules of machines, racks and zones", found)
        return found


def is_misplaced(metadata: LedgerMetadata, cluster: Cluster, rules: SpreadRules) -> bool:
    """Return whether any ensemble violates the rules, including that of a segment that is still written."""
    return not all(is_spread(segment.ensemble, metadata.write_quorum, cluster, rules) for segment in metadata.segments)


def _cluster_and_rules(access: ClusterAccess) -> tuple[Cluster, SpreadRules]:
    """Return the cluster, and rules that an ensemble could satisfy: without a rack map all bookies are in one rack."""
    cluster, rules = access.cluster, access.rules
    return cluster, rules if cluster.places else replace(rules, racks_min=1, zones_min=1)


def misplaced(
    access: ClusterAccess, metadata: LedgerMetadata, leaving: frozenset[BookieId] = frozenset()
) -> list[ReplicaReport]:
    """Return for each settled fragment that violates the rules the replica to move first, if a bookie can take it."""
    found = []
    cluster, rules = _cluster_and_rules(access)
    writable = access.registry.writable - frozenset(access.pool.suspects) - leaving
    candidates = access.bookies_for(metadata).members(writable, metadata.write_quorum)
    for fragment in closed_fragments(metadata):
        move = best_move(fragment.ensemble, fragment.write_quorum, candidates, access.chance, cluster, rules)
        if move is not None:
            whole = ((fragment.first, fragment.last),)
            found.append(ReplicaReport(fragment, move[0], Health.MISPLACED, whole, target=move[1]))
    return found
