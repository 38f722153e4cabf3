"""Jobs on Spark, as a `ManagedLedger` declares them: offload, analyses, and how Spark is run. Shapes and rules only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from quire_operator.api.fields import AnyObject, ApiModel, Duration, Label, Name, Quantity, Rule, part, section
from quire_operator.api.shared import SETTINGS_MAX, Image, PodTemplate, Resources, SettingValue

ANALYTICS_MAX = 64
JOBS_MAX = ANALYTICS_MAX + 1
"""With the offload."""
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OFFLOAD_JOB = "offload"
"""Name and kind of the job of `spec.offload`; no analysis may be called so."""

Schedule = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SCHEDULE_HELP = (
    "When, as cron writes it (five fields, or @hourly and the like), in UTC. Without it: only when asked for."
)
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME_PATTERN, max_length=40)]
JobParameter = Annotated[str, StringConstraints(max_length=4096)]
PARAMETERS_MAX = 64


class CredentialsRef(ApiModel):
    """A Secret of the same namespace."""

    name: Name = Field(
        description="Its keys become variables of the processes (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...), and "
        "files in /etc/quire/credentials."
    )


class OffloadAfter(ApiModel):
    """Which ledgers go; either rule is enough. Without both every closed ledger goes."""

    time: Duration | None = Field(None, description="A ledger goes so long after it was closed.")
    size: Quantity | None = Field(None, description="What bookies keep of a topic; older ledgers go.")


class OffloadFormat(StrEnum):
    """What is written of a ledger."""

    SEGMENT = "Segment"
    PARQUET = "Parquet"
    ICEBERG = "Iceberg"


class OffloadTable(ApiModel):
    """Where the rows of offloaded ledgers go, beside the objects that brokers serve."""

    name: SettingValue = Field(
        description="Parquet: URL of the table's folder, s3://bucket/folder/name. Iceberg: catalog.namespace.table."
    )
    key_buckets: Annotated[int, Field(ge=1, le=10_000)] = Field(16, description="Partitions of an hour, by key.")


class Offload(ApiModel):
    """Copies of closed ledgers in object storage, made by a job on Spark; brokers read and trim them."""

    RULES = (
        Rule(
            "self.target.matches('^(s3|gs|az)://[^/?#]+/?$') || self.target.matches('^file:///[^?#]+$')",
            "offload: target must be s3://bucket, gs://bucket, az://container or file:///folder; ledgers lie at the "
            "root of a bucket of their own",
            ".target",
        ),
        Rule(
            "self.format == 'Segment' || has(self.table)",
            "offload: format Parquet or Iceberg needs table: where the rows go",
            ".format",
        ),
        Rule(
            "self.format != 'Segment' || !has(self.table)",
            "offload: table goes with format Parquet or Iceberg; format Segment writes none",
            ".table",
        ),
        Rule(
            "!has(self.rate) || quantity(self.rate).compareTo(quantity('1')) >= 0",
            "offload: rate must be 1 or more; leave it out for no limit",
            ".rate",
        ),
    )

    target: Annotated[str, StringConstraints(min_length=6, max_length=1024)] = Field(
        description="s3://bucket, gs://bucket, az://container, or file:///folder mounted in brokers and jobs."
    )
    region: Label | None = Field(None, description="Region of the bucket.")
    endpoint: SettingValue | None = Field(None, description="URL of an S3 service other than Amazon's.")
    credentials_ref: CredentialsRef | None = Field(
        None, description="Of brokers and of the job. Default: roles of the machine or the pod."
    )
    after: OffloadAfter = part(OffloadAfter, "Which ledgers go. Default: all that are closed.")
    delete_lag: Duration = Field("4h", description="The bookies' copies go so long after the verified copy.")
    format: OffloadFormat = Field(
        OffloadFormat.SEGMENT, description="Segment: objects that brokers serve. Parquet, Iceberg: a table beside them."
    )
    table: OffloadTable | None = Field(None, description="With Parquet and Iceberg.")
    schedule: Schedule | None = Field(None, description=SCHEDULE_HELP)
    suspend: bool = Field(False, description="No run begins by the schedule; one that goes on ends by itself.")
    rate: Quantity | None = Field(None, description="Bytes a second from bookies. Default: no limit.")
    params: dict[Label, JobParameter] = Field(
        default_factory=dict,
        max_length=PARAMETERS_MAX,
        description="Further parameters of the job: ledgerSizeMin, blockSize, fileSize, ... (docs/jobs.md).",
    )


class Analytics(ApiModel):
    """A job that reads the namespace and writes tables and a report."""

    RULES = (Rule("self.name != 'offload'", "analytics: the name offload is that of spec.offload", ".name"),)

    name: JobName = Field(description="Name of the job.")
    kind: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="throughput, keys, backlog, cost, retention-what-if, audit, schema-drift: `quire jobs list`."
    )
    schedule: Schedule | None = Field(None, description=SCHEDULE_HELP)
    params: dict[Label, JobParameter] = Field(
        default_factory=dict,
        max_length=PARAMETERS_MAX,
        description="Parameters of the kind; several values: a,b. Topics without a namespace are of this one.",
    )
    output: SettingValue = Field(description="URL of the folder that tables and reports go to.")
    credentials_ref: CredentialsRef | None = Field(None, description="Default: roles of the machine or the pod.")
    suspend: bool = Field(False, description="No run begins by the schedule; one that goes on ends by itself.")


class SparkLauncher(StrEnum):
    """What makes the driver's pod."""

    AUTO = "Auto"
    JOB = "Job"
    SPARK_APPLICATION = "SparkApplication"


DRIVER_MEMORY = EXECUTOR_MEMORY = "2Gi"
EXECUTOR_CORES = 1


class SparkDriver(ApiModel):
    """The pod that plans; without executors it does everything."""

    resources: Resources = section(
        Resources, f"cpu and memory of the pod; half of the memory is the JVM's. Default: {DRIVER_MEMORY}."
    )


class SparkExecutors(ApiModel):
    """The pods that copy and count."""

    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="How many. 0: everything happens in the driver's pod."
    )
    cores: Annotated[int, Field(ge=1, le=128)] = Field(EXECUTOR_CORES, description="Tasks at once in each.")
    resources: Resources = section(
        Resources,
        f"cpu and memory of each; half of the memory is the JVM's. Default: {EXECUTOR_MEMORY}, a cpu for each core.",
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
        description="Job: a Kubernetes Job with the driver in it. SparkApplication: by one of the two Spark operators. "
        "Auto: SparkApplication where one of them is installed, else Job.",
    )
    image: Image | None = Field(None, description="Image of driver and executors. Default: the operator's.")
    driver: SparkDriver = section(SparkDriver, "The driver's pod.")
    executors: SparkExecutors = section(SparkExecutors, "The executors' pods.")
    node_selector: dict[Label, Label] = Field(
        default_factory=dict, max_length=64, description="Labels of the nodes that they may be on."
    )
    tolerations: tuple[AnyObject, ...] = Field((), max_length=64, description="Taints of nodes that they bear.")
    conf: dict[Label, SettingValue] = Field(
        default_factory=dict,
        max_length=SETTINGS_MAX,
        description="Settings of Spark, spark.*; nothing secret. Those that the operator sets are refused.",
    )
    runs_kept: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="Ended runs of each job that are kept, with their logs."
    )
    active_deadline: Duration = Field("6h", description="A run that takes longer is ended, and has failed.")
    pod_template: PodTemplate = section(
        PodTemplate,
        "Pod template that is merged over those of driver and executors, as `kubectl patch` does it. The main "
        "container is `quire`.",
    )
