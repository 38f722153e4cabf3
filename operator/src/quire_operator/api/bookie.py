"""`Bookie`: the resource as a whole, with what the operator writes about it. Shapes only."""

from enum import StrEnum

from pydantic import Field

from quire_operator.api.bookie_spec import BookieSpec
from quire_operator.api.conditions import Condition, conditions_field
from quire_operator.api.fields import AnyObject, ApiModel, Label, Message, Percent, Rule, Timestamp, Whole, keyed, part
from quire_operator.api.operations import Operation
from quire_operator.api.shared import Metadata


class Phase(StrEnum):
    """The state of a pool in a word."""

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
    """What one bookie does."""

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
    used_percent: Percent = Field(default=0, description="Per cent of the total.")
    days_to_full: Whole | None = Field(
        default=None, description="At the rate of the last days; absent: not growing, or too new."
    )
    bytes_per_day: int | None = Field(default=None, description="That rate; absent: too new.")
    sampled_at: Timestamp | None = Field(default=None, description="When the rate was last looked at.")
    sampled_used: Whole = Field(default=0, description="Bytes that were used then.")


class UnderReplicated(ApiModel):
    """Ledgers that lack a replica."""

    count: Whole = Field(default=0, description="How many are marked.")
    oldest_seconds: Whole | None = Field(default=None, description="For how long the oldest of them has been.")


class LastScrub(ApiModel):
    """Checks of everything stored."""

    finished_at: Timestamp | None = Field(
        default=None, description="When the bookie that is furthest behind ended a round."
    )
    damaged: Whole = Field(
        default=0, description="Stretches of entries that were found damaged and are not mended yet."
    )


class DrainProgress(ApiModel):
    """How far a drain is."""

    remaining: Whole = Field(default=0, description="Ledgers that still name the bookie.")
    eta_seconds: Whole | None = Field(default=None, description="At the present rate; absent: not known yet.")


class BookieStatusRow(ApiModel):
    """One bookie."""

    id: Label = Field(description="The bookie's id, which belongs to its volumes; empty until it is known.")
    pod: Label = Field(description="Its pod.")
    node: Label | None = Field(default=None, description="Where the pod runs.")
    zone: Label | None = Field(default=None, description="Zone of that node.")
    state: BookieState = Field(description="What it does.")
    reason: Message | None = Field(default=None, description="Why, where it is not writable.")
    used_percent: Percent | None = Field(default=None, description="Of its ledger folders.")
    drain: DrainProgress | None = Field(default=None, description="Only while it is drained.")


class LostBookie(ApiModel):
    """A bookie of the pool that is gone for good and not forgotten yet."""

    id: Label = Field(description="Its id.")
    pod: Label = Field(description="The pod in which it was; another bookie is there now, or will be.")


class BookieStatus(ApiModel):
    """What the operator found and does."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    phase: Phase | None = Field(default=None, description="In a word.")
    replicas: Whole = Field(default=0, description="Pods that exist.")
    selector: Label | None = Field(default=None, description="Label selector of the pods, for the scale subresource.")
    ready: Whole = Field(default=0, description="Bookies that answer.")
    writable: Whole = Field(default=0, description="Bookies that take new ledgers.")
    read_only: Whole = Field(default=0, description="Bookies that only serve what they have.")
    draining: Whole = Field(default=0, description="Bookies that are being emptied.")
    lost: Whole = Field(default=0, description="Bookies that are gone with their volume.")
    capacity: Capacity | None = Field(default=None, description="Space.")
    under_replicated: UnderReplicated | None = Field(
        default=None, description="Ledgers that lack a replica, of the cluster."
    )
    unrecoverable: Whole | None = Field(
        default=None, description="Ledgers of which no replica could be read, of the cluster."
    )
    last_scrub: LastScrub | None = Field(default=None, description="Checks of everything stored.")
    operation: Operation | None = Field(default=None, description="What is under way; the operator goes on from here.")
    lost_bookies: tuple[LostBookie, ...] = keyed("id", 64, "Bookies that were replaced, while ledgers still name them.")
    bookies: tuple[BookieStatusRow, ...] = keyed("pod", 512, "Each bookie.")
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
            "metadata.name must begin with a letter and have only lower-case letters, digits and '-'",
        ),
    )

    api_version: Label = Field("", description="quire.dev/v1alpha1.")
    kind: Label = Field("", description="Bookie.")
    metadata: AnyObject = Field(default_factory=dict, description="Name, namespace, labels.")
    spec: BookieSpec = Field(description="What is wanted.")
    status: BookieStatus = part(BookieStatus, "What is. Written by the operator.")

    @property
    def meta(self) -> Metadata:
        """What the operator reads of the metadata."""
        return Metadata.model_validate(self.metadata)
