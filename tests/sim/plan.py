"""What a run is to suffer, drawn as a list before it begins: so that a shrinker can leave parts of it out.

A scenario draws its steps from a source of their own, hands them to `Plan.choose` and carries out what comes back. What
happens is noted in `Plan.events`, in words, for whoever looks at a failing seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """One planned thing, `at_s` after the faults begin. What `who`, `other` and `value` mean depends on the kind."""

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
    """Which of the drawn steps happen. `calm`: none at all. `kept`: only those with these numbers (None: all).

    `span`: the share of its duration for which a scenario runs.
    """

    calm: bool = False
    kept: frozenset[int] | None = None
    span: float = 1.0
    drawn: list[Step] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    def choose(self, steps: Sequence[Step]) -> list[Step]:
        """Those that are to happen, in order of time. May be called several times in a run."""
        first = len(self.drawn)
        self.drawn += steps
        if self.calm:
            return []
        chosen = [step for number, step in enumerate(steps, first) if self.kept is None or number in self.kept]
        return sorted(chosen, key=lambda step: step.at_s)

    def seconds(self, drawn_s: float) -> float:
        """How long it lasts."""
        return drawn_s * self.span
