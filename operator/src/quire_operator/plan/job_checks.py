"""What is wrong with a job that no CEL rule can see. Pure. A faulty job does not run; everything else goes on."""

import difflib
import re

from quire_operator.api.jobs_spec import DRIVER_MEMORY, EXECUTOR_MEMORY, OFFLOAD_JOB, Analytics, SparkLauncher
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.quantities import quantity_mib
from quire_operator.api.shared import Resources
from quire_operator.builders.job_parameters import SET_FOR_ANALYSES, SET_FOR_OFFLOAD, JobWanted
from quire_operator.builders.job_runs import SET_HERE
from quire_operator.builders.known_jobs import KINDS
from quire_operator.plan.job_slots import schedule_fault
from quire_operator.plan.jobs_seen import JobsSeen

MEMORY_MIB_MIN = 1024
"""Half of it is the JVM's, and Spark does not start in less than 450 MiB."""
_PLACE = re.compile(r"^(file:///|(s3a?|gs|az)://[^/\s@?#])[^\s@?#]*$")
"""Where an analysis may write: what the jobs take."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_SECRETS = frozenset(
    {
        *(("secret", "key"), ("access", "key"), ("account", "key"), ("private", "key"), ("api", "key")),
        *(("secret",), ("password",), ("passwd",), ("passphrase",), ("token",), ("credential",), ("credentials",)),
        *(("sas", "token"), ("sas",), ("jaas",)),
    }
)
"""Words for secrets in the key of a setting, which is cut at dots, dashes, underscores and humps."""
_ABOUT = frozenset(
    {
        *("file", "path", "provider", "providers", "class", "type", "mechanism", "ref", "enabled", "endpoint"),
        *("url", "uri", "ms", "interval", "ratio", "wait", "length"),
    }
)
"""Behind such a word, or at the key's end: the value is about a secret and none. `quire jobs run` has the same rule."""
_NAMES = re.compile(
    r"spark\.kubernetes\.(?:(?:driver|executor)\.(?:secrets|secretKeyRef|label|annotation)|kerberos\.tokenSecret)\."
)
"""Their values are names and paths: of a Secret, say."""
_USER_IN_URL = re.compile(r"://[^/\s@?#,]*:[^/\s@?#,]*@|\b(?:https?|ftp)://[^/\s@?#,]+@", re.IGNORECASE)
"""A password, or a token in its place. What stands there alone in other schemes is a name: abfss://container@account."""
_QUERY_NAME = re.compile(r"[?&;]([^=&;\s]+)=[^&;\s]")
_SIGNATURES = ("sig", "signature", "apikey")


def job_faults(resource: ManagedLedger, job: JobWanted, seen: JobsSeen, image: str | None) -> list[str]:
    """Sentences, each with the value and what to do; empty: it can run."""
    found = [] if job.schedule is None else list(filter(None, [schedule_fault(job.schedule)]))
    if isinstance(job.of, Analytics):
        found += _of_analysis(job.of)
    else:
        found += _parameters(OFFLOAD_JOB, job.of.params, SET_FOR_OFFLOAD)
    if job.credentials is not None and seen.secrets.get(job.credentials) is None:
        found.append(
            f"credentialsRef: there is no Secret {job.credentials} in this namespace: make it, with AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY or what else the store asks for"
        )
    return found + _passwords(resource, job) + _of_spark(resource, seen, image)


def _passwords(resource: ManagedLedger, job: JobWanted) -> list[str]:
    """URLs with a password, a token or a signature in them; the value is not repeated."""
    fields = {f"params: {name}": value for name, value in job.of.params.items()}
    fields |= {f"spark.conf: {key}": value for key, value in resource.spec.spark.conf.items()}
    if isinstance(job.of, Analytics):
        fields["output"] = job.of.output
    else:
        table = "" if job.of.table is None else job.of.table.name
        fields |= {"target": job.of.target, "endpoint": job.of.endpoint or "", "table.name": table}
    return [
        f"{name} is a URL with a secret in it: leave user, password, token and signature out, and put them into the "
        "Secret of credentialsRef"
        for name, value in sorted(fields.items())
        if _is_open_secret(value)
    ]


def _is_open_secret(value: str) -> bool:
    names = _QUERY_NAME.findall(value) if "://" in value else []
    return bool(_USER_IN_URL.search(value)) or any(
        holds_secret(name) or name.lower().endswith(_SIGNATURES) for name in names
    )


def _of_analysis(analytics: Analytics) -> list[str]:
    others = sorted(KINDS.keys() - {OFFLOAD_JOB})
    if analytics.kind == OFFLOAD_JOB:
        return ["kind 'offload' is no analysis: it is declared as spec.offload"]
    if analytics.kind not in KINDS:
        return [f"kind {analytics.kind!r} is none{_close(analytics.kind, others)}; there are: {', '.join(others)}"]
    found = _parameters(analytics.kind, analytics.params, SET_FOR_ANALYSES)
    if not _PLACE.match(analytics.output) and not _is_open_secret(analytics.output):
        found.append(
            f"output {analytics.output!r} is no place: write s3://bucket/folder, gs://..., az://... or file:///folder"
        )
    return found


def _parameters(kind: str, given: dict[str, str], set_here: frozenset[str]) -> list[str]:
    """Of a kind that is known: what nobody knows, what has a field of its own, and what is missing."""
    known, found = KINDS[kind], []
    for name in sorted(given):
        if name in set_here:
            found.append(f"params: {name} is set by the operator: leave it out")
        elif name not in known.parameters:
            found.append(f"params: {name} is no parameter of {kind}{_close(name, sorted(known.parameters))}")
    found += [
        f"params: {name} is missing, {kind} needs it" for name in sorted(known.required - given.keys() - set_here)
    ]
    return found


def _close(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _of_spark(resource: ManagedLedger, seen: JobsSeen, image: str | None) -> list[str]:
    spec = resource.spec
    spark, found = spec.spark, []
    if image is None:
        found.append("spark.image: this operator was started without --jobs-image: name the image of quire-jobs")
    for key in sorted(spark.conf):
        if key in SET_HERE:
            found.append(f"spark.conf: {key} follows from another field of the spec: leave it out")
        elif not key.startswith("spark."):
            found.append(f"spark.conf: {key} is no setting of Spark: they begin with spark.")
        elif holds_secret(key):
            found.append(
                f"spark.conf: {key} is a secret, which whoever may read the spec or a run's pods would know: leave it "
                "out, and put it into the Secret of credentialsRef (AWS_SECRET_ACCESS_KEY, ...), whose keys become "
                "variables of driver and executors"
            )
    sizes = [("driver", spark.driver.resources, DRIVER_MEMORY)]
    sizes += [("executors", spark.executors.resources, EXECUTOR_MEMORY)] if spark.executors.replicas else []
    for name, resources, default in sizes:
        found += _memory(f"spark.{name}.resources", resources, default)
    if spark.launcher is SparkLauncher.SPARK_APPLICATION:
        if not seen.applications:
            found.append(
                "spark.launcher is SparkApplication and no Spark operator is installed (or this one may not list "
                "its resources): install one, or set it to Job"
            )
        elif not spark.executors.replicas:
            found.append("spark.launcher SparkApplication needs executors: set executors.replicas, or launcher to Job")
    authentication = spec.brokers.authentication
    if authentication is not None and seen.token_key is None:
        found.append(
            f"brokers.authentication: Secret {authentication.token_key_secret} has neither jobs.token nor "
            "operator.token: add a token of a role that may administer the namespace"
        )
    return found


def holds_secret(key: str) -> bool:
    """Whether a setting of Spark is one that a spec may not hold."""
    words = [word.lower() for word in _WORD.findall(key)]
    if not words or words[-1] in _ABOUT or _NAMES.match(key):
        return False
    ends = (at + size for size in (2, 1) for at in range(len(words)) if tuple(words[at : at + size]) in _SECRETS)
    end = next(ends, None)  # of `secret key` the longer one counts: what it is about stands behind both
    return end is not None and not (end < len(words) and words[end] in _ABOUT)


def _memory(field: str, resources: Resources, default: str) -> list[str]:
    given = resources.limits.get("memory") or resources.requests.get("memory") or default
    try:
        mib = quantity_mib(given)
    except ValueError as error:
        return [f"{field}: memory {error}"]
    if mib >= MEMORY_MIB_MIN:
        return []
    return [f"{field}: memory {given} is too little for Spark: 1Gi or more, half of it is the JVM's"]
