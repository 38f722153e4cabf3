"""Counts reconciliations and their errors, and keeps the state of resources as last listed, for metrics.

Bounded by the number of resources. Times are the event loop's, except those of operations, which are from resources.
A scrape reads the counts and builds metric families of `prometheus_client` from them.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from quire_operator.api.declared import DECLARED_KINDS
from quire_operator.plan.operations import seconds_of

PASS_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""A reconciliation without changes takes about 50 ms; one that waits for unresponsive ports takes seconds."""
HANGS_AFTER_S = 600.0
"""All requests of a reconciliation have timeouts, so one that takes this long hangs."""
_TRUTHS = {"True": 1.0, "False": 0.0}
UNKNOWN = -1.0


_RESOURCE = ("kind", "namespace", "name")
_JOB = ("namespace", "name", "job", "kind")


class AboutResource(Protocol):
    """The key of a reconciliation."""

    @property
    def kind(self) -> str:
        """The kind, such as `Bookie`."""


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

    phase: str | None
    """None of a kind that has only conditions."""
    conditions: dict[str, float]
    operation: tuple[str, str] | None
    """Type and step."""
    since_s: float | None = None
    """When the operation began, in seconds since the epoch."""
    step_since_s: float | None = None
    jobs: tuple[JobState, ...] = ()


@dataclass(slots=True)
class Histogram:
    """A histogram of durations."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(PASS_BOUNDS_S) + 1))
    """Counts by bucket, not cumulative; the last is for durations above every bound."""
    sum_s: float = 0.0

    def observe(self, took_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(PASS_BOUNDS_S, took_s)] += 1
        self.sum_s += took_s

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound with the number of durations up to it."""
        found, below = [], 0
        for bound, count in zip((*map(repr, PASS_BOUNDS_S), "+Inf"), self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


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
        found = {(kind, item["metadata"]["namespace"], item["metadata"]["name"]): _state(kind, item) for item in items}
        self.resources = others | found

    def longest_pass_s(self, now_s: float) -> float:
        """Return the age of the oldest running reconciliation; 0 if there is none."""
        return max((now_s - began_s for began_s in self._under_way.values()), default=0.0)

    def families(self, now_s: float, wall_s: float) -> Iterator[Metric]:
        """Yield all metrics. `now_s` is by the event loop, `wall_s` since the epoch."""
        text = "Duration of reconciliations."
        passes = HistogramMetricFamily("quire_operator_reconcile_seconds", text, labels=["kind"])
        for kind, histogram in sorted(self.passes.items()):
            passes.add_metric([kind], histogram.buckets(), histogram.sum_s)
        text = "Failed reconciliations."
        errors = CounterMetricFamily("quire_operator_reconcile_errors_total", text, labels=["kind", "error"])
        for (kind, error), count in sorted(self.errors.items()):
            errors.add_metric([kind, error], count)
        yield passes
        yield errors
        yield GaugeMetricFamily("quire_operator_passes_under_way", "Running reconciliations.", len(self._under_way))
        yield GaugeMetricFamily(
            "quire_operator_longest_pass_seconds",
            "Age of the oldest running reconciliation.",
            self.longest_pass_s(now_s),
        )
        yield from self._of_jobs()
        yield from self._of_resources(wall_s)

    def _of_resources(self, wall_s: float) -> Iterator[Metric]:
        phases = _gauges("quire_operator_resource_phase", "1 for the current phase of a resource.", *_RESOURCE, "phase")
        text = "Conditions of resources: 1 true, 0 false, -1 unknown."
        conditions = _gauges("quire_operator_resource_condition", text, *_RESOURCE, "type")
        steps = _gauges(
            "quire_operator_operation", "1 for the current step of an operation.", *_RESOURCE, "type", "step"
        )
        ages = _gauges("quire_operator_operation_seconds", "Age of an operation.", *_RESOURCE, "type")
        text = "Age of the current step of an operation."
        step_ages = _gauges("quire_operator_operation_step_seconds", text, *_RESOURCE, "type")
        for who, state in sorted(self.resources.items()):
            if state.phase is not None:
                phases.add_metric([*who, state.phase], 1.0)
            for about, value in sorted(state.conditions.items()):
                conditions.add_metric([*who, about], value)
            if state.operation is None:
                continue
            operation, step = state.operation
            steps.add_metric([*who, operation, step], 1.0)
            if state.since_s is not None:
                ages.add_metric([*who, operation], max(0.0, wall_s - state.since_s))
            if state.step_since_s is not None:
                step_ages.add_metric([*who, operation], max(0.0, wall_s - state.step_since_s))
        yield from (phases, conditions, steps, ages, step_ages)

    def _of_jobs(self) -> Iterator[Metric]:
        """Yield the metrics of jobs, by resource and job."""
        states = _gauges("quire_operator_job_state", "1 for the current state of a job.", *_JOB, "state")
        text = "When a run last succeeded, in seconds since the epoch."
        successes = _gauges("quire_operator_job_last_success_timestamp_seconds", text, *_JOB)
        lengths = _gauges("quire_operator_job_run_seconds", "Duration of the latest ended run.", *_JOB)
        for (_, namespace, name), resource in sorted(self.resources.items()):
            for job in resource.jobs:
                who = [namespace, name, job.name, job.kind]
                states.add_metric([*who, job.state], 1.0)
                if job.last_success_s is not None:
                    successes.add_metric(who, job.last_success_s)
                if job.took_s is not None:
                    lengths.add_metric(who, job.took_s)
        yield from (states, successes, lengths)


def _gauges(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _state(kind: str, item: Mapping[str, Any]) -> ResourceState:
    phase_less = kind in DECLARED_KINDS
    status = item.get("status") or {}
    operation = status.get("operation")
    conditions = {
        one["type"]: _TRUTHS.get(one["status"], UNKNOWN) for one in status.get("conditions", ()) if one.get("type")
    }
    return ResourceState(
        None if phase_less else str(status.get("phase") or status.get("state") or "Pending"),
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
