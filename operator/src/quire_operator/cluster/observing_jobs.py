"""Observes the runs of a ManagedLedger's jobs: Jobs, SparkApplications, driver pods, and the required Secrets.

Reads only, and only if jobs are declared or were before. Of Secrets only a digest is kept, no values.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quire_operator.api.managed_ledger import JobState, ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.job_parameters import jobs_of
from quire_operator.builders.job_runs import Slot
from quire_operator.builders.naming import FIELD_MANAGER, JOB_LABEL, OWNER_LABEL, SLOT_LABEL
from quire_operator.builders.spark_applications import APACHE, KIND, KUBEFLOW
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.lost_volumes import last_words
from quire_operator.cluster.memory import Cache
from quire_operator.cluster.paths import collection, object_path
from quire_operator.errors import KubeError
from quire_operator.plan.jobs_observation import ENDED, REASON_MAX, JobsObservation, ObservedRun, parse_termination

_log = logging.getLogger("quire.operator")
TOKEN_KEYS = ("jobs.token", "operator.token")
"""Keys in the Secret with the brokers' token key; the first existing one is used."""
_KUBEFLOW_STATES = {
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "SUBMISSION_FAILED": JobState.FAILED,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDING": JobState.RUNNING,
    "FAILING": JobState.RUNNING,
}
_APACHE_FAILURES = frozenset(
    {
        *("Failed", "SchedulingFailure", "DriverEvicted"),
        *("DriverStartTimedOut", "DriverReadyTimedOut", "ExecutorsStartTimedOut"),
    }
)
_APACHE_RUNNING = frozenset(
    {
        *("DriverStarted", "DriverReady", "InitializedBelowThresholdExecutors", "RunningHealthy"),
        *("RunningWithPartialCapacity", "RunningWithBelowThresholdExecutors"),
        *("Succeeded", *_APACHE_FAILURES),
    }
)
"""Includes the final states: pods still exist then."""
_APACHE_RELEASED = frozenset({"ResourceReleased", "TerminatedWithoutReleaseResources"})


async def observe_jobs(kube: Kube, resource: ManagedLedger, cache: Cache, now_s: float) -> JobsObservation:
    """Observe the jobs. Raises KubeError, UnreachableError."""
    wanted = jobs_of(resource)
    if not wanted and not resource.status.jobs:
        return JobsObservation()
    namespace, selector = resource.meta.namespace, f"{OWNER_LABEL}={resource.meta.name}"
    applications = await _applications(kube, cache, now_s)
    jobs, pods = await asyncio.gather(
        kube.list(collection("batch/v1", "Job", namespace), selector),
        kube.list(collection("v1", "Pod", namespace), f"{selector},app.kubernetes.io/managed-by={FIELD_MANAGER}"),
    )
    of_applications = await asyncio.gather(*(_listed(kube, one, namespace, selector) for one in applications))
    runs = [run for job in jobs if (run := _of_job(resource, job, pods)) is not None]
    served = []
    for version, found in zip(applications, of_applications, strict=True):
        if found is not None:
            served.append(version)
            runs += [run for one in found if (run := _of_application(resource, version, one, pods)) is not None]
    drivers = [pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    return JobsObservation(
        tuple(runs),
        tuple(pod["metadata"]["name"] for pod in drivers),
        tuple(served),
        await _secrets(kube, namespace, (job.credentials for job in wanted if job.credentials is not None)),
        await _token_key(kube, resource),
    )


async def _applications(kube: Kube, cache: Cache, now_s: float) -> list[str]:
    """Return the API versions of SparkApplications that the API server serves."""
    found = []
    for version in (KUBEFLOW, APACHE):
        try:
            known = await cache.get(kube, f"/apis/{version}", now_s)
        except KubeError:
            continue
        if known is not None and any(one.get("kind") == KIND for one in known.get("resources", ())):
            found.append(version)
    return found


async def _listed(kube: Kube, version: str, namespace: str, selector: str) -> list[Manifest] | None:
    """List SparkApplications; None without permission, which counts as not installed."""
    try:
        return await kube.list(collection(version, KIND, namespace), selector)
    except KubeError as error:
        _log.warning("ignoring SparkApplications of %s: %s", version, error)
        return None


async def _secrets(kube: Kube, namespace: str, names: Iterable[str]) -> dict[str, str | None]:
    wanted = sorted(set(names))
    found = await asyncio.gather(*(kube.get(object_path("v1", "Secret", namespace, name)) for name in wanted))
    return {name: None if one is None else digest(one) for name, one in zip(wanted, found, strict=True)}


def digest(secret: Manifest) -> str:
    """Return a digest of a Secret's data. It is keyed by the Secret's uid, so it reveals nothing about the values."""
    data = secret.get("data") or {}
    text = "\n".join(f"{key}={value}" for key, value in sorted(data.items()))
    return hmac.new(secret["metadata"]["uid"].encode(), text.encode(), hashlib.sha256).hexdigest()[:16]


async def _token_key(kube: Kube, resource: ManagedLedger) -> str | None:
    authentication = resource.spec.brokers.authentication
    if authentication is None:
        return None
    path = object_path("v1", "Secret", resource.meta.namespace, authentication.token_key_secret)
    data = (await kube.get(path) or {}).get("data") or {}
    return next((key for key in TOKEN_KEYS if base64.b64decode(data.get(key) or "").strip()), None)


@dataclass(frozen=True, slots=True)
class _RunState:
    """The state of a run according to its object."""

    state: JobState
    reason: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    certain: bool = False
    """The reason takes precedence over the driver's message."""


def _of_job(resource: ManagedLedger, job: Manifest, pods: list[Manifest]) -> ObservedRun | None:
    """Convert a Job; its conditions determine whether it has ended."""
    status, driver = job.get("status", {}), _driver(job, pods)
    ends = {one["type"]: one for one in status.get("conditions", ()) if one.get("status") == "True"}
    began = status.get("startTime")
    if "Complete" in ends:
        ended_at = status.get("completionTime") or ends["Complete"].get("lastTransitionTime")
        at = _RunState(JobState.SUCCEEDED, "", began, ended_at)
    elif "Failed" in ends:
        why = ends["Failed"]
        late = why.get("reason") == "DeadlineExceeded"
        reason = "it took longer than spark.activeDeadline" if late else why.get("message", why.get("reason", ""))
        at = _RunState(JobState.FAILED, reason, began, why.get("lastTransitionTime"), certain=late)
    else:
        runs = driver is not None and driver.get("status", {}).get("phase") == "Running"
        reason = "its driver failed and is being restarted" if status.get("failed") else ""
        at = _RunState(JobState.RUNNING if runs else JobState.PENDING, reason, began)
    return _run(resource, job, "batch/v1", "Job", driver, at)


def _of_application(resource: ManagedLedger, version: str, item: Manifest, pods: list[Manifest]) -> ObservedRun | None:
    """Convert a SparkApplication of either operator."""
    status = item.get("status") or {}
    at = _apache(status) if version == APACHE else _kubeflow(status)
    return _run(resource, item, version, KIND, _driver(item, pods), at)


def _run(
    resource: ManagedLedger, item: Manifest, api_version: str, kind: str, driver: Manifest | None, at: _RunState
) -> ObservedRun | None:
    """Return a run; None if the object does not belong to this resource, but to a former or another owner."""
    metadata = item["metadata"]
    labels = metadata.get("labels", {})
    if resource.meta.uid not in [one.get("uid") for one in metadata.get("ownerReferences", ())]:
        return None
    try:
        slot = Slot.parse(labels[SLOT_LABEL])
    except (KeyError, ValueError):
        return None
    words = None if driver is None else parse_termination(_message(driver))
    reason = at.reason
    outputs: tuple[str, ...] = ()
    if at.state in ENDED and words is not None:
        outputs = words.outputs
        reason = at.reason if at.certain else words.reason or at.reason
    elif at.state is JobState.PENDING and driver is not None:
        reason = _why_pending(driver) or at.reason
    return ObservedRun(
        metadata["name"],
        metadata["uid"],
        labels.get(JOB_LABEL, ""),
        slot.at_s,
        api_version,
        kind,
        at.state,
        reason[:REASON_MAX],
        pod=None if driver is None else driver["metadata"]["name"],
        started_at=at.started_at,
        ended_at=at.ended_at,
        outputs=outputs,
        deleting="deletionTimestamp" in metadata,
    )


def _kubeflow(status: dict[str, Any]) -> _RunState:
    reported = status.get("applicationState") or {}
    state = _KUBEFLOW_STATES.get(reported.get("state", ""), JobState.PENDING)
    ended_at = status.get("terminationTime") if state in ENDED else None
    return _RunState(state, reported.get("errorMessage", ""), status.get("lastSubmissionAttemptTime"), ended_at)


def _apache(status: dict[str, Any]) -> _RunState:
    """Return the state of an application of Apache's operator.

    A released application has its result in the numbered history. Before its release it has not ended, because a failed
    one may be scheduled again.
    """
    entries = (status.get("stateTransitionHistory") or {}).items()
    history = [one for _, one in sorted(entries, key=lambda item: int(item[0]))]
    deciding = status.get("currentState") or {}
    if deciding.get("currentStateSummary") in _APACHE_RELEASED:
        ends = [one for one in history if one.get("currentStateSummary") in {"Succeeded", *_APACHE_FAILURES}]
        deciding = ends[-1] if ends else deciding
        state = JobState.SUCCEEDED if deciding.get("currentStateSummary") == "Succeeded" else JobState.FAILED
    else:
        state = JobState.RUNNING if deciding.get("currentStateSummary") in _APACHE_RUNNING else JobState.PENDING
    began = _whole_seconds(history[0].get("lastTransitionTime")) if history else None
    ended_at = _whole_seconds(deciding.get("lastTransitionTime")) if state in ENDED else None
    return _RunState(state, deciding.get("message") or "", began, ended_at)


def _whole_seconds(time: str | None) -> str | None:
    """Remove fractions of seconds, which Kubernetes does not write, but this operator does."""
    return None if not time else time.split(".")[0].rstrip("Z") + "Z"


def _driver(item: Manifest, pods: list[Manifest]) -> Manifest | None:
    """Return the latest driver of a run, as a failed one may have been restarted."""
    which = {key: item["metadata"].get("labels", {}).get(key) for key in (JOB_LABEL, SLOT_LABEL)}
    mine = [pod for pod in pods if which.items() <= pod["metadata"]["labels"].items()]
    return max(mine, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)


def _message(pod: Manifest) -> str:
    """Return the termination message of the pod, from the first container that has one."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        ended = (status.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"])
    return ""


def _why_pending(pod: Manifest) -> str:
    """Return why a driver does not start, such as a failed image pull or a failed scheduling."""
    words = last_words(pod)
    if words:
        return words
    for one in pod.get("status", {}).get("conditions", ()):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message", one.get("reason", "")))
    return ""
