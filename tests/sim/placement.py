"""Assigns racks to the bookies of a simulation, and checks that every replica is finally placed by the rules."""

import asyncio
import itertools
import json
import random
from collections.abc import Sequence
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


@dataclass(slots=True)
class Places:
    """Owns the rack map. `layout`: the racks, assigned in turn; empty: no rack map."""

    world: World
    layout: Sequence[str]
    racks_min: int = 1
    zones_min: int = 1
    known: dict[BookieId, str] = field(default_factory=dict)

    @classmethod
    def draw(cls, world: World, script: random.Random) -> "Places":
        """Draw racks, zones or neither."""
        layout = script.choice(LAYOUTS)
        zoned = bool(layout) and layout[0].count("/") > 1
        return cls(world, layout, 2 if layout else 1, 2 if zoned and script.random() < 0.5 else 1)

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
        """Return how many racks and zones the write sets lack in total."""
        missing = 0
        for positions in write_sets(len(ensemble), write_quorum):
            racks = {self.known[ensemble[at]] for at in positions}
            zones = {rack.split("/")[1] for rack in racks}
            missing += max(0, min(self.racks_min, write_quorum) - len(racks))
            missing += max(0, min(self.zones_min, write_quorum) - len(zones))
        return missing

    def trouble(self, ledger: LedgerId) -> str:
        """Describe the first fragment that violates the rules although the running bookies could satisfy them."""
        if not self.layout:
            return ""
        running = [place.running.bookie_id for place in self.world.bookies.values() if place.running is not None]
        metadata = stored_metadata(self.world, ledger)
        for fragment in closed_fragments(metadata):
            if self.lack(fragment.ensemble, metadata.write_quorum) and any(
                not self.lack(other, metadata.write_quorum)
                for other in itertools.permutations(running, len(fragment.ensemble))
            ):
                return f"ledger {ledger}: {[self.known[bookie] for bookie in fragment.ensemble]} of {fragment}"
        return ""

    async def settle(self, ledgers: Sequence[LedgerId], patience_s: float) -> None:
        """Wait until no fragment violates the rules. AssertionError if that never happens."""
        end_s = self.world.loop.time() + patience_s
        while trouble := next((text for text in map(self.trouble, ledgers) if text), ""):
            assert self.world.loop.time() < end_s, f"not placed by the rules after {patience_s:.0f} s: {trouble}"
            await asyncio.sleep(5.0)
