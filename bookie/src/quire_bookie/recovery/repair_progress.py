"""Tracks what each running repair does and when it last advanced, so that one that no longer does is noticed.

Owns no task and decides nothing: `replication_worker` gives such a repair up. A ledger that is not in repair, such as
one that the auditor checks, is ignored.
"""

import asyncio

from quire_bookie.dataclass import dataclass
from quire_bookie.model import LedgerId


@dataclass(slots=True)
class _Repair:
    step: str
    advanced_s: float


class RepairProgress:
    """Holds the progress of all repairs of one process, by ledger."""

    def __init__(self) -> None:
        self._repairs: dict[LedgerId, _Repair] = {}

    def begin(self, ledger: LedgerId) -> None:
        """Track the repair of a ledger from now on, until `end`."""
        assert ledger not in self._repairs, "a process repairs a ledger once at a time"
        self._repairs[ledger] = _Repair("reading its metadata", asyncio.get_running_loop().time())

    def end(self, ledger: LedgerId) -> None:
        """Forget the repair."""
        del self._repairs[ledger]

    def step(self, ledger: LedgerId, step: str) -> None:
        """Note that the repair begins another step. `step`: a participle for the log, as "copying entries 0 to 9"."""
        repair = self._repairs.get(ledger)
        if repair is not None:
            repair.step = step
            repair.advanced_s = asyncio.get_running_loop().time()

    def advanced(self, ledger: LedgerId) -> None:
        """Note that a part of the step is done."""
        repair = self._repairs.get(ledger)
        if repair is not None:
            repair.advanced_s = asyncio.get_running_loop().time()

    def step_of(self, ledger: LedgerId) -> str:
        """Return the present step of a running repair."""
        return self._repairs[ledger].step

    def idle_s(self, ledger: LedgerId) -> float:
        """Return the seconds since the running repair last advanced."""
        return asyncio.get_running_loop().time() - self._repairs[ledger].advanced_s
