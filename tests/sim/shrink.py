"""Shortens a failing seed to the fewest planned steps and the shortest time that still fail, and reports the events.

Runs of one seed differ only in the omitted steps, so each attempt is deterministic. Any failure counts, also a
different one from the first.
"""

from collections.abc import Callable

from tests.sim.plan import Plan

EVENTS_SHOWN = 60
SPANS = (0.1, 0.25, 0.5, 0.75)


class Shrinker:
    """Runs one seed repeatedly with fewer steps. `run` raises the failure."""

    def __init__(self, run: Callable[[Plan], object], runs_max: int) -> None:
        self._run = run
        self._left = runs_max
        self.runs = 0
        self.best: Plan | None = None
        self.failure = ""

    def shrink(self) -> bool:
        """Shorten the seed. Returns False if it does not fail."""
        if not self._fails(None, 1.0):
            return False
        assert self.best is not None
        self._fewer_steps(1.0)
        for span in SPANS:
            if self._fails(self._kept(), span):
                self._fewer_steps(span)
                break
        return True

    def _kept(self) -> frozenset[int]:
        assert self.best is not None
        numbers = range(len(self.best.drawn)) if self.best.kept is None else self.best.kept
        return frozenset(numbers)

    def _fails(self, kept: frozenset[int] | None, span: float) -> bool:
        """Run a plan; if it fails, record it as the best so far."""
        if self._left <= 0:
            return False
        self._left -= 1
        self.runs += 1
        plan = Plan(kept=kept, span=span)
        try:
            self._run(plan)
        except Exception as error:  # noqa: BLE001  any failure of the run
            self.best, self.failure = plan, f"{type(error).__name__}: {error}"
            return True
        return False

    def _fewer_steps(self, span: float) -> None:
        """Delta debugging: omit ever smaller parts while the run still fails."""
        parts = 2
        while True:
            kept = sorted(self._kept())
            size = max(1, len(kept) // parts)
            for at in range(0, len(kept), size):
                if self._fails(frozenset([*kept[:at], *kept[at + size :]]), span):
                    parts = max(2, parts - 1)
                    break
            else:
                if size == 1 or self._left <= 0:
                    return
                parts = min(len(kept), parts * 2)

    def report(self) -> str:
        """Format the remaining steps and the last events."""
        assert self.best is not None
        kept = sorted(self._kept())
        lines = [f"{self.failure}", f"{len(kept)} of {len(self.best.drawn)} steps remain after {self.runs} runs:"]
        lines += [f"  {self.best.drawn[number]}" for number in kept if number < len(self.best.drawn)]
        events = _folded(self.best.events)
        lines += [f"events ({len(events)}, the last {min(len(events), EVENTS_SHOWN)} shown):"]
        lines += [f"  {at_s:9.4f} s  {text}" for at_s, text in events[-EVENTS_SHOWN:]]
        return "\n".join(lines)


def _folded(events: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Keep only the last of consecutive confirmations."""
    folded: list[tuple[float, str]] = []
    for event in events:
        if folded and event[1].startswith("confirmed") and folded[-1][1].startswith("confirmed"):
            folded[-1] = event
        else:
            folded.append(event)
    return folded
