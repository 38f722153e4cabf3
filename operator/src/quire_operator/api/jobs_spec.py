"""Spark jobs that a `ManagedLedger` declares: offload, analyses, others, and how Spark runs. Models and rules only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from quire_operator.api.fields import AnyObject, ApiModel, Duration, Label, Name, Quantity, Rule, part, section
from quire_operator.api.shared import SETTINGS_MAX, Image, PodTemplate, Resources, SettingValue

ANALYTICS_MAX = 64
DATA_JOBS_MAX = 64
JOBS_MAX = ANALYTICS_MAX + DATA_JOBS_MAX + 1
"""Including the offload."""
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OFFLOAD_JOB = "offload"
"""Name and kind of the job of `spec.offload`; no other job may have this name."""

Schedule = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SCHEDULE_HELP = "Cron schedule in UTC: five fields, or a name such as @hourly. Default: the job runs only on request."
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME_PATTERN, max_length=40)]
JobParameter = Annotated[str, StringConstraints(max_length=4096)]
PARAMETERS_MAX = 64


class CredentialsRef(ApiModel):
    """A Secret of the same namespace."""

    name: Name = Field(
        description="Its keys become environment variables of the processes (AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, ...), and files in /etc/quire/credentials."
    )


class OffloadAfter(ApiModel):
    """Which ledgers are offloaded: those that match either rule, or all closed ledgers if there is none."""

    time: Duration | None = Field(None, description="A ledger is offloaded this long after it was closed.")
    size: Quantity | None = Field(None, description="Bytes of a topic to keep on bookies; older ledgers are offloaded.")


class OffloadFormat(StrEnum):
    """The format in which a ledger is offloaded."""

    SEGMENT = "Segment"
    PARQUET = "Parquet"
    ICEBERG = "Iceberg"


class OffloadTable(ApiModel):
    """The table for the rows of offloaded ledgers, in addition to the objects that brokers serve."""

    name: SettingValue = Field(
        description="Parquet: URL of the table's folder, s3://bucket/folder/name. Iceberg: catalog.namespace.table."
    )
    key_buckets: Annotated[int, Field(ge=1, le=10_000)] = Field(16, description="Partitions by key within each hour.")


class Offload(ApiModel):
    """Copies of closed ledgers in object storage, written by a Spark job; brokers read and trim them."""

    RULES = (
        Rule(
            "self.target.matches('^(s3|gs|az)://[^/?#]+/?$') || self.target.matches('^file:///[^?#]+$')",
            "offload: target must be s3://bucket, gs://bucket, az://container or file:///folder; ledgers are stored at "
            "the root of a dedicated bucket",
            ".target",
        ),
        Rule(
            "self.format == 'Segment' || has(self.table)",
            "offload: format Parquet or Iceberg needs table, the destination of the rows",
            ".format",
        ),
        Rule(
            "self.format != 'Segment' || !has(self.table)",
            "offload: table requires format Parquet or Iceberg; format Segment writes none",
            ".table",
        ),
        Rule(
            "!has(self.rate) || quantity(self.rate).compareTo(quantity('1')) >= 0",
            "offload: rate must be 1 or more; remove it for no limit",
            ".rate",
        ),
    )

    target: Annotated[str, StringConstraints(min_length=6, max_length=1024)] = Field(
        description="s3://bucket, gs://bucket, az://container, or file:///folder mounted in brokers and jobs."
    )
    region: Label | None = Field(None, description="Region of the bucket.")
    endpoint: SettingValue | None = Field(None, description="URL of an S3 service other than Amazon's.")
    credentials_ref: CredentialsRef | None = Field(
        None, description="Credentials of brokers and of the job. Default: roles of the node or the pod."
    )
    after: OffloadAfter = part(OffloadAfter, "Which ledgers are offloaded. Default: all closed ones.")
    delete_lag: Duration = Field("4h", description="The bookies' copies are deleted this long after the verified copy.")
    format: OffloadFormat = Field(
        OffloadFormat.SEGMENT,
        description="Segment: objects that brokers serve. Parquet, Iceberg: a table in addition to the objects.",
    )
    table: OffloadTable | None = Field(None, description="Required for Parquet and Iceberg.")
    schedule: Schedule | None = Field(None, description=SCHEDULE_HELP)
    suspend: bool = Field(False, description="Do not start scheduled runs; an active run continues.")
    rate: Quantity | None = Field(None, description="Bytes read from bookies per second. Default: no limit.")
    params: dict[Label, JobParameter] = Field(
        default_factory=dict,
        max_length=PARAMETERS_MAX,
        description="Further parameters of the job: ledgerSizeMin, blockSize, fileSize, ... (docs/jobs.md).",
    )


class DataJob(ApiModel):
    """A job that changes or copies data, and writes no report."""

    RULES = (Rule("self.name != 'offload'", "the name offload is reserved for spec.offload", ".name"),)

    name: JobName = Field(description="Name of the job; analytics and jobs have different names.")
    kind: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="compact, table, or another kind that writes no report; see `quire jobs list`."
    )
    schedule: Schedule | None = Field(None, description=SCHEDULE_HELP)
    params: dict[Label, JobParameter] = Field(
        default_factory=dict,
        max_length=PARAMETERS_MAX,
        description="Parameters of the kind; several values as a,b. Topics without a namespace belong to this one.",
    )
    credentials_ref: CredentialsRef | None = Field(None, description="Default: roles of the node or the pod.")
    suspend: bool = Field(False, description="Do not start scheduled runs; an active run continues.")


class Analytics(DataJob):
    """A job that reads the namespace and writes tables and a report."""

    kind: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="throughput, keys, backlog, cost, retention-what-if, audit or schema-drift; see `quire jobs list`."
    )
    output: SettingValue = Field(description="URL of the folder for tables and reports.")


class SparkLauncher(StrEnum):
    """How the driver's pod is created."""

    AUTO = "Auto"
    JOB = "Job"
    SPARK_APPLICATION = "SparkApplication"


DRIVER_MEMORY = EXECUTOR_MEMORY = "2Gi"
EXECUTOR_CORES = 1


class SparkDriver(ApiModel):
    """The driver's pod, which does all work if there are no executors."""

    resources: Resources = section(
        Resources, f"CPU and memory of the pod; half of the memory is for the JVM. Default: {DRIVER_MEMORY}."
    )


class SparkExecutors(ApiModel):
    """The pods that run the tasks."""

    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Number of executors. With 0, all tasks run in the driver's pod."
    )
    cores: Annotated[int, Field(ge=1, le=128)] = Field(EXECUTOR_CORES, description="Concurrent tasks in each executor.")
    resources: Resources = section(
        Resources,
        f"CPU and memory of each; half of the memory is for the JVM. Default: {EXECUTOR_MEMORY}, one CPU per core.",
    )


class Spark(ApiModel):
    """How the jobs of this resource run."""

    RULES = (
        Rule(
            "duration(self.activeDeadline) >= duration('1m')",
            "spark: activeDeadline must be a minute or more",
            ".activeDeadline",
        ),
    )

    launcher: SparkLauncher = Field(
        SparkLauncher.AUTO,
        description="Job: a Kubernetes Job that runs the driver. SparkApplication: through one of the two Spark "
        "operators. Auto: SparkApplication if one of them is installed, otherwise Job.",
    )
    image: Image | None = Field(
        None, description="Image of driver and executors. Default: --jobs-image of the operator."
    )
    driver: SparkDriver = section(SparkDriver, "The driver's pod.")
    executors: SparkExecutors = section(SparkExecutors, "The executors' pods.")
    node_selector: dict[Label, Label] = Field(
        default_factory=dict, max_length=64, description="Required labels of the nodes."
    )
    tolerations: tuple[AnyObject, ...] = Field((), max_length=64, description="Tolerated taints of the nodes.")
    conf: dict[Label, SettingValue] = Field(
        default_factory=dict,
        max_length=SETTINGS_MAX,
        description="Spark settings, spark.*, without secrets. Those that the operator sets are refused.",
    )
    runs_kept: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="Ended runs of each job to keep, with their logs."
    )
    active_deadline: Duration = Field("6h", description="A run that takes longer is stopped and counts as failed.")
    pod_template: PodTemplate = section(
        PodTemplate,
        "Pod template that is merged over those of driver and executors, with the semantics of `kubectl patch`. The "
        "main container is `quire`.",
    )
