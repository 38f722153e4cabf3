"""Metrics of the stalls of a process's event loop."""

from quire_bookie.env.loop_stalls import LoopStalls
from quire_bookie.exposition.families import Families


class StallCollector:
    """Collects the histogram of the stalls, and the longest one."""

    def __init__(self, stalls: LoopStalls) -> None:
        self._stalls = stalls

    def collect(self) -> Families:
        """Return both families."""
        families = Families()
        families.add_histogram(self._stalls.late, "quire_loop_stall_seconds", "how late the event loop is", {})
        name, text = "quire_loop_stall_max_seconds", "the largest of these since the start"
        families.add(name, "gauge", text, self._stalls.longest_s, {})
        return families
