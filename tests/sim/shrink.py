"""A failing seed, made short: as few planned steps and as little time as still fail, and what happens then.

Runs of one seed differ only in what is left out of the plan, so each attempt is certain. Whatever failure is left
counts: a shorter way to another broken promise is as welcome.
"""

from collections.abc import Callable

from tests.sim.plan import Plan

EVENTS_SHOWN = 60
SPANS = (0.1, 0.25, 0.5, 0.75)


class Shrinker:
    """Runs one seed again and again. `run` raises what is wrong with it."""

    def __init__(self, run: Callable[[Plan], object], runs_max: int) -> None:
        self._run = run
        self._left = runs_max
        self.runs = 0
        self.best: Plan | None = None
        self.failure = ""

    def shrink(self) -> bool:
        """False when the seed does not fail at all."""
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
        """Try; the best so far when it fails."""
        if self._left <= 0:
            return False
        self._left -= 1
        self.runs += 1
        plan = Plan(kept=kept, span=span)
        try:
            self._run(plan)
        except Exception as error:  # noqa: BLE001  whatever it is that the run objects with
            self.best, self.failure = plan, f"{type(error).__name__}: {error}"
            return True
        return False

    def _fewer_steps(self, span: float) -> None:
        """Delta debugging: leave out ever smaller parts, as long as it goes on failing."""
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
        """The steps that are left, and the end of what happened."""
        assert self.best is not None
        kept = sorted(self._kept())
        lines = [f"{self.failure}", f"{len(kept)} of {len(self.best.drawn)} steps are left after {self.runs} runs:"]
        lines += [f"  {self.best.drawn[number]}" for number in kept if number < len(self.best.drawn)]
        events = _folded(self.best.events)
        lines += [f"what happened ({len(events)} events, the last {min(len(events), EVENTS_SHOWN)}):"]
        lines += [f"  {at_s:9.4f} s  {text}" for at_s, text in events[-EVENTS_SHOWN:]]
        return "\n".join(lines)


def _folded(events: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Of confirmations in a row the last one."""
    folded: list[tuple[float, str]] = []
    for event in events:
        if folded and event[1].startswith("confirmed") and folded[-1][1].startswith("confirmed"):
            folded[-1] = event
        else:
            folded.append(event)
    return folded
