"""Builds a run of a job as a `SparkApplication` of either Spark operator, with the same pods as a Job. Pure.

Kubeflow: sparkoperator.k8s.io/v1beta2, https://www.kubeflow.org/docs/components/spark-operator/
Apache: spark.apache.org/v1, https://github.com/apache/spark-kubernetes-operator
Both submit in cluster mode: Spark starts the driver's container, which runs `MAIN` with the arguments of the job.
"""

from quire_operator.api.jobs_spec import DRIVER_MEMORY, EXECUTOR_MEMORY
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.quantities import duration_s
from quire_operator.builders import Manifest
from quire_operator.builders.job_parameters import JobWanted
from quire_operator.builders.job_runs import (
    RETRIES,
    JobFacts,
    Slot,
    arguments,
    cores_settings,
    driver_template,
    executor_settings,
    executor_template,
    memory_mib,
    run_head,
)
from quire_operator.builders.naming import CONTAINER, JOBS, child_name

KUBEFLOW, APACHE = "sparkoperator.k8s.io/v1beta2", "spark.apache.org/v1"
KIND = "SparkApplication"
MAIN = "local:///opt/quire/quire.py"
"""`quire` as a file that spark-submit accepts as Python, in the image quire-jobs."""
SPARK_VERSION = "4.3.0"
"""Version in the image; neither operator uses it to choose anything."""


def application_run(resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot, api_version: str) -> Manifest:
    """Return the run. `api_version` selects the operator."""
    made = _apache if api_version == APACHE else _kubeflow
    return run_head(resource, api_version, KIND, job, slot) | {"spec": made(resource, facts, job, slot)}


def _settings(resource: ManagedLedger, facts: JobFacts) -> dict[str, str]:
    spark = resource.spec.spark
    heap, rest = memory_mib(spark.driver.resources, DRIVER_MEMORY)
    found = {
        "spark.kubernetes.namespace": resource.meta.namespace,
        "spark.kubernetes.container.image": facts.image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": child_name(resource.meta.name, JOBS),
        "spark.kubernetes.driver.podTemplateContainerName": CONTAINER,
        "spark.kubernetes.executor.podTemplateContainerName": CONTAINER,
        "spark.driver.memory": f"{heap}m",
        "spark.driver.memoryOverhead": f"{rest}m",
        "spark.ui.enabled": "false",
    }
    found |= cores_settings("driver", spark.driver.resources)
    return found | executor_settings(resource) | dict(spark.conf)


def _templates(resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot) -> tuple[Manifest, Manifest]:
    """Return the pods of driver and executors. The driver uses the API server; Spark adds commands, memory and CPU."""
    driver = driver_template(resource, facts, job, slot, {}, {})
    deadline_s = round(duration_s(resource.spec.spark.active_deadline))
    driver["spec"] |= {"automountServiceAccountToken": True, "activeDeadlineSeconds": deadline_s}
    return driver, executor_template(resource, facts, job, slot)


def _kubeflow(resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot) -> Manifest:
    spark = resource.spec.spark
    driver, executor = _templates(resource, facts, job, slot)
    heap, rest = memory_mib(spark.driver.resources, DRIVER_MEMORY)
    executor_heap, executor_rest = memory_mib(spark.executors.resources, EXECUTOR_MEMORY)
    account = child_name(resource.meta.name, JOBS)
    return {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": facts.image,
        "mainApplicationFile": MAIN,
        "arguments": arguments(job, slot),
        "sparkConf": _settings(resource, facts),
        "restartPolicy": {"type": "OnFailure", "onFailureRetries": RETRIES, "onSubmissionFailureRetries": RETRIES},
        "driver": {
            "memory": f"{heap}m",
            "memoryOverhead": f"{rest}m",
            "serviceAccount": account,
            "template": driver,
        },
        "executor": {
            "instances": spark.executors.replicas,
            "cores": spark.executors.cores,
            "memory": f"{executor_heap}m",
            "memoryOverhead": f"{executor_rest}m",
            "template": executor,
        },
    }


def _apache(resource: ManagedLedger, facts: JobFacts, job: JobWanted, slot: Slot) -> Manifest:
    driver, executor = _templates(resource, facts, job, slot)
    return {
        "pyFiles": MAIN,
        "driverArgs": arguments(job, slot),
        "sparkConf": _settings(resource, facts),
        "driverSpec": {"podTemplateSpec": driver},
        "executorSpec": {"podTemplateSpec": executor},
        "applicationTolerations": {
            "restartConfig": {"restartPolicy": "OnFailure", "maxRestartAttempts": RETRIES},
            # Quire's operator deletes ended runs itself, and reads the drivers' termination messages until then.
            "resourceRetainPolicy": "Always",
        },
        "runtimeVersions": {"sparkVersion": SPARK_VERSION},
    }
