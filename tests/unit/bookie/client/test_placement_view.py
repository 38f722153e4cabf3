"""The view of machines and rules that placement gets."""

from dataclasses import replace

from quire_bookie.client.placement_view import PlacementView
from quire_bookie.limits import ENSEMBLE_SIZE_MAX
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import BookieId
from quire_bookie.settings.client import ClientSettings
from tests.sim.metadata import SimMetadataStore
from tests.unit.bookie.client.cluster import Cluster, run

A, B, C, D = (BookieId(name) for name in "abcd")
PLAIN = ClientSettings()
STRICT = replace(PLAIN, distinct_machines=True)


async def view(cluster: Cluster, settings: ClientSettings = PLAIN) -> PlacementView:
    """Return the view of a client of a and b on machine m1, c on m2 and d on its own."""
    for name, machine in (("a", "m1"), ("b", "m1"), ("c", "m2"), ("d", "")):
        await cluster.start_bookie(name, machine)
    registry = await BookieRegistry.open(SimMetadataStore(cluster.metadata))
    return PlacementView(registry, None, settings, None)


def test_the_rules_ask_for_as_many_machines_as_have_writable_bookies() -> None:
    async def scenario(cluster: Cluster, _: object) -> None:
        found = await view(cluster)
        assert (found.rules.machines_min, found.rules.distinct_machines) == (3, False)
        assert found.cluster.machines == {A: "m1", B: "m1", C: "m2", D: "d"}
        assert found.ensemble_max([A, B, C, D]) == 4
        assert found.permitted_beside([A]) == {B, C, D}

    run(scenario, bookies=0)


def test_if_machines_must_be_distinct_an_ensemble_has_one_bookie_of_each() -> None:
    async def scenario(cluster: Cluster, _: object) -> None:
        found = await view(cluster, STRICT)
        assert (found.rules.machines_min, found.rules.distinct_machines) == (ENSEMBLE_SIZE_MAX, True)
        assert found.ensemble_max([A, B, C, D]) == 3
        assert found.permitted_beside([A]) == {C, D}
        assert found.permitted_beside([A, C]) == {D}
        assert found.permitted_beside([BookieId("gone:3181")]) == {A, B, C, D}

    run(scenario, bookies=0)
