"""Tests that ledgers that violate the rules of racks and zones are counted and, if configured, moved."""

import asyncio
import json
from dataclasses import replace

from quire_bookie.metadata.layout import writable_path
from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.metadata.service_info import MACHINE, encode_service_info
from quire_bookie.model import BookieId, EntryId, LedgerId, Segment
from quire_bookie.quorum.placement import is_spread
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.ledger_repair import Verdict
from quire_bookie.recovery.placement_check import PlacementCheck
from tests.sim.metadata import SimMetadataStore
from tests.sim.world import SimChance
from tests.unit.bookie.recovery.small_cluster import LEDGER, QUICK, SETTINGS, SmallCluster, run

MOVING = replace(SETTINGS, repair_placement=True)


async def stand(cluster: SmallCluster, *racks: str) -> None:
    """Write the racks of the bookies."""
    places = {bookie: {"rack": rack} for bookie, rack in zip(cluster.bookies, racks, strict=True)}
    cluster.world.metadata.write(RACK_MAP, json.dumps({"default": places}).encode(), None)
    await cluster.settle()


async def ensembles(cluster: SmallCluster) -> list[tuple[BookieId, ...]]:
    """Return the ensembles of the ledger, in order."""
    return [segment.ensemble for segment in (await cluster.access.nodes.read(LEDGER)).value.segments]


def test_misplaced_ledgers_are_counted_and_not_moved_by_default() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write({}, last=5)
        await cluster.write({}, last=5, ledger=LedgerId(8), segments=(Segment(EntryId(0), (a, b, d)),))
        check = PlacementCheck(cluster.access, cluster.stats)
        assert await check.check() == 0, "without a rack map no rule is violated"
        await stand(cluster, "/one", "/one", "/one", "/two")
        assert await check.check() == 1
        assert (cluster.stats.ledgers_misplaced, cluster.stats.placement_checks) == (1, 1)
        assert await cluster.access.marks.read(LEDGER) is None
        assert c in (await ensembles(cluster))[0]

    run(scenario)


def test_replicas_move_until_the_rules_are_satisfied() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        segments = (Segment(EntryId(0), (a, b, c)), Segment(EntryId(4), (a, b, d)))
        await cluster.write({a: range(9), b: range(9), c: range(4), d: range(4, 9)}, last=8, segments=segments)
        await stand(cluster, "/one", "/one", "/one", "/two")
        check = PlacementCheck(cluster.access, cluster.stats)
        assert await check.check() == 1
        mark = await cluster.access.marks.read(LEDGER)
        assert mark is not None and len(mark.bookies) == 1
        assert (await cluster.repair_marked(*mark.bookies)).verdict is Verdict.WHOLE
        first, second = await ensembles(cluster)
        assert is_spread(first, 3, cluster.access.cluster, cluster.access.rules)
        assert d in first and second == (a, b, d), "replicas that satisfy the rules stay"
        assert await cluster.held(d, 8) == list(range(9))
        assert cluster.stats.replicas_relocated == 1
        assert await check.check() == 0

    run(scenario, settings=MOVING)


def test_misplacement_that_no_bookie_can_fix_is_counted_and_not_marked() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2)
        await stand(cluster, "/one", "/one", "/one", "/one")
        assert await PlacementCheck(cluster.access, cluster.stats).check() == 1
        assert await cluster.access.marks.read(LEDGER) is None
        assert (await cluster.repair_marked(c)).verdict is Verdict.WHOLE
        await asyncio.sleep(1)
        assert await ensembles(cluster) == [(a, b, c)]

    run(scenario, settings=MOVING)


def test_replacements_are_weighed_by_free_space_only_where_that_is_wanted() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        store = SimMetadataStore(cluster.world.metadata)
        settings = replace(QUICK, placement_by_free_space=True)
        weighing = await ClusterAccess.open(store, SETTINGS, settings, clock=cluster.world.clock, chance=SimChance(5))
        await cluster.settle()
        assert set(weighing.cluster.weights) == set(cluster.bookies)
        assert cluster.access.cluster.weights == {}
        await weighing.close()

    run(scenario)


async def move_to_machines(cluster: SmallCluster, *machines: str) -> None:
    """Register the bookies again as on these machines."""
    for bookie, machine in zip(cluster.bookies, machines, strict=True):
        info = cluster.access.registry.service_info(bookie)
        assert info is not None
        value = encode_service_info(replace(info, properties={MACHINE: machine}))
        cluster.world.metadata.write(writable_path(bookie), value, None)
    await cluster.settle()


def test_copies_on_one_machine_are_counted_and_moved_without_a_rack_map() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2)
        check = PlacementCheck(cluster.access, cluster.stats)
        assert await check.check() == 0, "each bookie has its own machine"
        await move_to_machines(cluster, "m1", "m1", "m2", "m3")
        assert await check.check() == 1
        mark = await cluster.access.marks.read(LEDGER)
        assert mark is not None and set(mark.bookies) < {a, b}
        assert (await cluster.repair_marked(*mark.bookies)).verdict is Verdict.WHOLE
        ((*members,),) = await ensembles(cluster)
        assert d in members and cluster.access.cluster.machine_count(members) == 3
        assert await check.check() == 0

    run(scenario, settings=MOVING)


def test_copies_that_share_a_machine_for_lack_of_others_are_no_violation_unless_it_is_enforced() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, _ = cluster.bookies
        await cluster.write(dict.fromkeys((a, b, c), range(3)), last=2)
        check = PlacementCheck(cluster.access, cluster.stats)
        await move_to_machines(cluster, "m1", "m1", "m2", "m2")
        assert await check.check() == 0
        await move_to_machines(cluster, "m1", "m1", "m1", "m2")
        assert await check.check() == 1, "the ledger is on one machine of two"

    run(scenario)
