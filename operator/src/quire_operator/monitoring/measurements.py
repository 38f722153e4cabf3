"""Counts reconciliations and their errors, and keeps the state of resources as last listed, for metrics.

Bounded by the number of resources. Times are the event loop's, except those of operations, which are from resources.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from quire_operator.monitoring.prometheus import Family, Histogram
from quire_operator.plan.operations import seconds_of

HANGS_AFTER_S = 600.0
"""All requests of a reconciliation have timeouts, so one that takes this long hangs."""
_TRUTHS = {"True": 1.0, "False": 0.0}
UNKNOWN = -1.0


class AboutResource(Protocol):
    """The key of a reconciliation."""

    @property
    def kind(self) -> str:
        """`Bookie` or `ManagedLedger`."""


KeyT = TypeVar("KeyT", bound=AboutResource)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of one job from the status of its ManagedLedger. Times in seconds since the epoch."""

    name: str
    kind: str
    state: str
    last_success_s: float | None
    took_s: float | None
    """Duration of its latest ended run."""


@dataclass(slots=True)
class ResourceState:
    """The state of one resource from its status."""

    phase: str
    conditions: dict[str, float]
    operation: tuple[str, str] | None
    """Type and step."""
    since_s: float | None = None
    """When the operation began, in seconds since the epoch."""
    step_since_s: float | None = None
    jobs: tuple[JobState, ...] = ()


@dataclass(slots=True)
class Measurements:
    """The measurements of the process."""

    passes: dict[str, Histogram] = field(default_factory=dict)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of errors by kind of resource and class of the error."""
    resources: dict[tuple[str, str, str], ResourceState] = field(default_factory=dict)
    """State of resources by kind, namespace and name."""
    _under_way: dict[object, float] = field(default_factory=dict)

    def measured(self, work: Callable[[KeyT], Awaitable[float | None]]) -> Callable[[KeyT], Awaitable[float | None]]:
        """Wrap work so that it is measured."""

        async def counted(key: KeyT) -> float | None:
            loop = asyncio.get_running_loop()
            began_s = self._under_way[key] = loop.time()
            try:
                return await work(key)
            except Exception as error:
                name = (key.kind, type(error).__name__)
                self.errors[name] = self.errors.get(name, 0) + 1
                raise
            finally:
                del self._under_way[key]
                self.passes.setdefault(key.kind, Histogram()).observe(loop.time() - began_s)

        return counted

    def note_resources(self, kind: str, items: Iterable[Mapping[str, Any]]) -> None:
        """Replace the state of all resources of a kind by the listed ones."""
        others = {key: state for key, state in self.resources.items() if key[0] != kind}
        found = {(kind, item["metadata"]["namespace"], item["metadata"]["name"]): _state(item) for item in items}
        self.resources = others | found

    def longest_pass_s(self, now_s: float) -> float:
        """Return the age of the oldest running reconciliation; 0 if there is none."""
        return max((now_s - began_s for began_s in self._under_way.values()), default=0.0)

    def families(self, now_s: float, wall_s: float) -> list[Family]:
        """Return all metrics. `now_s` is by the event loop, `wall_s` since the epoch."""
        passes = tuple(({"kind": kind}, histogram) for kind, histogram in sorted(self.passes.items()))
        errors = tuple(
            ({"kind": kind, "error": error}, float(count)) for (kind, error), count in sorted(self.errors.items())
        )
        return [
            Family("quire_operator_reconcile_seconds", "histogram", "Duration of reconciliations.", passes),
            Family("quire_operator_reconcile_errors_total", "counter", "Failed reconciliations.", errors),
            _gauge("quire_operator_passes_under_way", "Running reconciliations.", len(self._under_way)),
            _gauge(
                "quire_operator_longest_pass_seconds",
                "Age of the oldest running reconciliation.",
                self.longest_pass_s(now_s),
            ),
            *self._of_resources(wall_s),
        ]

    def _of_resources(self, wall_s: float) -> list[Family]:
        phases, conditions, steps, ages, step_ages = [], [], [], [], []
        for (kind, namespace, name), state in sorted(self.resources.items()):
            who = {"kind": kind, "namespace": namespace, "name": name}
            phases.append(({**who, "phase": state.phase}, 1.0))
            conditions += [({**who, "type": about}, value) for about, value in sorted(state.conditions.items())]
            if state.operation is None:
                continue
            what = {**who, "type": state.operation[0]}
            steps.append(({**what, "step": state.operation[1]}, 1.0))
            if state.since_s is not None:
                ages.append((what, max(0.0, wall_s - state.since_s)))
            if state.step_since_s is not None:
                step_ages.append((what, max(0.0, wall_s - state.step_since_s)))
        return [
            *self._of_jobs(),
            Family("quire_operator_resource_phase", "gauge", "1 for the current phase of a resource.", tuple(phases)),
            Family(
                "quire_operator_resource_condition",
                "gauge",
                "Conditions of resources: 1 true, 0 false, -1 unknown.",
                tuple(conditions),
            ),
            Family("quire_operator_operation", "gauge", "1 for the current step of an operation.", tuple(steps)),
            Family("quire_operator_operation_seconds", "gauge", "Age of an operation.", tuple(ages)),
            Family(
                "quire_operator_operation_step_seconds",
                "gauge",
                "Age of the current step of an operation.",
                tuple(step_ages),
            ),
        ]

    def _of_jobs(self) -> list[Family]:
        """Return the metrics of jobs, by resource and job."""
        states, successes, lengths = [], [], []
        for (_, namespace, name), resource in sorted(self.resources.items()):
            for job in resource.jobs:
                who = {"namespace": namespace, "name": name, "job": job.name, "kind": job.kind}
                states.append(({**who, "state": job.state}, 1.0))
                if job.last_success_s is not None:
                    successes.append((who, job.last_success_s))
                if job.took_s is not None:
                    lengths.append((who, job.took_s))
        return [
            Family("quire_operator_job_state", "gauge", "1 for the current state of a job.", tuple(states)),
            Family(
                "quire_operator_job_last_success_timestamp_seconds",
                "gauge",
                "When a run last succeeded, in seconds since the epoch.",
                tuple(successes),
            ),
            Family("quire_operator_job_run_seconds", "gauge", "Duration of the latest ended run.", tuple(lengths)),
        ]


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, (({}, float(value)),))


def _state(item: Mapping[str, Any]) -> ResourceState:
    status = item.get("status") or {}
    operation = status.get("operation")
    conditions = {
        one["type"]: _TRUTHS.get(one["status"], UNKNOWN) for one in status.get("conditions", ()) if one.get("type")
    }
    return ResourceState(
        str(status.get("phase") or status.get("state") or "Pending"),
        conditions,
        (operation["type"], operation["step"]) if operation else None,
        _time(operation, "startedAt"),
        _time(operation, "stepStartedAt"),
        tuple(_job(row) for row in status.get("jobs") or ()),
    )


def _job(row: Mapping[str, Any]) -> JobState:
    began_s, ended_s = _time(row, "startedAt"), _time(row, "endedAt")
    took_s = None if began_s is None or ended_s is None else max(0.0, ended_s - began_s)
    return JobState(
        str(row.get("name")), str(row.get("kind")), str(row.get("state")), _time(row, "lastSuccess"), took_s
    )


def _time(operation: Mapping[str, Any] | None, key: str) -> float | None:
    """Return a time of a status; None if it is missing, or invalid after a manual change."""
    try:
        return seconds_of(str((operation or {})[key]))
    except (KeyError, ValueError):
        return None
