"""Derives the jobs of a ManagedLedger from its spec: kinds, schedules and parameters. Pure.

The operator does not import the jobs; `known_jobs` has the parameters of each kind.
"""

from dataclasses import dataclass

from quire_operator.api.bookie import Bookie
from quire_operator.api.jobs_spec import OFFLOAD_JOB, Analytics, DataJob, Offload, OffloadFormat
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.quantities import duration_ms, quantity_bytes
from quire_operator.builders.naming import BROKER, child_name
from quire_operator.builders.settings import broker_ports, metadata_url
from quire_operator.generated.known_jobs import KINDS

JOB_FOLDER = "/etc/quire/job"
PARAMETERS_FILE, SETTINGS_FILE = "params.json", "quire.toml"
Parameter = str | int | list[str]
_ALWAYS_SET = frozenset({"runId", "metadata", "config", "http"})
SET_FOR_DATA_JOBS = _ALWAYS_SET
SET_FOR_ANALYSES = _ALWAYS_SET | {"output"}
SET_FOR_OFFLOAD = _ALWAYS_SET | {
    *("target", "region", "endpoint", "topics", "afterTime", "afterSize", "rate", "format", "table", "keyBuckets")
}
"""Parameters that have their own field, so that `params` may not set them."""


@dataclass(frozen=True, slots=True)
class JobWanted:
    """One job of a ManagedLedger."""

    name: str
    kind: str
    schedule: str | None
    suspend: bool
    credentials: str | None
    """Name of the Secret with credentials."""
    of: Offload | DataJob


def jobs_of(resource: ManagedLedger) -> tuple[JobWanted, ...]:
    """Return all jobs, offload first."""
    spec, found = resource.spec, []
    if spec.offload is not None:
        found.append(_wanted(OFFLOAD_JOB, OFFLOAD_JOB, spec.offload))
    return (*found, *(_wanted(one.name, one.kind, one) for one in (*spec.analytics, *spec.jobs)))


def _wanted(name: str, kind: str, of: Offload | DataJob) -> JobWanted:
    credentials = None if of.credentials_ref is None else of.credentials_ref.name
    return JobWanted(name, kind, of.schedule, of.suspend, credentials, of)


def broker_http(resource: ManagedLedger) -> str:
    """Return the URL of the brokers' HTTP port, with TLS if available."""
    meta, ports = resource.meta, broker_ports(resource.spec.brokers)
    scheme = "https" if "https" in ports else "http"
    return f"{scheme}://{child_name(meta.name, BROKER)}.{meta.namespace}.svc:{ports[scheme]}"


def parameters(resource: ManagedLedger, pool: Bookie, job: JobWanted) -> dict[str, Parameter]:
    """Return the content of params.json for a run. It has no secrets: credentials are in variables and files."""
    found: dict[str, Parameter] = {
        "metadata": metadata_url(pool.spec.metadata),
        "config": f"{JOB_FOLDER}/{SETTINGS_FILE}",
        "http": broker_http(resource),
    }
    namespace = resource.spec.namespace
    if isinstance(job.of, Offload):
        return found | _of_offload(job.of, namespace)
    return found | _of_data_job(job.of, namespace)


def _of_offload(offload: Offload, namespace: str) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {"target": offload.target.rstrip("/"), "topics": [f"{namespace}/*"]}
    if offload.region is not None:
        found["region"] = offload.region
    if offload.endpoint is not None:
        found["endpoint"] = offload.endpoint
    if offload.after.time is not None:
        found["afterTime"] = f"{-(-duration_ms(offload.after.time) // 1000)}s"
    if offload.after.size is not None:
        found["afterSize"] = quantity_bytes(offload.after.size)
    if offload.rate is not None:
        found["rate"] = quantity_bytes(offload.rate)
    if offload.format is not OffloadFormat.SEGMENT and offload.table is not None:
        found |= {
            "format": offload.format.value.lower(),
            "table": offload.table.name,
            "keyBuckets": offload.table.key_buckets,
        }
    return found | _free(OFFLOAD_JOB, offload.params)


def _free(kind: str, params: dict[str, str]) -> dict[str, Parameter]:
    """Return the parameters of `params`; those with several values are split at commas."""
    lists = KINDS[kind].lists if kind in KINDS else frozenset()
    return {
        name: [one.strip() for one in value.split(",") if one.strip()] if name in lists else value
        for name, value in sorted(params.items())
    }


def _of_data_job(job: DataJob, namespace: str) -> dict[str, Parameter]:
    """Return the parameters of an analysis or another job. Topics without a namespace belong to this one.

    Kinds that do not require topics get all.
    """
    known = KINDS.get(job.kind)
    found = _free(job.kind, job.params)
    if isinstance(job, Analytics):
        found["output"] = job.output
    topics = found.get("topics")
    if isinstance(topics, list):
        found["topics"] = [topic if "/" in topic else f"{namespace}/{topic}" for topic in topics]
    elif known is not None and "topics" in known.lists - known.required and "messages" not in found:
        found["topics"] = [f"{namespace}/*"]
    return found
