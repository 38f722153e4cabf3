"""Jobs on Spark as people ask about them: what they do, the log of a driver, and a run now.

What is shown is the status that the operator writes. A run is asked for by an annotation of the ManagedLedger, so it
needs no more than the right to change that.
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
"""The operator writes to the same object; somebody else's change is read again, and ours made once more."""
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
        """Of the ManagedLedger."""
        return str(self.owner["metadata"]["name"])

    @property
    def name(self) -> str:
        """`offload`, or that of an analysis."""
        return str(self.row["name"])


async def show(cluster: Cluster, owner: str | None) -> tuple[Any, str]:
    """The jobs of a ManagedLedger, or of all of the namespace. OperatorError: there is no such resource."""
    found = [one for one in await _jobs(cluster) if owner is None or one.owner_name == _plain(owner)]
    if owner is not None and await cluster.get(managed_ledger_path(cluster.namespace, _plain(owner))) is None:
        raise OperatorError(f"there is no ManagedLedger {_plain(owner)} in namespace {cluster.namespace}")
    rows = [{"managedLedger": one.owner_name, **one.row} for one in found]
    if not found:
        whose = f"ManagedLedger {_plain(owner)}" if owner else f"no ManagedLedger of namespace {cluster.namespace}"
        return rows, f"{whose} has {'no' if owner else 'any'} jobs: spec.offload and spec.analytics declare them"
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
    """The driver's log of a job's newest run, or of that of a slot, to `write`. OperatorError: there is none."""
    job = await find(cluster, name)
    selector = f"{OWNER_LABEL}={job.owner_name},{JOB_LABEL}={job.name}"
    if slot is not None:
        selector += f",{SLOT_LABEL}={stamp(slot)}"
    pods = await cluster.list(collection("v1", "Pod", cluster.namespace), selector)
    driver = newest_driver(pods)
    if driver is None:
        which = f"{job.name} of slot {slot}" if slot is not None else job.name
        said = f"; it is {job.row.get('state')}: {job.row.get('reason') or 'no reason given'}"
        raise OperatorError(f"there is no pod of a run of {which}{said}")
    pod = str(driver["metadata"]["name"])
    await cluster.stream_log(pod, CONTAINER, write, lines=lines, follow=follow)
    return {"pod": pod, "slot": driver["metadata"]["labels"].get(SLOT_LABEL)}, ""


async def run(cluster: Cluster, name: str, now: datetime) -> tuple[Any, str]:
    """Ask for a run now. One that goes on is waited for. OperatorError."""
    for attempt in range(CONFLICTS_MAX):
        job = await find(cluster, name)
        metadata = job.owner["metadata"]
        moment = due(job.row, now)
        wish = with_wish((metadata.get("annotations") or {}).get(RUN_ANNOTATION), job.name, moment)
        patch = {"metadata": {"annotations": {RUN_ANNOTATION: wish}, "resourceVersion": metadata["resourceVersion"]}}
        try:
            await cluster.merge(managed_ledger_path(cluster.namespace, job.owner_name), patch)
        except ConflictError:
            if attempt == CONFLICTS_MAX - 1:
                raise
            continue
        text = f"{job.owner_name}/{job.name}: a run of {moment} is asked for; `kubectl quire jobs` shows it"
        return {"managedLedger": job.owner_name, "job": job.name, "slot": moment}, text
    raise AssertionError("the last attempt returns or raises")


async def find(cluster: Cluster, name: str) -> JobFound:
    """A job by its name, or as `orders/offload`. OperatorError names those that there are."""
    owner, _, job = _plain(name).rpartition("/")
    everything = await _jobs(cluster)
    found = [one for one in everything if one.name == job and owner in ("", one.owner_name)]
    known = ", ".join(f"{one.owner_name}/{one.name}" for one in everything) or "none"
    if not found:
        raise OperatorError(f"there is no job {name} in namespace {cluster.namespace}; there are: {known}")
    if len(found) > 1:
        raise OperatorError(f"several jobs are called {job}; say {' or '.join(f'{o.owner_name}/{job}' for o in found)}")
    return found[0]


async def _jobs(cluster: Cluster) -> list[JobFound]:
    owners = await finding.resources(cluster, "ManagedLedger")
    return [JobFound(owner, row) for owner in owners for row in (owner.get("status") or {}).get("jobs", ())]


def _plain(name: str) -> str:
    return name.removeprefix("managedledger/")


def newest_driver(pods: list[Manifest]) -> Manifest | None:
    """The pod that was made last; executors are none."""
    key, value = _EXECUTOR
    drivers = [pod for pod in pods if pod["metadata"].get("labels", {}).get(key) != value]
    return max(drivers, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def stamp(slot: str) -> str:
    """A slot as its label has it; given so, or as the time that `kubectl quire jobs` shows. OperatorError."""
    if _STAMP.fullmatch(slot):
        return slot
    try:
        moment: datetime | None = datetime.fromisoformat(slot)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise OperatorError(f"--slot {slot}: expected a time as `kubectl quire jobs` shows it, 2026-01-31T04:00:00Z")
    moment = moment.astimezone(UTC)
    return moment.strftime("%Y%m%dt%H%M%S" if moment.second else "%Y%m%dt%H%M")


def due(row: ReadManifest, now: datetime) -> str:
    """The slot of a run that is asked for now: later than that of the latest run, and not of a time before the job was
    there; the operator's clock, which said both, may be another."""
    last, since = row.get("slot"), row.get("since")
    moment = now.astimezone(UTC).replace(microsecond=0)
    if since is not None:
        moment = max(moment, datetime.fromisoformat(str(since)))
    if last is not None:
        moment = max(moment, datetime.fromisoformat(str(last)) + timedelta(seconds=1))
    return moment.strftime(_SECONDS)


def with_wish(annotation: str | None, job: str, moment: str) -> str:
    """The annotation with this wish instead of an older one of the same job; those of others stay."""
    entries = filter(None, (one.strip() for one in (annotation or "").split(",")))
    others = [one for one in entries if one.partition("@")[0] != job]
    return ",".join([*others, f"{job}@{moment}"])


def runs_of(pods: list[Manifest]) -> Mapping[str, Any]:
    """For the report: what each driver left, by its pod."""
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
