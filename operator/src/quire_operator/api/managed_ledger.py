"""`ManagedLedger`: the resource as a whole, with what the operator writes about it. Shapes only."""

from enum import StrEnum

from pydantic import Field

from quire_operator.api.conditions import Condition, conditions_field
from quire_operator.api.fields import AnyObject, ApiModel, Label, Message, Rule, Timestamp, Whole, keyed, part
from quire_operator.api.jobs_spec import JOBS_MAX
from quire_operator.api.managed_ledger_spec import ManagedLedgerSpec
from quire_operator.api.shared import Metadata, SettingValue


class LedgerState(StrEnum):
    """The state of a namespace in a word."""

    PENDING = "Pending"
    CREATING = "Creating"
    OPEN = "Open"
    DEGRADED = "Degraded"
    INVALID = "Invalid"
    PAUSED = "Paused"
    STOPPED = "Stopped"
    DELETING = "Deleting"


class BrokerRow(ApiModel):
    """One broker."""

    pod: Label = Field(description="Its pod.")
    ready: bool = Field(description="It answers.")
    topics: Whole = Field(default=0, description="Topics that it owns.")


class SlowestCursor(ApiModel):
    """The cursor with the largest backlog."""

    name: Label = Field(description="The subscription.")
    backlog: Whole = Field(default=0, description="Entries it has not consumed.")


class TopicRow(ApiModel):
    """One topic, its partitions summed up."""

    name: Label = Field(description="Name within the namespace.")
    owner: Label | None = Field(
        None, description="Pod of the broker that owns it; of several partitions: of the first."
    )
    position: Label | None = Field(default=None, description="Last position, ledger:entry.")
    entries: Whole = Field(default=0, description="Entries that are kept.")
    size_bytes: Whole = Field(default=0, description="Their bytes.")
    slowest_cursor: SlowestCursor | None = Field(default=None, description="The one that is furthest behind.")


class JobState(StrEnum):
    """The latest run of a job in a word; Suspended and Pending also where there is none."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


OUTPUTS_MAX = 32


class JobRow(ApiModel):
    """One job and its latest run."""

    name: Label = Field(description="Its name; offload for that of spec.offload.")
    kind: Label = Field(description="What it does.")
    state: JobState = Field(description="In a word.")
    reason: Message = Field(default="", description="Why, in a sentence for people.")
    run_id: Label | None = Field(default=None, description="The latest run: name of its Job or SparkApplication.")
    slot: Timestamp | None = Field(
        default=None, description="The time of the schedule that it is of, or when it was asked for."
    )
    pod: Label | None = Field(default=None, description="Its driver's pod, which has the log.")
    started_at: Timestamp | None = Field(default=None, description="When it began.")
    ended_at: Timestamp | None = Field(default=None, description="When it ended.")
    last_success: Timestamp | None = Field(default=None, description="When a run last ended well.")
    next_slot: Timestamp | None = Field(default=None, description="When the schedule wants the next one.")
    since: Timestamp = Field(description="Times of the schedule before this are not made up for.")
    outputs: tuple[SettingValue, ...] = Field(default=(), max_length=OUTPUTS_MAX, description="What the run wrote.")


class ManagedLedgerStatus(ApiModel):
    """What the operator found and does."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    state: LedgerState | None = Field(default=None, description="In a word.")
    service_url: Label | None = Field(default=None, description="Where clients connect, pulsar://host:port.")
    replicas: Whole = Field(default=0, description="Broker pods that exist.")
    ready: Whole = Field(default=0, description="Brokers that answer.")
    topic_count: Whole | None = Field(
        default=None, description="Topics of the namespace, declared or not. Absent while no broker answers."
    )
    backlog: Whole | None = Field(
        default=None, description="Entries of the largest backlog that is known. Absent while none is."
    )
    under_replicated: Whole | None = Field(default=None, description="Ledgers of the cluster that lack a replica.")
    brokers: tuple[BrokerRow, ...] = keyed("pod", 100, "Each broker.")
    topics: tuple[TopicRow, ...] = keyed("name", 500, "Declared topics.")
    jobs: tuple[JobRow, ...] = keyed("name", JOBS_MAX, "Each job and its latest run.")
    conditions: tuple[Condition, ...] = conditions_field()


class ManagedLedger(ApiModel):
    """A namespace of topics with its own brokers, kept on the bookies of a cluster."""

    RULES = (
        Rule(
            "size(self.metadata.name) <= 40",
            "metadata.name is longer than 40 characters: pods and Services are named after it",
        ),
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must begin with a letter and have only lower-case letters, digits and '-'",
        ),
    )

    api_version: Label = Field("", description="quire.dev/v1alpha1.")
    kind: Label = Field("", description="ManagedLedger.")
    metadata: AnyObject = Field(default_factory=dict, description="Name, namespace, labels.")
    spec: ManagedLedgerSpec = Field(description="What is wanted.")
    status: ManagedLedgerStatus = part(ManagedLedgerStatus, "What is. Written by the operator.")

    @property
    def meta(self) -> Metadata:
        """What the operator reads of the metadata."""
        return Metadata.model_validate(self.metadata)
