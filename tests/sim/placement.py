"""Assigns racks or machines to the bookies of a simulation, and checks that every replica is finally well placed."""

import asyncio
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.model import BookieId, LedgerId
from quire_bookie.quorum.write_set import write_sets
from quire_bookie.recovery.fragments import closed_fragments
from tests.sim.metadata import SimMetadataStore
from tests.sim.stored_entries import stored_metadata
from tests.sim.world import World

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("/east/1", "/west/1"),
    ("/east/1", "/east/2", "/west/1"),
    ("/1", "/2", "/3"),
    (),
)
MACHINES = {"b1": "m1", "b2": "m1", "b3": "m2", "b4": "m2", "b5": "m3", "b9": "m3"}
"""Machines of the hosts, some of which run two bookies."""


@dataclass(slots=True)
class Places:
    """Owns the rack map. `layout`: the racks, assigned in turn; empty: no rack map, but perhaps shared machines."""

    world: World
    layout: Sequence[str]
    racks_min: int = 1
    zones_min: int = 1
    known: dict[BookieId, str] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def draw(cls, world: World, script: random.Random) -> "Places":
        """Draw racks, zones, machines or none of them. Call it before the bookies start."""
        layout = script.choice(LAYOUTS)
        zoned = bool(layout) and layout[0].count("/") > 1
        places = cls(world, layout, 2 if layout else 1, 2 if zoned and script.random() < 0.5 else 1)
        if not layout and script.random() < 0.5:
            places.machines = MACHINES
            for host, machine in MACHINES.items():
                world.changes_of.setdefault(host, {})["machine"] = machine
        return places

    @property
    def client_settings(self) -> dict[str, Any]:
        """Placement settings for components that create ensembles."""
        return {"placement_racks_min": self.racks_min, "placement_zones_min": self.zones_min}

    async def write_rack_map(self) -> None:
        """Write the rack map; a new bookie gets the next rack."""
        if not self.layout:
            return
        for _, place in sorted(self.world.bookies.items()):
            if place.running is not None:
                self.known.setdefault(place.running.bookie_id, self.layout[len(self.known) % len(self.layout)])
        groups = {"default": {bookie: {"rack": rack, "hostname": bookie} for bookie, rack in self.known.items()}}
        await SimMetadataStore(self.world.metadata).put(RACK_MAP, json.dumps(groups).encode())

    def lack(self, ensemble: Sequence[BookieId], write_quorum: int) -> int:
        """Return how many racks, zones and machines the write sets lack in total."""
        missing = 0
        for positions in write_sets(len(ensemble), write_quorum):
            if not self.layout:
                machines = {self._machine_of(ensemble[at]) for at in positions}
                missing += max(0, min(write_quorum, self._machines_running()) - len(machines))
                continue
            racks = {self.known[ensemble[at]] for at in positions}
            zones = {rack.split("/")[1] for rack in racks}
            missing += max(0, min(self.racks_min, write_quorum) - len(racks))
            missing += max(0, min(self.zones_min, write_quorum) - len(zones))
        return missing

    def trouble(self, ledger: LedgerId) -> str:
        """Describe the first fragment that violates the rules although the running bookies could satisfy them."""
        if not self.layout and not self.machines:
            return ""
        running = [place.running.bookie_id for place in self.world.bookies.values() if place.running is not None]
        metadata = stored_metadata(self.world, ledger)
        for fragment in closed_fragments(metadata):
            if self.lack(fragment.ensemble, metadata.write_quorum) and any(
                not self.lack(other, metadata.write_quorum)
                for other in itertools.permutations(running, len(fragment.ensemble))
            ):
                places = [self.known.get(bookie) or self._machine_of(bookie) for bookie in fragment.ensemble]
                return f"ledger {ledger}: {places} of {fragment}"
        return ""

    def _machine_of(self, bookie: BookieId) -> str:
        """Return the machine of a bookie, or its id if its host has no other."""
        for host, place in self.world.bookies.items():
            if place.running is not None and place.running.bookie_id == bookie:
                return self.machines.get(host, bookie)
        return bookie

    def _machines_running(self) -> int:
        """Return the number of machines with a running bookie."""
        return len({self.machines.get(host, host) for host, one in self.world.bookies.items() if one.running})

    async def settle(self, ledgers: Sequence[LedgerId], patience_s: float) -> None:
        """Wait until no fragment violates the rules. AssertionError if that never happens."""
        end_s = self.world.loop.time() + patience_s
        while trouble := next((text for text in map(self.trouble, ledgers) if text), ""):
            assert self.world.loop.time() < end_s, f"not placed by the rules after {patience_s:.0f} s: {trouble}"
            await asyncio.sleep(5.0)
