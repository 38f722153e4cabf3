"""Checks the operator's guarantees at each of its writes to the API server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.under_replication import MARKS
from quire_operator.builders import Manifest
from tests.sim.history import HistoryError
from tests.sim.world import World

OBSERVED_S = 15.0
"""Maximum age of the observation behind a write: the operator has observed every older state."""


@dataclass
class Promises:
    """Raises HistoryError if a write of the operator violates a guarantee."""

    world: World
    status: Callable[[], dict[str, Any]]
    """Returns the recorded status of the resource."""
    ensemble: int
    """The largest declared ensemble."""
    lost: set[str] = field(default_factory=set)
    """Bookies that were lost with their node."""
    marked_s: dict[str, float] = field(default_factory=dict)
    """Time at which each under-replication mark was set."""
    away_s: float | None = None
    """Time since which the metadata store is unreachable, or None."""
    bookies_on: dict[str, str] = field(default_factory=dict)
    """The bookie that ran last on each volume."""
    claims: Callable[[], set[str]] = set
    """Returns the uids of the existing claims."""
    claims_then: set[str] = field(default_factory=set)
    """Uids of the claims that existed when the replacement began."""
    step: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a step is recorded in the status."""

    def watch_marks(self) -> None:
        """Track under-replication marks from now on."""
        self.world.metadata.on_write.append(self._wrote)

    def _wrote(self, key: str) -> None:
        if key.startswith(f"{MARKS}/") and self.world.metadata.version(key) == 0:
            self.marked_s[key] = self.world.loop.time()

    def metadata_goes(self, *, away: bool) -> None:
        """Make the metadata store unreachable for all, or reachable again."""
        self.world.metadata.away = away
        self.away_s = self.world.loop.time() if away else None

    # ---- checks at writes
    def shrinking(self, pods: str, before: int, after: int) -> None:
        """Check a removal of the pods from `after` on: no ledger names their bookies, and enough bookies stay."""
        for ordinal in range(after, before):
            self._check_unnamed(self._bookie_of(f"{pods}-{ordinal}"), "its pod is removed")
        if after < self.ensemble:
            raise HistoryError(f"{after} bookies are left, and ensembles of {self.ensemble} are declared")

    def releasing(self, claim: Manifest) -> None:
        """Check that no ledger names the bookie of a deleted claim unless it is lost, and that its successor's stay."""
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        self._check_unnamed(self.bookies_on.get(claim["spec"].get("volumeName", ""), ""), f"{name} is given up")
        self._check_unnamed(self._bookie_of(name.partition("-")[2]), f"{name} is given up")
        if (self.status().get("operation") or {}).get("type") == "Replace" and uid not in self.claims_then:
            raise HistoryError(f"{name} is deleted, but was created after the bookie was lost")

    def recording(self, before: Manifest, after: Manifest) -> None:
        """Check a newly recorded step of an operation."""
        then, now = [(one.get("status") or {}).get("operation") or {} for one in (before, after)]
        step, bookie = (now.get("type"), now.get("step")), now.get("bookie", "")
        if step == (then.get("type"), then.get("step")):
            return
        self.step.set()
        if now.get("type") == "Replace" and then.get("startedAt") != now.get("startedAt"):
            self.claims_then = self.claims()
        if step == ("Drain", "Shrinking"):
            self._check_certain("a bookie is removed")
            self._check_unnamed(bookie, "its pod will be removed")
        elif step == ("Roll", "Replacing") and self._serves(now["pod"]):
            self._check_certain("a bookie is stopped")
        elif step == ("Drain", "ReleasingClaims") and layout.cookie_path(bookie) in self.world.metadata.nodes:
            raise HistoryError(f"the claims of {bookie} will be deleted, but its cookie exists")
        elif step == ("Replace", "Unbinding") and now.get("target") == "Copied":
            self._check_unnamed(bookie, "its entries count as copied")

    # ---- conditions
    def _bookie_of(self, pod: str) -> str:
        row = next((row for row in self.status().get("bookies", ()) if row["pod"] == pod), None)
        return "" if row is None else str(row["id"])

    def _serves(self, pod: str) -> bool:
        places = [place for host, place in self.world.bookies.items() if host.partition(".")[0] == pod]
        return any(place.running is not None for place in places)

    def _check_certain(self, what: str) -> None:
        """Check that no ledger lacked a replica, and that the metadata store was reachable to know that."""
        now_s, nodes = self.world.loop.time(), self.world.metadata.nodes
        if self.away_s is not None and now_s - self.away_s > OBSERVED_S:
            raise HistoryError(f"{what} while the metadata store is unreachable")
        old = [key for key, since_s in self.marked_s.items() if key in nodes and now_s - since_s > OBSERVED_S]
        if old:
            raise HistoryError(f"{what} while ledgers lack replicas: {old}")

    def _check_unnamed(self, bookie: str, what: str) -> None:
        for key, node in self.world.metadata.nodes.items():
            if bookie and bookie not in self.lost and layout.ledger_of_path(key) is not None:
                metadata = decode_ledger_metadata(node.value)
                if any(bookie in segment.ensemble for segment in metadata.segments):
                    raise HistoryError(f"{key} names {bookie}, but {what}")
