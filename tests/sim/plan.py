"""The faults of a run, drawn as a list before it begins, so that a shrinker can omit parts of it.

A scenario draws its steps from a separate source of randomness, passes them to `Plan.choose` and carries out the
returned ones. `Plan.events` has a readable log for the analysis of a failing seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """One planned event, `at_s` after the faults begin. The meaning of `who`, `other` and `value` depends on `kind`."""

    at_s: float
    kind: str
    who: str = ""
    other: str = ""
    value: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.at_s:7.3f} s  {self.kind}", self.who, self.other, f"{self.value:g}" if self.value else ""]
        return " ".join(word for word in words if word)


@dataclass(slots=True)
class Plan:
    """Selects the drawn steps that are carried out. `calm`: none. `kept`: only those with these numbers (None: all).

    `span`: the fraction of its duration for which a scenario runs.
    """

    calm: bool = False
    kept: frozenset[int] | None = None
    span: float = 1.0
    drawn: list[Step] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    def choose(self, steps: Sequence[Step]) -> list[Step]:
        """Return the selected steps in order of time. May be called several times in a run."""
        first = len(self.drawn)
        self.drawn += steps
        if self.calm:
            return []
        chosen = [step for number, step in enumerate(steps, first) if self.kept is None or number in self.kept]
        return sorted(chosen, key=lambda step: step.at_s)

    def seconds(self, drawn_s: float) -> float:
        """Return the duration after the reduction by `span`."""
        return drawn_s * self.span
