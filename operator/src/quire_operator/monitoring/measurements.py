"""What is counted while the operator runs: passes, their errors, and what resources said when they were last listed.

Bounded by the number of resources. Times are the loop's, but for those of operations, which stand in resources.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from quire_operator.monitoring.prometheus import Family, Histogram
from quire_operator.plan.operations import seconds_of

HANGS_AFTER_S = 600.0
"""A pass has timeouts on everything it asks: one that takes so long will never end."""
_TRUTHS = {"True": 1.0, "False": 0.0}
UNKNOWN = -1.0


class AboutResource(Protocol):
    """The key of a pass."""

    @property
    def kind(self) -> str:
        """`Bookie` or `ManagedLedger`."""


KeyT = TypeVar("KeyT", bound=AboutResource)


@dataclass(frozen=True, slots=True)
class JobSaid:
    """What a ManagedLedger's status said of one job. Times in seconds since the epoch."""

    name: str
    kind: str
    state: str
    last_success_s: float | None
    took_s: float | None
    """Of its latest run that ended."""


@dataclass(slots=True)
class ResourceSaid:
    """What one resource's status said."""

    phase: str
    conditions: dict[str, float]
    operation: tuple[str, str] | None
    """Type and step."""
    since_s: float | None = None
    """When the operation began, in seconds since the epoch."""
    step_since_s: float | None = None
    jobs: tuple[JobSaid, ...] = ()


@dataclass(slots=True)
class Measurements:
    """One for the process."""

    passes: dict[str, Histogram] = field(default_factory=dict)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    """By kind of resource and class of the error."""
    resources: dict[tuple[str, str, str], ResourceSaid] = field(default_factory=dict)
    """By kind, namespace and name."""
    _under_way: dict[object, float] = field(default_factory=dict)

    def measured(self, work: Callable[[KeyT], Awaitable[float | None]]) -> Callable[[KeyT], Awaitable[float | None]]:
        """The same work, counted."""

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
        """All resources of a kind, as they were listed; those that are gone are forgotten."""
        others = {key: said for key, said in self.resources.items() if key[0] != kind}
        found = {(kind, item["metadata"]["namespace"], item["metadata"]["name"]): _said(item) for item in items}
        self.resources = others | found

    def longest_pass_s(self, now_s: float) -> float:
        """For how long the oldest pass under way has been going on; 0 without one."""
        return max((now_s - began_s for began_s in self._under_way.values()), default=0.0)

    def families(self, now_s: float, wall_s: float) -> list[Family]:
        """Everything as readings; `now_s` by the loop, `wall_s` since the epoch."""
        passes = tuple(({"kind": kind}, histogram) for kind, histogram in sorted(self.passes.items()))
        errors = tuple(
            ({"kind": kind, "error": error}, float(count)) for (kind, error), count in sorted(self.errors.items())
        )
        return [
            Family("quire_operator_reconcile_seconds", "histogram", "How long a pass over a resource took.", passes),
            Family("quire_operator_reconcile_errors_total", "counter", "Passes that failed.", errors),
            _gauge("quire_operator_passes_under_way", "Passes that go on now.", len(self._under_way)),
            _gauge("quire_operator_longest_pass_seconds", "Age of the oldest of them.", self.longest_pass_s(now_s)),
            *self._of_resources(wall_s),
        ]

    def _of_resources(self, wall_s: float) -> list[Family]:
        phases, conditions, steps, ages, step_ages = [], [], [], [], []
        for (kind, namespace, name), said in sorted(self.resources.items()):
            who = {"kind": kind, "namespace": namespace, "name": name}
            phases.append(({**who, "phase": said.phase}, 1.0))
            conditions += [({**who, "type": about}, value) for about, value in sorted(said.conditions.items())]
            if said.operation is None:
                continue
            what = {**who, "type": said.operation[0]}
            steps.append(({**what, "step": said.operation[1]}, 1.0))
            if said.since_s is not None:
                ages.append((what, max(0.0, wall_s - said.since_s)))
            if said.step_since_s is not None:
                step_ages.append((what, max(0.0, wall_s - said.step_since_s)))
        return [
            *self._of_jobs(),
            Family("quire_operator_resource_phase", "gauge", "1 for the phase of each resource.", tuple(phases)),
            Family(
                "quire_operator_resource_condition",
                "gauge",
                "Conditions of each resource: 1 true, 0 false, -1 unknown.",
                tuple(conditions),
            ),
            Family("quire_operator_operation", "gauge", "1 for the step of each operation under way.", tuple(steps)),
            Family("quire_operator_operation_seconds", "gauge", "Age of each operation.", tuple(ages)),
            Family("quire_operator_operation_step_seconds", "gauge", "Age of its present step.", tuple(step_ages)),
        ]

    def _of_jobs(self) -> list[Family]:
        """By resource and job."""
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
            Family("quire_operator_job_state", "gauge", "1 for the state of each job.", tuple(states)),
            Family(
                "quire_operator_job_last_success_timestamp_seconds",
                "gauge",
                "When a run last ended well, since the epoch.",
                tuple(successes),
            ),
            Family("quire_operator_job_run_seconds", "gauge", "How long the latest ended run took.", tuple(lengths)),
        ]


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, (({}, float(value)),))


def _said(item: Mapping[str, Any]) -> ResourceSaid:
    status = item.get("status") or {}
    operation = status.get("operation")
    conditions = {
        one["type"]: _TRUTHS.get(one["status"], UNKNOWN) for one in status.get("conditions", ()) if one.get("type")
    }
    return ResourceSaid(
        str(status.get("phase") or status.get("state") or "Pending"),
        conditions,
        (operation["type"], operation["step"]) if operation else None,
        _time(operation, "startedAt"),
        _time(operation, "stepStartedAt"),
        tuple(_job(row) for row in status.get("jobs") or ()),
    )


def _job(row: Mapping[str, Any]) -> JobSaid:
    began_s, ended_s = _time(row, "startedAt"), _time(row, "endedAt")
    took_s = None if began_s is None or ended_s is None else max(0.0, ended_s - began_s)
    return JobSaid(str(row.get("name")), str(row.get("kind")), str(row.get("state")), _time(row, "lastSuccess"), took_s)


def _time(operation: Mapping[str, Any] | None, key: str) -> float | None:
    """None for what somebody made no time of by hand."""
    try:
        return seconds_of(str((operation or {})[key]))
    except (KeyError, ValueError):
        return None
