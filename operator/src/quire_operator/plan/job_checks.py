"""Finds errors of jobs that CEL rules cannot detect. Pure. A faulty job does not run; everything else continues."""

import difflib
import re

from quire_operator.api.jobs_spec import (
    DRIVER_MEMORY,
    EXECUTOR_MEMORY,
    OFFLOAD_JOB,
    Analytics,
    DataJob,
    SparkLauncher,
)
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.quantities import quantity_mib
from quire_operator.api.shared import Resources
from quire_operator.builders.job_parameters import SET_FOR_ANALYSES, SET_FOR_DATA_JOBS, SET_FOR_OFFLOAD, JobWanted
from quire_operator.builders.job_runs import SET_HERE
from quire_operator.generated.known_jobs import KINDS
from quire_operator.plan.job_slots import schedule_fault
from quire_operator.plan.jobs_observation import JobsObservation

MEMORY_MIB_MIN = 1024
"""Half of the memory is for the JVM, and Spark does not start with less than 450 MiB."""
_PLACE = re.compile(r"^(file:///|(s3a?|gs|az)://[^/\s@?#])[^\s@?#]*$")
"""URLs to which an analysis may write; the jobs accept the same."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_SECRETS = frozenset(
    {
        *(("secret", "key"), ("access", "key"), ("account", "key"), ("private", "key"), ("api", "key")),
        *(("secret",), ("password",), ("passwd",), ("passphrase",), ("token",), ("credential",), ("credentials",)),
        *(("sas", "token"), ("sas",), ("jaas",)),
    }
)
"""Words that mark a setting as secret. Its key is split at dots, dashes, underscores and camel case."""
_ABOUT = frozenset(
    {
        *("file", "path", "provider", "providers", "class", "type", "mechanism", "ref", "enabled", "endpoint"),
        *("url", "uri", "ms", "interval", "ratio", "wait", "length"),
    }
)
"""After such a word, or at the end of the key, these show that the value is not itself a secret.

`quire jobs run` has the same rule.
"""
_NAMES = re.compile(
    r"spark\.kubernetes\.(?:(?:driver|executor)\.(?:secrets|secretKeyRef|label|annotation)|kerberos\.tokenSecret)\."
)
"""Keys whose values are names or paths, for example of a Secret."""
_USER_IN_URL = re.compile(r"://[^/\s@?#,]*:[^/\s@?#,]*@|\b(?:https?|ftp)://[^/\s@?#,]+@", re.IGNORECASE)
"""A password in a URL, or a token in place of the user. Other schemes have a name there: abfss://container@account."""
_QUERY_NAME = re.compile(r"[?&;]([^=&;\s]+)=[^&;\s]")
_SIGNATURES = ("sig", "signature", "apikey")


def job_faults(resource: ManagedLedger, job: JobWanted, observed: JobsObservation, image: str | None) -> list[str]:
    """Return errors of the job, each with the value and the remedy. Empty if it can run."""
    found = [] if job.schedule is None else list(filter(None, [schedule_fault(job.schedule)]))
    if isinstance(job.of, DataJob):
        found += _of_data_job(job.of)
    else:
        found += _parameters(OFFLOAD_JOB, job.of.params, SET_FOR_OFFLOAD)
    if job.credentials is not None and observed.secrets.get(job.credentials) is None:
        found.append(
            f"credentialsRef: Secret {job.credentials} not found in this namespace: create it, with AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY or the keys that the object store requires"
        )
    return found + _passwords(resource, job) + _of_spark(resource, observed, image)


def _passwords(resource: ManagedLedger, job: JobWanted) -> list[str]:
    """Return errors for URLs that contain a password, a token or a signature, without repeating the value."""
    fields = {f"params: {name}": value for name, value in job.of.params.items()}
    fields |= {f"spark.conf: {key}": value for key, value in resource.spec.spark.conf.items()}
    if isinstance(job.of, Analytics):
        fields["output"] = job.of.output
    elif not isinstance(job.of, DataJob):
        table = "" if job.of.table is None else job.of.table.name
        fields |= {"target": job.of.target, "endpoint": job.of.endpoint or "", "table.name": table}
    return [
        f"{name} is a URL that contains a secret: remove user, password, token and signature, and put them into the "
        "Secret of credentialsRef"
        for name, value in sorted(fields.items())
        if _is_open_secret(value)
    ]


def _is_open_secret(value: str) -> bool:
    names = _QUERY_NAME.findall(value) if "://" in value else []
    return bool(_USER_IN_URL.search(value)) or any(
        holds_secret(name) or name.lower().endswith(_SIGNATURES) for name in names
    )


def _of_data_job(job: DataJob) -> list[str]:
    """Return errors of an analysis or another job: of its kind, its parameters and its output."""
    analysis = isinstance(job, Analytics)
    others = sorted(kind for kind in KINDS.keys() - {OFFLOAD_JOB} if _writes_reports(kind) is analysis)
    if job.kind == OFFLOAD_JOB:
        return ["kind 'offload' has its own field: declare it as spec.offload"]
    if job.kind not in KINDS:
        return [f"kind {job.kind!r} does not exist{_close(job.kind, others)}; use one of {', '.join(others)}"]
    if job.kind not in others:
        where = "writes no report: declare it in spec.jobs" if analysis else "is an analysis: declare it in analytics"
        return [f"kind {job.kind!r} {where}"]
    found = _parameters(job.kind, job.params, SET_FOR_ANALYSES if analysis else SET_FOR_DATA_JOBS)
    if isinstance(job, Analytics) and not _PLACE.match(job.output) and not _is_open_secret(job.output):
        found.append(
            f"output {job.output!r} is not a valid URL: use s3://bucket/folder, gs://..., az://... or file:///folder"
        )
    return found


def _writes_reports(kind: str) -> bool:
    return "output" in KINDS[kind].required


def _parameters(kind: str, given: dict[str, str], set_here: frozenset[str]) -> list[str]:
    """Return errors for parameters of a known kind that are unknown, have their own field, or are missing."""
    known, found = KINDS[kind], []
    for name in sorted(given):
        if name in set_here:
            found.append(f"params: {name} is set by the operator: remove it")
        elif name not in known.parameters:
            found.append(f"params: {name} is not a parameter of {kind}{_close(name, sorted(known.parameters))}")
    found += [
        f"params: {name} is missing; {kind} requires it" for name in sorted(known.required - given.keys() - set_here)
    ]
    return found


def _close(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _of_spark(resource: ManagedLedger, observed: JobsObservation, image: str | None) -> list[str]:
    spec = resource.spec
    spark, found = spec.spark, []
    if image is None:
        found.append("spark.image: not set, and the operator has no --jobs-image: set it to the image of quire-jobs")
    for key in sorted(spark.conf):
        if key in SET_HERE:
            found.append(f"spark.conf: {key} is set by another field of the spec: remove it")
        elif not key.startswith("spark."):
            found.append(f"spark.conf: {key} is not a Spark setting: their names begin with spark.")
        elif holds_secret(key):
            found.append(
                f"spark.conf: {key} is a secret, and readers of the spec or of a run's pods would see it: remove it, "
                "and put it into the Secret of credentialsRef (AWS_SECRET_ACCESS_KEY, ...), whose keys become "
                "environment variables of driver and executors"
            )
    sizes = [("driver", spark.driver.resources, DRIVER_MEMORY)]
    sizes += [("executors", spark.executors.resources, EXECUTOR_MEMORY)] if spark.executors.replicas else []
    for name, resources, default in sizes:
        found += _memory(f"spark.{name}.resources", resources, default)
    if spark.launcher is SparkLauncher.SPARK_APPLICATION:
        if not observed.applications:
            found.append(
                "spark.launcher is SparkApplication, but no Spark operator is installed (or this operator may not "
                "list its resources): install one, or set launcher to Job"
            )
        elif not spark.executors.replicas:
            found.append("spark.launcher SparkApplication needs executors: set executors.replicas, or launcher to Job")
    authentication = spec.brokers.authentication
    if authentication is not None and observed.token_key is None:
        found.append(
            f"brokers.authentication: Secret {authentication.token_key_secret} has neither jobs.token nor "
            "operator.token: add the token of an administrator of the namespace"
        )
    return found


def holds_secret(key: str) -> bool:
    """Return whether a Spark setting is a secret, which a spec may not contain."""
    words = [word.lower() for word in _WORD.findall(key)]
    if not words or words[-1] in _ABOUT or _NAMES.match(key):
        return False
    ends = (at + size for size in (2, 1) for at in range(len(words)) if tuple(words[at : at + size]) in _SECRETS)
    end = next(ends, None)  # `secret key` counts as one match: a word of _ABOUT follows both
    return end is not None and not (end < len(words) and words[end] in _ABOUT)


def _memory(field: str, resources: Resources, default: str) -> list[str]:
    given = resources.limits.get("memory") or resources.requests.get("memory") or default
    try:
        mib = quantity_mib(given)
    except ValueError as error:
        return [f"{field}: memory {error}"]
    if mib >= MEMORY_MIB_MIN:
        return []
    return [f"{field}: memory {given} is too little for Spark: set 1Gi or more; half of it is for the JVM"]
