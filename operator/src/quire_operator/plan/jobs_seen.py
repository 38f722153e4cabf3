"""What was seen of the runs of a ManagedLedger's jobs. Values only, and how the last words of a driver are read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api.managed_ledger import OUTPUTS_MAX, JobState

REASON_MAX = 1000
"""Of a run. Some come from other operators, with whole traces of Java: longer than the API server takes in a status."""
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED})


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run: a Job or a SparkApplication."""

    name: str
    uid: str
    job: str
    slot_s: float
    """Seconds since the epoch."""
    api_version: str
    kind: str
    state: JobState
    """Pending, Running, Succeeded or Failed."""
    reason: str = ""
    pod: str | None = None
    """Its driver's latest."""
    started_at: str | None = None
    ended_at: str | None = None
    outputs: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def ended(self) -> bool:
        """Nothing of it runs any more."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Refusal:
    """The object of a run could not be made: by a quota, an admission webhook, a namesake."""

    reason: str
    at_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class JobsSeen:
    """One look."""

    runs: tuple[RunSeen, ...] = ()
    drivers: tuple[str, ...] = ()
    """Pods of drivers that have not ended."""
    applications: tuple[str, ...] = ()
    """API versions of SparkApplications that are served, the preferred one first."""
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    """A digest of what each named Secret has; None: there is none."""
    token_key: str | None = None
    """Key of the token that jobs show brokers."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """By job: the latest one of its run."""


@dataclass(frozen=True, slots=True)
class Said:
    """A driver's last words."""

    reason: str
    outputs: tuple[str, ...] = ()


def said(text: str) -> Said | None:
    """Out of a termination message: the run's summary, or what stands there for people. None: nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    try:
        found = json.loads(lines[-1])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return Said(lines[-1].removeprefix("quire: ")[:REASON_MAX])
    return Said(_reason(found)[:REASON_MAX], _outputs(found.get("outputs")))


def _reason(summary: dict[str, Any]) -> str:
    """The error, the first problems, or what was done."""
    if summary.get("error"):
        return str(summary["error"])
    problems = [one for one in _list(summary.get("problems")) if isinstance(one, dict)]
    if problems:
        first = "; ".join(f"{one.get('subject', '?')}: {one.get('reason', '?')}" for one in problems[:3])
        return first + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
    counts = summary.get("counts")
    if not isinstance(counts, dict):
        return ""
    return ", ".join(f"{str(name).replace('_', ' ')} {value}" for name, value in list(counts.items())[:8])


def _outputs(value: object) -> tuple[str, ...]:
    return tuple(str(one)[:1024] for one in _list(value)[:OUTPUTS_MAX])


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
