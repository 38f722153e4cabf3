"""Builds a run of a job as one object, a Kubernetes Job with the driver: names, pods of driver and executors. Pure.

All inputs of a run are annotations of its pods, mounted as files. So a run is one object, created in one request: no
crash leaves an incomplete one, and a change of the spec never affects an active run.

    driver      /etc/quire/job/   params.json, quire.toml, spark-defaults.conf, executor.json (the executors' pod)
    executors   /etc/quire/job/   quire.toml

Spark on Kubernetes, client mode: https://spark.apache.org/docs/latest/running-on-kubernetes.html
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from quire_operator.api import GROUP
from quire_operator.api.bookie import Bookie
from quire_operator.api.jobs_spec import DRIVER_MEMORY, EXECUTOR_MEMORY
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.quantities import duration_s, quantity_mib
from quire_operator.api.shared import Resources
from quire_operator.builders import Manifest
from quire_operator.builders.job_parameters import (
    JOB_FOLDER,
    PARAMETERS_FILE,
    SETTINGS_FILE,
    JobWanted,
    parameters,
)
from quire_operator.builders.merging import merged
from quire_operator.builders.naming import (
    CONTAINER,
    JOB_LABEL,
    JOBS,
    OWNER_LABEL,
    SLOT_LABEL,
    child,
    child_name,
    labels,
)
from quire_operator.builders.pods import (
    container_security,
    pod_security,
    with_credentials,
    with_pool_tokens,
    with_secret,
    with_secrets,
)
from quire_operator.builders.settings import (
    BROKER_TLS_FOLDER,
    BROKER_TOKEN,
    BROKER_TOKEN_FOLDER,
    broker_ports,
    client_access,
    metadata_access,
)
from quire_operator.builders.toml import toml_text

RUN_NAME_MAX = 47
"""Limit of Spark, which appends a number to name the executor pods; names of pods are host names."""
DEFAULTS_FILE, EXECUTOR_FILE = "spark-defaults.conf", "executor.json"
API_SERVER = "k8s://https://kubernetes.default.svc"
DRIVER_PORT, BLOCKS_PORT = 7078, 7079
"""Ports of the driver for executors, as configured by `quire jobs run`."""
TERMINATION_LOG = "/dev/termination-log"
TOKEN_FILE = "token"
SCRATCH = "/tmp"
RETRIES = 1
"""Retries of a failed driver, unless its exit code is one of USELESS_CODES."""
USELESS_CODES = (2, 3)
"""Exit codes of `quire jobs run` for wrong usage, and for errors that no retry fixes."""
GRACE_S = 60
"""Time for Spark to stop its executors."""
SET_HERE = frozenset(
    {
        *("spark.master", "spark.app.name", "spark.submit.deployMode", "spark.kubernetes.namespace"),
        *("spark.driver.host", "spark.driver.port", "spark.driver.blockManager.port", "spark.driver.memory"),
        *("spark.executor.instances", "spark.executor.cores", "spark.executor.memory", "spark.executor.memoryOverhead"),
        *("spark.kubernetes.container.image", "spark.kubernetes.driver.pod.name"),
        *("spark.kubernetes.executor.podTemplateFile", "spark.kubernetes.executor.podTemplateContainerName"),
        *("spark.kubernetes.executor.podNamePrefix", "spark.kubernetes.executor.disableConfigMap"),
        *("spark.kubernetes.authenticate.driver.serviceAccountName",),
    }
)
"""Spark settings that are set by fields; `spec.spark.conf` may not contain them."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Inputs of the builders in addition to the resource. Both resources are effective ones (`builders.effective`)."""

    pool: Bookie
    image: str
    token_key: str | None = None
    """Key in the Secret of `brokers.authentication` of the token with which jobs authenticate to brokers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The scheduled or requested time of a run."""

    at_s: float

    @property
    def stamp(self) -> str:
        """The time as `20260131t0400`, with seconds if they are not zero; part of names, and a label."""
        moment = datetime.fromtimestamp(int(self.at_s), UTC)
        return moment.strftime("%Y%m%dt%H%M%S" if moment.second else "%Y%m%dt%H%M")

    @property
    def rfc3339(self) -> str:
        """The time in the format of the command."""
        return datetime.fromtimestamp(int(self.at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @classmethod
    def parse(cls, stamp: str) -> "Slot":
        """Parse the value of a label. ValueError if it is invalid."""
        form = "%Y%m%dt%H%M%S" if len(stamp) > len("20260131t0400") else "%Y%m%dt%H%M"
        return cls(datetime.strptime(stamp, form).replace(tzinfo=UTC).timestamp())


def run_name(owner: str, job: str, slot: Slot) -> str:
    """Return `orders-offload-20260131t0400`; a name that is too long is cut and gets a digest of the whole."""
    whole = f"{owner}-{job}"
    space = RUN_NAME_MAX - len(slot.stamp) - 1
    if len(whole) > space:
        digest = hashlib.sha256(whole.encode()).hexdigest()[:6]
        whole = f"{whole[: space - 7].rstrip('-')}-{digest}"
    return f"{whole}-{slot.stamp}"


def run_labels(resource: ManagedLedger, job: JobWanted, slot: Slot) -> dict[str, str]:
    """Return the labels of a run's object and its driver."""
    own = {OWNER_LABEL: resource.meta.name, JOB_LABEL: job.name, SLOT_LABEL: slot.stamp}
    return labels(resource.meta.name, JOBS) | own


def executor_labels(resource: ManagedLedger, job: JobWanted, slot: Slot) -> dict[str, str]:
    """Return the labels of executors, without the one that the operator watches: there may be hundreds of executors."""
    found = run_labels(resource, job, slot)
    return {key: value for key, value in found.items() if key != "app.kubernetes.io/managed-by"}


def arguments(job: JobWanted, slot: Slot) -> list[str]:
    """Return the arguments of `quire` without the Spark master."""
    found = ["jobs", "run", job.kind, "--slot", slot.rfc3339, "--params", f"{JOB_FOLDER}/{PARAMETERS_FILE}", "--json"]
    return [*found, "--termination-log", TERMINATION_LOG]


def settings_text(pool: Bookie) -> str:
    """Return the configuration file of driver and executors: their access to the metadata and the bookies."""
    settings = metadata_access(pool.spec.metadata) | client_access(pool.spec)
    return toml_text(settings, "Made by quire-operator.")


def _memory(resources: Resources, default: str) -> str:
    return resources.limits.get("memory") or resources.requests.get("memory") or default


def memory_mib(resources: Resources, default: str) -> tuple[int, int]:
    """Return the MiB for the JVM, and for the rest of the pod (Python, Arrow): half each."""
    whole = quantity_mib(_memory(resources, default))
    heap = whole // 2
    return heap, whole - heap


def spark_settings(resource: ManagedLedger, facts: JobFacts, name: str) -> dict[str, str]:
    """Return the Spark settings of a driver in a Job that are set by fields."""
    spark = resource.spec.spark
    heap, _ = memory_mib(spark.driver.resources, DRIVER_MEMORY)
    found = {
        "spark.driver.memory": f"{heap}m",
    }
    if not spark.executors.replicas:
        return found
    return found | {
        "spark.kubernetes.container.image": facts.image,
        "spark.kubernetes.executor.podTemplateFile": f"{JOB_FOLDER}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": CONTAINER,
        "spark.kubernetes.executor.podNamePrefix": name,
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        **executor_settings(resource),
    }


def executor_settings(resource: ManagedLedger) -> dict[str, str]:
    """Return the number and size of executors, which Spark itself writes into their pods.

    A peer of a driver or an executor authenticates with a secret that Spark generates for each run.
    """
    executors = resource.spec.spark.executors
    heap, rest = memory_mib(executors.resources, EXECUTOR_MEMORY)
    found = {
        "spark.authenticate": "true",
        "spark.executor.instances": str(executors.replicas),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{rest}m",
    }
    return found | cores_settings("executor", executors.resources)


def cores_settings(whose: str, resources: Resources) -> dict[str, str]:
    """Return the settings for the CPU requests and limits of a `driver` or an `executor`."""
    amounts = {"request": resources.requests.get("cpu"), "limit": resources.limits.get("cpu")}
    return {f"spark.kubernetes.{whose}.{key}.cores": cpu for key, cpu in amounts.items() if cpu is not None}


def _properties(settings: dict[str, str]) -> str:
    """Return a Java properties file; the values are our own and need no escaping."""
    return "".join(f"{key} {value}\n" for key, value in sorted(settings.items()))


def _files(names: dict[str, str]) -> Manifest:
    """Return a volume with annotations as files; `names`: file by key of the annotation."""
    items = [{"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}} for key, file in names.items()]
    return {"name": "job", "downwardAPI": {"items": items, "defaultMode": 0o444}}


def _annotation(file: str) -> str:
    return f"job.{GROUP}/{file}"


def _pod(resource: ManagedLedger, facts: JobFacts, job: JobWanted, main: Manifest, files: dict[str, str]) -> Manifest:
    """Return the pod of a driver or an executor, with access only to its mounts."""
    spark = resource.spec.spark
    main = {
        "name": CONTAINER,
        "image": facts.image,
        "workingDir": SCRATCH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": SCRATCH},
        ],
        **main,
    }
    found: Manifest = {
        "serviceAccountName": child_name(resource.meta.name, JOBS),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": pod_security(),
        "containers": [main],
        "volumes": [_files({_annotation(file): file for file in files}), {"name": "tmp", "emptyDir": {}}],
    }
    if spark.node_selector:
        found["nodeSelector"] = dict(spark.node_selector)
    if spark.tolerations:
        found["tolerations"] = [dict(one) for one in spark.tolerations]
    return _with_access(found, resource, facts, job)


def _with_access(pod: Manifest, resource: ManagedLedger, facts: JobFacts, job: JobWanted) -> Manifest:
    """Mount certificates, tokens and credentials. Of the brokers' Secrets only what a client needs, never the keys."""
    brokers, pool = resource.spec.brokers, facts.pool.spec
    pod = with_pool_tokens(with_secrets(pod, pool.metadata, pool.tls), pool.authentication, BROKER_TOKEN)
    env: list[Manifest] = []
    if brokers.tls is not None and brokers.tls.secret_name is not None and "https" in broker_ports(brokers):
        pod = with_secret(pod, "broker-tls", brokers.tls.secret_name, BROKER_TLS_FOLDER, {"ca.crt": "ca.crt"})
        env.append({"name": "QUIRE_TLS_TRUST_CERTS", "value": f"{BROKER_TLS_FOLDER}/ca.crt"})
    if brokers.authentication is not None and facts.token_key is not None:
        keys = {facts.token_key: TOKEN_FILE}
        pod = with_secret(pod, "broker-token", brokers.authentication.token_key_secret, BROKER_TOKEN_FOLDER, keys)
        env.append({"name": "QUIRE_TOKEN", "value": f"file://{BROKER_TOKEN_FOLDER}/{TOKEN_FILE}"})
    if job.credentials is not None:
        pod = with_credentials(pod, job.credentials)
    main = pod["containers"][0]
    return pod | {"containers": [main | {"env": [*main.get("env", ()), *env]}]} if env else pod


def executor_template(resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot) -> Manifest:
    """Return the pod of executors; Spark adds image, command, memory and CPU."""
    files = {SETTINGS_FILE: settings_text(facts.pool)}
    pod = _pod(resource, facts, job, {}, files)
    return _templated(resource, executor_labels(resource, job, slot), files, pod)


def driver_template(
    resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot, main: Manifest, files: dict[str, str]
) -> Manifest:
    """Return the pod of a driver. `main`: additions to its container. `files`: in addition to those of every driver."""
    text = json.dumps(parameters(resource, facts.pool, job), indent=1, sort_keys=True)
    files = {PARAMETERS_FILE: text, SETTINGS_FILE: settings_text(facts.pool)} | files
    return _templated(resource, run_labels(resource, job, slot), files, _pod(resource, facts, job, main, files))


def _templated(resource: ManagedLedger, own: dict[str, str], files: dict[str, str], pod: Manifest) -> Manifest:
    """Merge the user's template over a pod, except for the operator's labels and files."""
    wanted = resource.spec.spark.pod_template
    return {
        "metadata": {
            "labels": {**wanted.metadata.labels, **own},
            "annotations": {**wanted.metadata.annotations, **{_annotation(file): text for file, text in files.items()}},
        },
        "spec": merged(pod, wanted.spec),
    }


def run_head(resource: ManagedLedger, api_version: str, kind: str, job: JobWanted, slot: Slot) -> Manifest:
    """Return the metadata of a run's object, which is deleted with the ManagedLedger."""
    found = child(kind, api_version, "ManagedLedger", resource.meta, JOBS)
    name = run_name(resource.meta.name, job.name, slot)
    return found | {"metadata": found["metadata"] | {"name": name, "labels": run_labels(resource, job, slot)}}


def job_run(resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot) -> Manifest:
    """Return the run as a Job."""
    spark, name = resource.spec.spark, run_name(resource.meta.name, job.name, slot)
    files = {DEFAULTS_FILE: _properties(spark_settings(resource, facts, name))}
    words = arguments(job, slot)
    env: list[Manifest] = [{"name": "SPARK_CONF_DIR", "value": JOB_FOLDER}]
    main: Manifest = {}
    if spark.executors.replicas:
        executor = executor_template(resource, facts, job, slot)
        files[EXECUTOR_FILE] = json.dumps({"apiVersion": "v1", "kind": "Pod", **executor}, sort_keys=True)
        # `quire jobs run` uses these to make the driver the owner of its executors, and to advertise its address.
        fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
        for variable, field in fields.items():
            env.append({"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}})
        words += ["--master", API_SERVER]
        main["ports"] = [
            {"name": "driver", "containerPort": DRIVER_PORT},
            {"name": "blocks", "containerPort": BLOCKS_PORT},
        ]
    else:
        words += ["--master", "local[*]"]
    for key, value in sorted(spark.conf.items()):
        words += ["--conf", f"{key}={value}".replace("$", "$$")]
    main |= {"args": words, "env": env, "resources": driver_resources(spark.driver.resources)}
    template = driver_template(resource, facts, job, slot, main, files)
    if spark.executors.replicas:
        template["spec"]["automountServiceAccountToken"] = True
    return run_head(resource, "batch/v1", "Job", job, slot) | {
        "spec": {
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": round(duration_s(spark.active_deadline)),
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [*USELESS_CODES]},
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": template,
        }
    }


def driver_resources(wanted: Resources) -> Manifest:
    """Return the resources of a driver. Memory is always limited, by default too: the JVM's share depends on it."""
    memory = _memory(wanted, DRIVER_MEMORY)
    return {
        "requests": {"memory": memory, **wanted.requests},
        "limits": {"memory": memory, **wanted.limits},
    }
