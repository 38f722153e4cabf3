"""What must never happen under the operator, asked where it would happen: a write to the API server."""

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

LOOK_S = 15.0
"""So long ago a pass may have looked when it writes what it decided: what is older than this it has seen."""


@dataclass
class Promises:
    """Raises HistoryError for what breaks one."""

    world: World
    status: Callable[[], dict[str, Any]]
    """What is on record."""
    ensemble: int
    """The largest that is declared."""
    lost: set[str] = field(default_factory=set)
    """Bookies that went with their node."""
    marked_s: dict[str, float] = field(default_factory=dict)
    """Since when each mark is there."""
    away_s: float | None = None
    """Since when nobody reaches the metadata."""
    bookies_on: dict[str, str] = field(default_factory=dict)
    """Id by volume: who ran on it last."""
    claims: Callable[[], set[str]] = set
    """Uids of those that are there."""
    claims_then: set[str] = field(default_factory=set)
    """Those that were there when the replacement began."""
    step: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a step is put on record."""

    def watch_marks(self) -> None:
        """From now on."""
        self.world.metadata.on_write.append(self._wrote)

    def _wrote(self, key: str) -> None:
        if key.startswith(f"{MARKS}/") and self.world.metadata.version(key) == 0:
            self.marked_s[key] = self.world.loop.time()

    def metadata_goes(self, *, away: bool) -> None:
        """Nobody reaches it, or everybody again."""
        self.world.metadata.away = away
        self.away_s = self.world.loop.time() if away else None

    # ---- at writes
    def shrinking(self, pods: str, before: int, after: int) -> None:
        """Pods above `after` are taken away: no ledger names their bookies, and enough of them stay."""
        for ordinal in range(after, before):
            self._check_unnamed(self._bookie_of(f"{pods}-{ordinal}"), "its pod is taken away")
        if after < self.ensemble:
            raise HistoryError(f"{after} bookies are left, and ensembles of {self.ensemble} are declared")

    def releasing(self, claim: Manifest) -> None:
        """No ledger names a bookie whose volumes go, but those that are lost anyway; nor does its successor's go."""
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        self._check_unnamed(self.bookies_on.get(claim["spec"].get("volumeName", ""), ""), f"{name} is given up")
        self._check_unnamed(self._bookie_of(name.partition("-")[2]), f"{name} is given up")
        if (self.status().get("operation") or {}).get("type") == "Replace" and uid not in self.claims_then:
            raise HistoryError(f"{name} is given up, which was made after the bookie was lost")

    def recording(self, before: Manifest, after: Manifest) -> None:
        """A step of an operation is put on record."""
        then, now = [(one.get("status") or {}).get("operation") or {} for one in (before, after)]
        step, bookie = (now.get("type"), now.get("step")), now.get("bookie", "")
        if step == (then.get("type"), then.get("step")):
            return
        self.step.set()
        if now.get("type") == "Replace" and then.get("startedAt") != now.get("startedAt"):
            self.claims_then = self.claims()
        if step == ("Drain", "Shrinking"):
            self._check_certain("a bookie is taken away")
            self._check_unnamed(bookie, "its pod is to be taken away")
        elif step == ("Roll", "Replacing") and self._serves(now["pod"]):
            self._check_certain("a bookie is stopped")
        elif step == ("Drain", "ReleasingClaims") and layout.cookie_path(bookie) in self.world.metadata.nodes:
            raise HistoryError(f"the cookie of {bookie} is there, and its claims are to go")
        elif step == ("Replace", "Unbinding") and now.get("target") == "Copied":
            self._check_unnamed(bookie, "what is on it counts as copied")

    # ---- by what is there
    def _bookie_of(self, pod: str) -> str:
        row = next((row for row in self.status().get("bookies", ()) if row["pod"] == pod), None)
        return "" if row is None else str(row["id"])

    def _serves(self, pod: str) -> bool:
        places = [place for host, place in self.world.bookies.items() if host.partition(".")[0] == pod]
        return any(place.running is not None for place in places)

    def _check_certain(self, what: str) -> None:
        """Nothing lacked a replica, and somebody could know that."""
        now_s, nodes = self.world.loop.time(), self.world.metadata.nodes
        if self.away_s is not None and now_s - self.away_s > LOOK_S:
            raise HistoryError(f"{what} while nobody reaches the metadata")
        old = [key for key, since_s in self.marked_s.items() if key in nodes and now_s - since_s > LOOK_S]
        if old:
            raise HistoryError(f"{what} while ledgers lack replicas: {old}")

    def _check_unnamed(self, bookie: str, what: str) -> None:
        for key, node in self.world.metadata.nodes.items():
            if bookie and bookie not in self.lost and layout.ledger_of_path(key) is not None:
                metadata = decode_ledger_metadata(node.value)
                if any(bookie in segment.ensemble for segment in metadata.segments):
                    raise HistoryError(f"{key} names {bookie}, and {what}")
