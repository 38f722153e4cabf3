"""Plans the jobs of a ManagedLedger: which runs start, which are deleted, and their status. Pure.

Each job has at most one run at a time. A slot (a time of the schedule or of a request) has one run, identified by name,
so a repeated request gets the same run. Of missed slots only the latest counts. A run is recorded when it is
*observed*, not when it was created: an operator killed in between creates it again, which yields the same object.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quire_operator.api.conditions import Finding, Truth
from quire_operator.api.jobs_spec import JOBS_MAX, Analytics, DataJob, SparkLauncher
from quire_operator.api.managed_ledger import JobRow, JobState
from quire_operator.builders.job_access import job_access
from quire_operator.builders.job_parameters import JobWanted, jobs_of
from quire_operator.builders.job_runs import JobFacts, Slot, job_run, run_name
from quire_operator.builders.naming import RUN_ANNOTATION
from quire_operator.builders.spark_applications import application_run
from quire_operator.plan.actions import Action, Apply, DeleteRun, Emit, StartRun
from quire_operator.plan.job_checks import job_faults
from quire_operator.plan.job_slots import RequestedRuns, latest_slot_s, next_slot_s, requested_runs
from quire_operator.plan.jobs_observation import ENDED, ObservedRun, Refusal
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.operations import rfc3339, seconds_of

BUSY_S = 2.0
REFUSED_S = 30.0
"""Delay before a refused run is created again."""
STARTS_MAX = 5
"""In one reconciliation: after an outage, not all jobs start in the same second."""
CLOCKS_APART_S = 600.0
"""A request may be this much older than the job, because clocks differ; older requests were for a previous job."""
ENDING = "it is no longer declared: its runs are being stopped"
VANISHED = "its Job or SparkApplication was deleted before it ended"


@dataclass(frozen=True, slots=True)
class JobsPlan:
    """The plan for all jobs, from one observation."""

    actions: tuple[Action, ...] = ()
    rows: tuple[JobRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    requeue_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class _Job:
    """One job with its runs, its former status and its faults."""

    wanted: JobWanted
    former: JobRow | None
    runs: tuple[ObservedRun, ...]
    """The latest slot first."""
    faults: tuple[str, ...]
    refused: Refusal | None = None
    """The refusal of the run that is due."""

    @property
    def cannot_run(self) -> str:
        """Why no run can start; empty if one can."""
        return "; ".join(self.faults) or ("" if self.refused is None else self.refused.reason)

    def refused_for_s(self, now_s: float) -> float:
        """Return the seconds until a refused run is created again; 0 for now."""
        return 0.0 if self.refused is None else max(0.0, self.refused.at_s + REFUSED_S - now_s)

    @property
    def active(self) -> ObservedRun | None:
        return next((run for run in self.runs if not run.ended), None)

    @property
    def last_slot_s(self) -> float:
        """Slots up to this one are done; minus infinity if none is."""
        known = [run.slot_s for run in self.runs]
        if self.former is not None and self.former.slot is not None:
            known.append(seconds_of(self.former.slot))
        return max(known, default=float("-inf"))


def plan_jobs(observed: LedgerObservation, default_image: str | None, *, may_act: bool, ready: bool) -> JobsPlan:
    """Return the plan of all jobs.

    `may_act`: the resource is neither paused nor invalid. `ready`: a broker responds, and everything declared exists.
    """
    jobs = _jobs(observed, default_image)
    requests = requested_runs(
        observed.resource.meta.annotations.get(RUN_ANNOTATION),
        frozenset(job.wanted.name for job in jobs),
        observed.now_s,
    )
    due = {job.wanted.name: _due_s(job, requests, observed.now_s) for job in jobs}
    jobs = [job if due[job.wanted.name] is not None else replace(job, refused=None) for job in jobs]
    facts = [_facts(job, observed.now_s) for job in jobs]
    rows = tuple(_shown(row, job, due[row.name], ready=ready) for row, job in zip(facts, jobs, strict=True))
    findings = tuple(_findings(jobs, facts, rows, requests))
    actions: list[Action] = []
    if may_act:
        if jobs:
            cluster_mode = _api_version(observed) is not None
            actions += [Apply(child) for child in job_access(observed.resource, cluster_mode=cluster_mode)]
        actions += _cleaned(observed, jobs)
        actions += _started(observed, jobs, due, default_image) if ready else []
    # Events are emitted for a paused resource, too: they change nothing in the cluster.
    actions += [event for job, row in zip(jobs, facts, strict=True) for event in _events(job, row)]
    leaving = _leaving(observed, jobs)
    requeue_s = BUSY_S if leaving else _requeue_s(observed, jobs, due)
    return JobsPlan(tuple(actions), (*rows, *leaving), findings, requeue_s)


def _leaving(observed: LedgerObservation, jobs: list[_Job]) -> tuple[JobRow, ...]:
    """Return rows of jobs that are no longer declared, until their runs are gone.

    Without the rows, the next observation would not include their runs, and one that could not be deleted at once
    would continue.
    """
    known, there = {job.wanted.name for job in jobs}, {run.job for run in observed.jobs.runs}
    drivers = not jobs and bool(observed.jobs.drivers)
    former = [row for row in observed.resource.status.jobs if row.name not in known and (row.name in there or drivers)]
    return tuple(row.model_copy(update={"reason": ENDING}) for row in former[: JOBS_MAX - len(jobs)])


def ending(observed: LedgerObservation) -> tuple[tuple[Action, ...], str | None]:
    """Return deletions of all runs, because the namespace is being deleted, and a message while runs remain."""
    going = tuple(_deleted(run) for run in observed.jobs.runs if not run.deleting)
    left = [run.name for run in observed.jobs.runs if not run.ended] + list(observed.jobs.drivers)
    return going, f"stopping the runs of its jobs: {', '.join(left[:5])}" if left else None


def _jobs(observed: LedgerObservation, default_image: str | None) -> list[_Job]:
    image = observed.resource.spec.spark.image or default_image
    former = {row.name: row for row in observed.resource.status.jobs}
    found = []
    for wanted in jobs_of(observed.resource):
        runs = sorted((run for run in observed.jobs.runs if run.job == wanted.name), key=lambda run: -run.slot_s)
        faults = job_faults(observed.resource, wanted, observed.jobs, image)
        refused = observed.jobs.refused.get(wanted.name)
        found.append(_Job(wanted, former.get(wanted.name), tuple(runs), tuple(faults), refused))
    return found


def _due_s(job: _Job, requests: RequestedRuns, now_s: float) -> float | None:
    """Return the slot that should have a run and has none, or None."""
    wanted = job.wanted
    if job.faults:
        return None
    since_s = now_s if job.former is None else seconds_of(job.former.since)
    due_s = requests.slots_s.get(wanted.name, float("-inf"))
    if due_s < since_s - CLOCKS_APART_S:
        due_s = float("-inf")  # the annotation is older than the job, which was removed since or restored from a backup
    if wanted.schedule is not None and not wanted.suspend:
        latest_s = latest_slot_s(wanted.schedule, now_s)
        if latest_s is not None and latest_s > since_s:
            due_s = max(due_s, latest_s)
    return due_s if due_s > job.last_slot_s else None


def _api_version(observed: LedgerObservation) -> str | None:
    """Return the API version of the SparkApplications that are used for runs; None if runs are Jobs."""
    spark = observed.resource.spec.spark
    if spark.launcher is SparkLauncher.JOB or not spark.executors.replicas:
        return None
    return next(iter(observed.jobs.applications), None)


def _started(
    observed: LedgerObservation, jobs: Iterable[_Job], due: dict[str, float | None], default_image: str | None
) -> list[Action]:
    found: list[Action] = []
    image, version = observed.resource.spec.spark.image or default_image, _api_version(observed)
    for job in jobs:
        due_s = due[job.wanted.name]
        if due_s is None or job.active is not None or image is None or observed.pool is None:
            continue
        if job.refused_for_s(observed.now_s):
            continue
        facts, slot = JobFacts(observed.pool, image, observed.jobs.token_key), Slot(due_s)
        if version is None:
            made = job_run(observed.resource, facts, job.wanted, slot)
        else:
            made = application_run(observed.resource, facts, job.wanted, slot, version)
        name = run_name(observed.resource.meta.name, job.wanted.name, slot)
        event = Emit("RunStarted", f"{job.wanted.name}: {name}, of {slot.rfc3339}")
        found.append(StartRun(job.wanted.name, made, event))
        if len(found) >= STARTS_MAX:
            break
    return found


def _cleaned(observed: LedgerObservation, jobs: Iterable[_Job]) -> list[Action]:
    """Return deletions of ended runs beyond `runsKept`, and of all runs of jobs that are no longer declared."""
    kept = observed.resource.spec.spark.runs_kept
    going = []
    for job in jobs:
        going += [run for run in job.runs if run.ended][kept:]
    known = {job.wanted.name for job in jobs}
    going += [run for run in observed.jobs.runs if run.job not in known]
    return [_deleted(run) for run in going if not run.deleting]


def _deleted(run: ObservedRun) -> DeleteRun:
    return DeleteRun(run.api_version, run.kind, run.name, run.uid)


# ---- status and events
def _facts(job: _Job, now_s: float) -> JobRow:
    """Return the row of the job and its latest run, from the observation and the former status."""
    wanted = job.wanted
    row = job.former or JobRow(name=wanted.name, kind=wanted.kind, state=JobState.PENDING, since=rfc3339(now_s))
    following_s = None
    if wanted.schedule is not None and not wanted.suspend and not job.faults:
        following_s = next_slot_s(wanted.schedule, now_s)
    successes = [run.ended_at for run in job.runs if run.state is JobState.SUCCEEDED and run.ended_at]
    row = row.model_copy(
        update={
            "kind": wanted.kind,
            "next_slot": None if following_s is None else rfc3339(following_s),
            "last_success": max([*successes, *filter(None, [row.last_success])], default=None),
        }
    )
    latest = next(iter(job.runs), None)
    if latest is None or (row.slot is not None and latest.slot_s < seconds_of(row.slot)):
        return _remembered(row, now_s)
    ended_at = latest.ended_at
    if latest.ended and ended_at is None:
        ended_at = (row.ended_at if row.run_id == latest.name else None) or rfc3339(now_s)
    changes = {
        "state": latest.state,
        "reason": latest.reason,
        "run_id": latest.name,
        "slot": rfc3339(latest.slot_s),
        "pod": latest.pod,
        "started_at": latest.started_at,
        "ended_at": ended_at,
        "outputs": latest.outputs,
    }
    return row.model_copy(update=changes)


def _remembered(row: JobRow, now_s: float) -> JobRow:
    """Return the row of a job whose latest run no longer exists.

    A run that was in progress counts as failed. The result of an ended run is kept, even if a suspension or a fault
    replaced its state in between.
    """
    if row.slot is None:
        return row
    if row.ended_at is None:
        return row.model_copy(update={"state": JobState.FAILED, "reason": VANISHED, "ended_at": rfc3339(now_s)})
    if row.state in ENDED:
        return row
    good = row.last_success is not None and row.last_success >= row.ended_at
    return row.model_copy(update={"state": JobState.SUCCEEDED if good else JobState.FAILED, "reason": ""})


def _shown(row: JobRow, job: _Job, due_s: float | None, *, ready: bool) -> JobRow:
    """Return the row with the reason why the next run waits, if it does; conditions show how the latest run ended."""
    if job.active is not None:
        return row
    if job.cannot_run:
        return row.model_copy(update={"state": JobState.PENDING, "reason": job.cannot_run[:4096]})
    if due_s is not None and not ready:
        waits = f"the run of {rfc3339(due_s)} waits until a broker responds and everything declared exists"
        return row.model_copy(update={"state": JobState.PENDING, "reason": waits})
    if job.wanted.suspend:
        return row.model_copy(update={"state": JobState.SUSPENDED, "reason": "suspend is set"})
    if row.slot is None:
        waits = "waits for its first scheduled time" if job.wanted.schedule is not None else "runs on request"
        return row.model_copy(update={"state": JobState.PENDING, "reason": waits})
    return row


def _events(job: _Job, row: JobRow) -> list[Action]:
    """Return the event of a run that ended since the status was written."""
    former = job.former
    known = former is not None and former.run_id == row.run_id and former.ended_at is not None
    if row.ended_at is None or row.run_id is None or known:
        return []
    good = row.state is JobState.SUCCEEDED
    message = f"{row.name}: {row.run_id}: {row.reason}".rstrip(": ")
    return [Emit("RunSucceeded" if good else "RunFailed", message, warning=not good)]


def _findings(jobs: list[_Job], facts: list[JobRow], rows: Iterable[JobRow], requests: RequestedRuns) -> list[Finding]:
    verdicts: dict[str, list[tuple[str, _Verdict]]] = {}
    for job, fact, row in zip(jobs, facts, rows, strict=True):
        verdicts.setdefault(_condition(job.wanted), []).append((row.name, _verdict(job, fact, row.reason)))
    found = [_summed(kind, mine) for kind, mine in verdicts.items()]
    if requests.faults:
        message = f"annotation {RUN_ANNOTATION}: " + "; ".join(requests.faults)
        found.append(Finding(type="RunRequest", status=Truth.FALSE, reason="NotUnderstood", message=message[:4096]))
    return found


def _condition(job: JobWanted) -> str:
    """Return the type of the condition that reports the job."""
    if isinstance(job.of, Analytics):
        return "AnalyticsHealthy"
    return "JobsHealthy" if isinstance(job.of, DataJob) else "OffloadHealthy"


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: Truth
    reason: str
    message: str


def _verdict(job: _Job, row: JobRow, waits: str) -> _Verdict:
    """Return the health of one job: by its faults, else by its latest ended run. `waits`: why there is none yet."""
    if job.cannot_run:
        return _Verdict(Truth.FALSE, "CannotRun", job.cannot_run)
    if row.state is JobState.FAILED:
        return _Verdict(Truth.FALSE, "RunFailed", f"{row.run_id}: {row.reason}".rstrip(": "))
    ended = next((run for run in job.runs if run.ended), None)
    if ended is not None and ended.state is JobState.FAILED:
        return _Verdict(Truth.FALSE, "RunFailed", f"{ended.name}: {ended.reason}".rstrip(": "))
    if ended is not None or row.last_success is not None:
        return _Verdict(Truth.TRUE, "Succeeded", "")
    return _Verdict(Truth.UNKNOWN, "NoRunYet", waits)


def _summed(kind: str, verdicts: list[tuple[str, _Verdict]]) -> Finding:
    """Return one condition for several jobs: failures first, then unknown results, then successes."""
    for status in (Truth.FALSE, Truth.UNKNOWN, Truth.TRUE):
        mine = [(name, verdict) for name, verdict in verdicts if verdict.status is status]
        if mine:
            message = "; ".join(f"{name}: {verdict.message}" for name, verdict in mine if verdict.message)
            return Finding(type=kind, status=status, reason=mine[0][1].reason, message=message[:4096])
    raise AssertionError("no job has no verdict")


def _requeue_s(observed: LedgerObservation, jobs: Iterable[_Job], due: dict[str, float | None]) -> float:
    """Return the seconds until the next reconciliation: soon while a run is active or due, else at the next slot."""
    found = float("inf")
    for job in jobs:
        wait_s = job.refused_for_s(observed.now_s)
        if job.active is not None or (due[job.wanted.name] is not None and not wait_s):
            return BUSY_S
        if wait_s:
            found = min(found, wait_s)
        schedule = job.wanted.schedule
        if schedule is not None and not job.wanted.suspend and not job.faults:
            following_s = next_slot_s(schedule, observed.now_s)
            found = min(found, float("inf") if following_s is None else following_s - observed.now_s)
    return max(found, BUSY_S / 2)
