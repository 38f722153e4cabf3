"""The commands for Spark jobs: their state, the log of a driver, and starting a run.

The state comes from the status that the operator writes. A run is requested by an annotation of the ManagedLedger, so
it requires only the permission to change that.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import CONTAINER, JOB_LABEL, OWNER_LABEL, RUN_ANNOTATION, SLOT_LABEL
from quire_operator.cluster.paths import collection, managed_ledger_path
from quire_operator.errors import ConflictError, OperatorError
from quire_operator.kubectl import finding
from quire_operator.kubectl.access import Cluster
from quire_operator.kubectl.tables import table
from quire_operator.kubectl.terminal import on_one_line

LOG_LINES = 2000
CONFLICTS_MAX = 5
"""The operator writes to the same object; after a conflict it is read again and the change is repeated."""
_EXECUTOR = ("spark-role", "executor")
_STAMP = re.compile(r"\d{8}t\d{4}(\d\d)?")
_SECONDS = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class JobFound:
    """A job of a ManagedLedger. `row`: its row in the status."""

    owner: Manifest
    row: Manifest

    @property
    def owner_name(self) -> str:
        """Name of the ManagedLedger."""
        return str(self.owner["metadata"]["name"])

    @property
    def name(self) -> str:
        """`offload`, or the name in `analytics` or `jobs`."""
        return str(self.row["name"])


async def show(cluster: Cluster, owner: str | None) -> tuple[Any, str]:
    """Show the jobs of a ManagedLedger, or of all in the namespace. OperatorError if the resource does not exist."""
    found = [one for one in await _jobs(cluster) if owner is None or one.owner_name == _plain(owner)]
    if owner is not None and await cluster.get(managed_ledger_path(cluster.namespace, _plain(owner))) is None:
        raise OperatorError(f"ManagedLedger {_plain(owner)} not found in namespace {cluster.namespace}")
    rows = [{"managedLedger": one.owner_name, **one.row} for one in found]
    if not found:
        whose = f"ManagedLedger {_plain(owner)} has" if owner else f"namespace {cluster.namespace} has"
        return rows, f"{whose} no jobs: declare them in spec.offload, spec.analytics and spec.jobs"
    cells = [
        (
            *(one.owner_name, one.name, one.row.get("kind"), one.row.get("state"), one.row.get("slot")),
            *(one.row.get("lastSuccess"), one.row.get("nextSlot"), one.row.get("runId"), one.row.get("reason")),
        )
        for one in found
    ]
    headers = ("MANAGEDLEDGER", "JOB", "KIND", "STATE", "SLOT", "LAST SUCCESS", "NEXT", "RUN", "REASON")
    outputs = [
        on_one_line(f"{one.owner_name}/{one.name} wrote {url}") for one in found for url in one.row.get("outputs", ())
    ]
    return rows, "\n".join([table(headers, cells), *outputs])


async def log(
    cluster: Cluster, name: str, write: Callable[[bytes], object], *, slot: str | None, lines: int, follow: bool
) -> tuple[Any, str]:
    """Write the driver's log of a job's newest run, or of the run of a slot. OperatorError if there is none."""
    job = await find(cluster, name)
    selector = f"{OWNER_LABEL}={job.owner_name},{JOB_LABEL}={job.name}"
    if slot is not None:
        selector += f",{SLOT_LABEL}={stamp(slot)}"
    pods = await cluster.list(collection("v1", "Pod", cluster.namespace), selector)
    driver = newest_driver(pods)
    if driver is None:
        which = f"{job.name} of slot {slot}" if slot is not None else job.name
        said = f"; it is {job.row.get('state')}: {job.row.get('reason') or 'no reason given'}"
        raise OperatorError(f"no pod of a run of {which}{said}")
    pod = str(driver["metadata"]["name"])
    await cluster.stream_log(pod, CONTAINER, write, lines=lines, follow=follow)
    return {"pod": pod, "slot": driver["metadata"]["labels"].get(SLOT_LABEL)}, ""


async def run(cluster: Cluster, name: str, now: datetime) -> tuple[Any, str]:
    """Request a run now; it starts after an active one has ended. Raises OperatorError."""
    for attempt in range(CONFLICTS_MAX):
        job = await find(cluster, name)
        metadata = job.owner["metadata"]
        moment = due(job.row, now)
        request = with_request((metadata.get("annotations") or {}).get(RUN_ANNOTATION), job.name, moment)
        patch = {"metadata": {"annotations": {RUN_ANNOTATION: request}, "resourceVersion": metadata["resourceVersion"]}}
        try:
            await cluster.merge(managed_ledger_path(cluster.namespace, job.owner_name), patch)
        except ConflictError:
            if attempt == CONFLICTS_MAX - 1:
                raise
            continue
        text = f"{job.owner_name}/{job.name}: requested a run of {moment}; `kubectl quire jobs` shows it"
        return {"managedLedger": job.owner_name, "job": job.name, "slot": moment}, text
    raise AssertionError("the last attempt returns or raises")


async def find(cluster: Cluster, name: str) -> JobFound:
    """Return a job by name, or by `orders/offload`. OperatorError with the declared jobs."""
    owner, _, job = _plain(name).rpartition("/")
    everything = await _jobs(cluster)
    found = [one for one in everything if one.name == job and owner in ("", one.owner_name)]
    known = ", ".join(f"{one.owner_name}/{one.name}" for one in everything) or "none"
    if not found:
        raise OperatorError(f"job {name} not found in namespace {cluster.namespace}; declared jobs: {known}")
    if len(found) > 1:
        raise OperatorError(f"several jobs are named {job}; use {' or '.join(f'{o.owner_name}/{job}' for o in found)}")
    return found[0]


async def _jobs(cluster: Cluster) -> list[JobFound]:
    owners = await finding.resources(cluster, "ManagedLedger")
    return [JobFound(owner, row) for owner in owners for row in (owner.get("status") or {}).get("jobs", ())]


def _plain(name: str) -> str:
    return name.removeprefix("managedledger/")


def newest_driver(pods: list[Manifest]) -> Manifest | None:
    """Return the driver pod that was created last; executors are ignored."""
    key, value = _EXECUTOR
    drivers = [pod for pod in pods if pod["metadata"].get("labels", {}).get(key) != value]
    return max(drivers, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def stamp(slot: str) -> str:
    """Convert a slot to the format of its label, from that format or a time of `kubectl quire jobs`. OperatorError."""
    if _STAMP.fullmatch(slot):
        return slot
    try:
        moment: datetime | None = datetime.fromisoformat(slot)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise OperatorError(f"--slot {slot}: not a time; use one from `kubectl quire jobs`, e.g. 2026-01-31T04:00:00Z")
    moment = moment.astimezone(UTC)
    return moment.strftime("%Y%m%dt%H%M%S" if moment.second else "%Y%m%dt%H%M")


def due(row: ReadManifest, now: datetime) -> str:
    """Return the slot of a run that is requested now.

    It is later than that of the latest run, and not before the job was declared: both times come from the operator,
    whose clock may differ.
    """
    last, since = row.get("slot"), row.get("since")
    moment = now.astimezone(UTC).replace(microsecond=0)
    if since is not None:
        moment = max(moment, datetime.fromisoformat(str(since)))
    if last is not None:
        moment = max(moment, datetime.fromisoformat(str(last)) + timedelta(seconds=1))
    return moment.strftime(_SECONDS)


def with_request(annotation: str | None, job: str, moment: str) -> str:
    """Return the annotation with this request instead of an older one of the same job; those of others stay."""
    entries = filter(None, (one.strip() for one in (annotation or "").split(",")))
    others = [one for one in entries if one.partition("@")[0] != job]
    return ",".join([*others, f"{job}@{moment}"])


def runs_of(pods: list[Manifest]) -> Mapping[str, Any]:
    """Return the termination message of each driver, by pod, for the report."""
    found: dict[str, Any] = {}
    for pod in pods:
        if JOB_LABEL not in pod["metadata"].get("labels", {}):
            continue
        for container in (pod.get("status") or {}).get("containerStatuses", ()):
            ended = (container.get("state") or {}).get("terminated")
            if ended is not None:
                found[pod["metadata"]["name"]] = {
                    "exitCode": ended.get("exitCode"),
                    "said": _said(ended.get("message")),
                }
    return found


def _said(message: str | None) -> Any:
    try:
        return json.loads(message or "null")
    except ValueError:
        return message
