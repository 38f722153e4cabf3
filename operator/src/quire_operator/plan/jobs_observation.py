"""The observed runs of the jobs of a ManagedLedger. Values only, and the parser of a driver's termination message."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_operator.api.managed_ledger import OUTPUTS_MAX, JobState

REASON_MAX = 1000
"""Limit of a run's reason. Other operators report whole Java stack traces, too long for a status field."""
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED})


@dataclass(frozen=True, slots=True)
class ObservedRun:
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
    """The latest pod of its driver."""
    started_at: str | None = None
    ended_at: str | None = None
    outputs: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def ended(self) -> bool:
        """Whether the run has finished."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the object of a run could not be created: a quota, an admission webhook, or another object of its name."""

    reason: str
    at_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class JobsObservation:
    """The jobs of a ManagedLedger, observed once."""

    runs: tuple[ObservedRun, ...] = ()
    drivers: tuple[str, ...] = ()
    """Pods of drivers that have not ended."""
    applications: tuple[str, ...] = ()
    """Served API versions of SparkApplications, the preferred one first."""
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    """Digest of each named Secret; None if it does not exist."""
    token_key: str | None = None
    """Key of the token with which jobs authenticate to brokers."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Latest refusal of a run, by job."""


@dataclass(frozen=True, slots=True)
class TerminationMessage:
    """The termination message of a driver."""

    reason: str
    outputs: tuple[str, ...] = ()


def parse_termination(text: str) -> TerminationMessage | None:
    """Parse a termination message: the JSON summary of the run, or else plain text. None if it is empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    try:
        found = json.loads(lines[-1])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return TerminationMessage(lines[-1].removeprefix("quire: ")[:REASON_MAX])
    return TerminationMessage(_reason(found)[:REASON_MAX], _outputs(found.get("outputs")))


def _reason(summary: dict[str, Any]) -> str:
    """Return the error, the first problems, or the counts of a summary."""
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
