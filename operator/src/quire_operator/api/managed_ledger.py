"""`ManagedLedger`: the whole resource, including the status that the operator writes. Models only."""

from enum import StrEnum

from pydantic import Field

from quire_operator.api.conditions import Condition, conditions_field
from quire_operator.api.fields import AnyObject, ApiModel, Label, Message, Rule, Timestamp, Whole, keyed, part
from quire_operator.api.jobs_spec import JOBS_MAX
from quire_operator.api.managed_ledger_spec import BROKERS_MAX, ExternalType, ManagedLedgerSpec
from quire_operator.api.shared import DERIVED_HELP, Metadata, SettingValue


class LedgerState(StrEnum):
    """The state of a namespace in one word."""

    PENDING = "Pending"
    CREATING = "Creating"
    OPEN = "Open"
    DRAINING = "Draining"
    DEGRADED = "Degraded"
    INVALID = "Invalid"
    PAUSED = "Paused"
    STOPPED = "Stopped"
    DELETING = "Deleting"


class BrokerRow(ApiModel):
    """One broker."""

    pod: Label = Field(description="Its pod.")
    ready: bool = Field(description="It responds.")
    topics: Whole = Field(default=0, description="Topics that it owns.")


class ExternalRow(ApiModel):
    """The address of a broker for clients outside the cluster."""

    pod: Label = Field(description="Its pod.")
    type: ExternalType = Field(description="Type of its Service.")
    host: Label | None = Field(
        default=None, description="Host name or address. Absent while the pod of a NodePort has no node."
    )
    pulsar: int | None = Field(default=None, description="Port for plaintext.")
    pulsar_tls: int | None = Field(default=None, description="Port for TLS.")


class BrokerDrain(ApiModel):
    """The drain of a broker that leaves because fewer are declared."""

    pod: Label = Field(description="Its pod.")
    uid: Label = Field(description="The uid of the pod: a pod that was created again is drained again.")
    started_at: Timestamp = Field(description="When it began.")
    moved: Whole = Field(default=0, description="Bundles that other brokers took from it since its start.")
    bundles: Whole = Field(default=0, description="Bundles that it still has.")
    progress_at: Timestamp | None = Field(default=None, description="When its figures changed last.")
    message: Message = Field(default="", description="What it waits for, human-readable.")


class BrokerLoad(ApiModel):
    """How many brokers the load of the last minute asks for."""

    recommended: Whole = Field(description="Number of brokers at which each would use brokers.targetUsage.")
    usage_percent: Whole = Field(description="Average use of CPU or network, whichever is more.")
    replicas: Whole = Field(description="Number of brokers at that time.")
    message: Message = Field(default="", description="The reason.")
    measured_at: Timestamp = Field(description="When this was measured.")


class ProxyStatus(ApiModel):
    """The proxies."""

    service_url: Label = Field(description="Service URL for clients, pulsar://host:port.")
    replicas: Whole = Field(default=0, description="Existing pods.")
    ready: Whole = Field(default=0, description="Pods that accept clients.")


class SlowestCursor(ApiModel):
    """The cursor with the largest backlog."""

    name: Label = Field(description="The subscription.")
    backlog: Whole = Field(default=0, description="Entries that it has not acknowledged.")


class TopicRow(ApiModel):
    """One topic; totals over its partitions."""

    name: Label = Field(description="Name within the namespace.")
    owner: Label | None = Field(None, description="Pod of the broker that owns the topic, or its first partition.")
    position: Label | None = Field(default=None, description="Last position, ledger:entry.")
    entries: Whole = Field(default=0, description="Stored entries.")
    size_bytes: Whole = Field(default=0, description="Size of the stored entries.")
    slowest_cursor: SlowestCursor | None = Field(default=None, description="The cursor with the largest backlog.")


class JobState(StrEnum):
    """The state of a job's latest run; Suspended and Pending also if there is no run."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


OUTPUTS_MAX = 32


class JobRow(ApiModel):
    """One job and its latest run."""

    name: Label = Field(description="Its name; offload for the job of spec.offload.")
    kind: Label = Field(description="Its kind.")
    state: JobState = Field(description="The state in one word.")
    reason: Message = Field(default="", description="Explanation of the state, human-readable.")
    run_id: Label | None = Field(default=None, description="Name of the Job or SparkApplication of the latest run.")
    slot: Timestamp | None = Field(
        default=None, description="Time of the schedule, or of the request, that the run belongs to."
    )
    pod: Label | None = Field(default=None, description="Its driver's pod, which has the log.")
    started_at: Timestamp | None = Field(default=None, description="When the run began.")
    ended_at: Timestamp | None = Field(default=None, description="When the run ended.")
    last_success: Timestamp | None = Field(default=None, description="When a run last succeeded.")
    next_slot: Timestamp | None = Field(default=None, description="Next time of the schedule.")
    since: Timestamp = Field(description="Missed times of the schedule before this are not run.")
    outputs: tuple[SettingValue, ...] = Field(
        default=(), max_length=OUTPUTS_MAX, description="URLs of what the run wrote."
    )


class RolloutStep(StrEnum):
    """The step of a change of the brokers. `plan.rollout` defines their order."""

    FIRST = "First"
    SETTLING = "Settling"
    REST = "Rest"
    HOLDING = "Holding"
    ROLLED_BACK = "RolledBack"
    CLEANING = "Cleaning"
    DONE = "Done"


class RolloutRecord(ApiModel):
    """The latest change of the brokers' pods."""

    step: RolloutStep = Field(description="First: one pod has it. Rest: all get it. RolledBack: it did not work.")
    revision: Label = Field(description="The revision that the spec declares.")
    good: Label | None = Field(default=None, description="The last revision with which all brokers were ready.")
    started_at: Timestamp = Field(description="When it was tried.")
    step_started_at: Timestamp = Field(description="When this step began.")
    ready_mark: Label | None = Field(default=None, description="Identifies the pod and since when it is ready.")
    reason: Label | None = Field(default=None, description="Why it was rolled back or waits, machine-readable.")
    message: Message | None = Field(default=None, description="Why it was rolled back or waits, human-readable.")


class ManagedLedgerStatus(ApiModel):
    """The observed state."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that was observed.")
    state: LedgerState | None = Field(default=None, description="The state in one word.")
    service_url: Label | None = Field(default=None, description="Service URL for clients, pulsar://host:port.")
    replicas: Whole = Field(default=0, description="Existing broker pods.")
    ready: Whole = Field(default=0, description="Brokers that respond.")
    topic_count: Whole | None = Field(
        default=None, description="Topics of the namespace, declared or not. Absent while no broker responds."
    )
    backlog: Whole | None = Field(
        default=None, description="Largest known backlog, in entries. Absent while none is known."
    )
    under_replicated: Whole | None = Field(default=None, description="Under-replicated ledgers of the cluster.")
    broker_load: BrokerLoad | None = Field(
        default=None, description="Recommended number of brokers. Absent while a broker does not report its load."
    )
    brokers: tuple[BrokerRow, ...] = keyed("pod", BROKERS_MAX, "State of each broker.")
    proxy: ProxyStatus | None = Field(
        default=None, description="The proxies. Absent if none are declared and the former ones are gone."
    )
    selector: Label | None = Field(default=None, description="Label selector of the pods, for the scale subresource.")
    external: tuple[ExternalRow, ...] = keyed("pod", BROKERS_MAX, "Addresses for clients outside the cluster.")
    drain: BrokerDrain | None = Field(default=None, description="The broker that is being drained.")
    rollout: RolloutRecord | None = Field(default=None, description="The latest change of the brokers' pods.")
    topics: tuple[TopicRow, ...] = keyed("name", 500, "Declared topics.")
    derived_settings: dict[Label, SettingValue] | None = Field(default=None, description=DERIVED_HELP)
    jobs: tuple[JobRow, ...] = keyed("name", JOBS_MAX, "Each job and its latest run.")
    conditions: tuple[Condition, ...] = conditions_field()


class ManagedLedger(ApiModel):
    """A namespace of topics with its own brokers, stored on the bookies of a cluster."""

    RULES = (
        Rule(
            "size(self.metadata.name) <= 40",
            "metadata.name is longer than 40 characters: pods and Services are named after it",
        ),
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must begin with a letter and contain only lower-case letters, digits and '-'",
        ),
    )

    api_version: Label = Field("", description="quire.dev/v1alpha1.")
    kind: Label = Field("", description="ManagedLedger.")
    metadata: AnyObject = Field(default_factory=dict, description="Name, namespace, labels.")
    spec: ManagedLedgerSpec = Field(description="Desired state.")
    status: ManagedLedgerStatus = part(ManagedLedgerStatus, "Observed state. Written by the operator.")

    @property
    def meta(self) -> Metadata:
        """The fields of the metadata that the operator reads."""
        return Metadata.model_validate(self.metadata)
