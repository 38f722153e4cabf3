"""`Bookie`: the whole resource, including the status that the operator writes. Models only."""

from enum import StrEnum

from pydantic import Field

from quire_operator.api.autoscaling import AutoscaleStatus
from quire_operator.api.bookie_spec import BookieSpec
from quire_operator.api.conditions import Condition, conditions_field
from quire_operator.api.fields import AnyObject, ApiModel, Label, Message, Percent, Rule, Timestamp, Whole, keyed, part
from quire_operator.api.operations import Operation
from quire_operator.api.shared import DERIVED_HELP, Metadata, SettingValue
from quire_operator.api.slow_bookies import SlowBookie


class Phase(StrEnum):
    """The state of a pool in one word."""

    PENDING = "Pending"
    CREATING = "Creating"
    RUNNING = "Running"
    UPDATING = "Updating"
    SCALING = "Scaling"
    EXPANDING = "Expanding"
    REPLACING = "Replacing"
    DEGRADED = "Degraded"
    INVALID = "Invalid"
    PAUSED = "Paused"
    DELETING = "Deleting"


class BookieState(StrEnum):
    """The state of one bookie."""

    STARTING = "Starting"
    WRITABLE = "Writable"
    READ_ONLY = "ReadOnly"
    DRAINING = "Draining"
    DRAINED = "Drained"
    FAILING = "Failing"
    UNREACHABLE = "Unreachable"
    LOST = "Lost"


class Capacity(ApiModel):
    """Space of the ledger folders of all bookies."""

    total: Whole = Field(default=0, description="Bytes.")
    used: Whole = Field(default=0, description="Bytes.")
    used_percent: Percent = Field(default=0, description="Percentage of the total.")
    days_to_full: Whole | None = Field(
        default=None, description="Days until full at the recent rate. Absent if not growing, or too new."
    )
    bytes_per_day: int | None = Field(default=None, description="Recent growth rate. Absent if too new.")
    sampled_at: Timestamp | None = Field(default=None, description="Time of the last sample for the rate.")
    sampled_used: Whole = Field(default=0, description="Used bytes at that time.")


class UnderReplicated(ApiModel):
    """Under-replicated ledgers."""

    count: Whole = Field(default=0, description="Number of marked ledgers.")
    oldest_seconds: Whole | None = Field(default=None, description="Age of the oldest mark.")


class LastScrub(ApiModel):
    """Scrubs: checks of all stored entries."""

    finished_at: Timestamp | None = Field(
        default=None, description="When the last scrub ended, of the bookie that is furthest behind."
    )
    damaged: Whole = Field(default=0, description="Ranges of entries that were found damaged and are not repaired yet.")


class DrainProgress(ApiModel):
    """The progress of a drain."""

    remaining: Whole = Field(default=0, description="Ledgers that still name the bookie.")
    eta_seconds: Whole | None = Field(default=None, description="Remaining time. Absent if not known yet.")


class BookieStatusRow(ApiModel):
    """One bookie."""

    id: Label = Field(description="The bookie's id, which belongs to its volumes; empty until it is known.")
    pod: Label = Field(description="Its pod.")
    node: Label | None = Field(default=None, description="The node of the pod.")
    zone: Label | None = Field(default=None, description="Zone of that node, or of its last one.")
    state: BookieState = Field(description="Its state.")
    reason: Message | None = Field(default=None, description="Why it is not writable.")
    used_percent: Percent | None = Field(default=None, description="Used percentage of its ledger folders.")
    drain: DrainProgress | None = Field(default=None, description="Only while it is being drained.")


class LostBookie(ApiModel):
    """A permanently lost bookie of the pool whose cookie is not removed yet."""

    id: Label = Field(description="Its id.")
    pod: Label = Field(description="Its former pod, which runs another bookie now, or will.")


class BookieStatus(ApiModel):
    """The observed state, and the operation in progress."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that was observed.")
    phase: Phase | None = Field(default=None, description="The state in one word.")
    replicas: Whole = Field(default=0, description="Existing pods.")
    selector: Label | None = Field(default=None, description="Label selector of the pods, for the scale subresource.")
    ready: Whole = Field(default=0, description="Bookies that respond.")
    writable: Whole = Field(default=0, description="Bookies that accept new ledgers.")
    read_only: Whole = Field(default=0, description="Bookies that only serve reads.")
    draining: Whole = Field(default=0, description="Bookies that are being drained.")
    lost: Whole = Field(default=0, description="Bookies whose volumes are lost.")
    capacity: Capacity | None = Field(default=None, description="Space of all bookies that respond.")
    autoscale: AutoscaleStatus | None = Field(default=None, description="Recommended number of bookies, and why.")
    under_replicated: UnderReplicated | None = Field(
        default=None, description="Under-replicated ledgers of the cluster."
    )
    unrecoverable: Whole | None = Field(
        default=None, description="Ledgers of the cluster with entries that no replica can serve."
    )
    last_scrub: LastScrub | None = Field(default=None, description="Checks of all stored entries.")
    operation: Operation | None = Field(default=None, description="Operation in progress; the operator resumes here.")
    slow_bookies: tuple[SlowBookie, ...] = keyed("id", 64, "Bookies with slow minutes; those with `slow` are reported.")
    slow_bookie_replaced_at: Timestamp | None = Field(
        default=None, description="When the last replacement of a slow bookie began."
    )
    derived_settings: dict[Label, SettingValue] | None = Field(default=None, description=DERIVED_HELP)
    lost_bookies: tuple[LostBookie, ...] = keyed("id", 64, "Replaced bookies that ledgers still name.")
    bookies: tuple[BookieStatusRow, ...] = keyed("pod", 512, "State of each bookie.")
    conditions: tuple[Condition, ...] = conditions_field()


class Bookie(ApiModel):
    """A pool of bookies (log storage nodes). All pools with the same metadata endpoints are one cluster."""

    RULES = (
        Rule(
            "size(self.metadata.name) <= 40",
            "metadata.name is longer than 40 characters: pods, claims and Services are named after it",
        ),
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must begin with a letter and contain only lower-case letters, digits and '-'",
        ),
    )

    api_version: Label = Field("", description="quire.dev/v1alpha1.")
    kind: Label = Field("", description="Bookie.")
    metadata: AnyObject = Field(default_factory=dict, description="Name, namespace, labels.")
    spec: BookieSpec = Field(description="Desired state.")
    status: BookieStatus = part(BookieStatus, "Observed state. Written by the operator.")

    @property
    def meta(self) -> Metadata:
        """The fields of the metadata that the operator reads."""
        return Metadata.model_validate(self.metadata)
