"""A step that takes long, as kept in `.status.operation`: an operator that starts goes on from here. Shapes only."""

from enum import StrEnum

from pydantic import Field

from quire_operator.api.fields import ApiModel, Label, Message, Timestamp, Whole


class OperationType(StrEnum):
    """One at a time per pool."""

    DRAIN = "Drain"
    ROLL = "Roll"
    EXPAND = "Expand"
    REPLACE = "Replace"


class Step(StrEnum):
    """Where an operation is. Which steps an operation has, and their order, stands in `plan`."""

    COPYING = "Copying"
    VERIFYING = "Verifying"
    SHRINKING = "Shrinking"
    REMOVING_COOKIE = "RemovingCookie"
    RELEASING_CLAIMS = "ReleasingClaims"
    WAITING = "Waiting"
    REPLACING = "Replacing"
    SETTLING = "Settling"
    RESIZING_CLAIMS = "ResizingClaims"
    ORPHANING = "Orphaning"
    RECREATING = "Recreating"
    UNBINDING = "Unbinding"
    REJOINING = "Rejoining"


class Operation(ApiModel):
    """What is under way."""

    type: OperationType = Field(description="What is done.")
    step: Step = Field(description="Where it is.")
    started_at: Timestamp = Field(description="When it began.")
    step_started_at: Timestamp = Field(description="When this step began.")
    attempt: Whole = Field(default=1, description="How often this step has been begun.")
    pod: Label | None = Field(default=None, description="The pod it is about.")
    bookie: Label | None = Field(default=None, description="The id of the bookie it is about.")
    target: Label | None = Field(
        default=None, description="What it leads to: a number of replicas, a revision; Copied: volumes without data."
    )
    uids: tuple[Label, ...] = Field(
        default=(), max_length=64, description="The pod and the claims that go; others under their names stay."
    )
    empty_look: Whole | None = Field(
        default=None,
        description="The look that found the bookie empty, in ms since the epoch by the clock of auto-recovery.",
    )
    late: bool = Field(default=False, description="It was reported that it takes longer than its deadline.")
    message: Message | None = Field(default=None, description="What it waits for, in a sentence.")
