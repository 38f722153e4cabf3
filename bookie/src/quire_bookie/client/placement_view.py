"""Combines what placement depends on: machines, racks, groups, free space and rules. Chooses nothing."""

from collections.abc import Collection

from quire_bookie.client.free_space import FreeSpace
from quire_bookie.client.security import ClientSecurity
from quire_bookie.limits import ENSEMBLE_SIZE_MAX
from quire_bookie.metadata.rack_map import RackMap
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import BookieId
from quire_bookie.quorum.bookie_groups import DEFAULT_GROUP
from quire_bookie.quorum.placement import Cluster, SpreadRules
from quire_bookie.settings.client import ClientSettings


class PlacementView:
    """The present view of one client; it owns the polling of free space. `close` ends it."""

    def __init__(
        self,
        registry: BookieRegistry,
        racks: RackMap | None,
        settings: ClientSettings,
        security: ClientSecurity | None,
    ) -> None:
        self._registry = registry
        self._racks = racks
        self._settings = settings
        self._free_space = (
            FreeSpace(registry, settings.free_space_interval_s, settings.read_timeout_s, security)
            if settings.placement_by_free_space
            else None
        )

    @property
    def cluster(self) -> Cluster:
        """Machines from the registrations, racks from the rack map, free space if placement uses it."""
        return Cluster(
            {} if self._racks is None else self._racks.places,
            {} if self._free_space is None else self._free_space.weights,
            self._registry.machines,
        )

    @property
    def rules(self) -> SpreadRules:
        """The rules of the settings. Unless distinct machines are enforced, as many machines as are writable count."""
        settings = self._settings
        apart = settings.distinct_machines
        return SpreadRules(
            settings.placement_racks_min,
            settings.placement_zones_min,
            settings.placement_enforced,
            ENSEMBLE_SIZE_MAX if apart else max(1, self.cluster.machine_count(self._registry.writable)),
            apart,
        )

    def group_of(self, bookie: BookieId) -> str:
        """Return the group of a bookie in the rack map."""
        return DEFAULT_GROUP if self._racks is None else self._racks.group_of(bookie)

    def ensemble_max(self, bookies: Collection[BookieId]) -> int:
        """Return the size of the largest ensemble of these bookies: one for each machine if that is enforced."""
        return self.cluster.machine_count(bookies) if self._settings.distinct_machines else len(bookies)

    def permitted_beside(self, members: Collection[BookieId]) -> frozenset[BookieId]:
        """Return the writable bookies that may join these: not on their machines, if machines must be distinct."""
        writable = self._registry.writable - frozenset(members)
        if not self._settings.distinct_machines:
            return writable
        cluster = self.cluster
        used = {cluster.machine_of(bookie) for bookie in members}
        return frozenset(bookie for bookie in writable if cluster.machine_of(bookie) not in used)

    async def close(self) -> None:
        """Stop polling."""
        if self._free_space is not None:
            await self._free_space.close()
