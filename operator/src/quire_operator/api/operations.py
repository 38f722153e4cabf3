"""A long operation as recorded in `.status.operation`, where a restarted operator resumes. Models only."""

from enum import StrEnum

from pydantic import Field

from quire_operator.api.fields import ApiModel, Label, Message, Timestamp, Whole


class OperationType(StrEnum):
    """Types of operations. A pool has at most one at a time."""

    DRAIN = "Drain"
    ROLL = "Roll"
    EXPAND = "Expand"
    REPLACE = "Replace"


class Step(StrEnum):
    """The step of an operation. `plan` defines the steps of each operation and their order."""

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
    """The operation in progress."""

    type: OperationType = Field(description="Type of the operation.")
    step: Step = Field(description="Current step.")
    started_at: Timestamp = Field(description="When the operation began.")
    step_started_at: Timestamp = Field(description="When this step began.")
    attempt: Whole = Field(default=1, description="How often this step has been started.")
    pod: Label | None = Field(default=None, description="The affected pod.")
    bookie: Label | None = Field(default=None, description="The id of the affected bookie.")
    target: Label | None = Field(
        default=None, description="Goal: a number of replicas or a revision; Copied if all data was copied elsewhere."
    )
    uids: tuple[Label, ...] = Field(
        default=(), max_length=64, description="Uids of the pod and the claims to delete; others of their names stay."
    )
    avoid_node: Label | None = Field(
        default=None,
        description="Only while a slow bookie is replaced: its node, which the new pod avoids if another one fits.",
    )
    empty_look: Whole | None = Field(
        default=None,
        description="The check that found the bookie empty, in ms since the epoch by the clock of auto-recovery.",
    )
    late: bool = Field(default=False, description="It exceeded its deadline, and this was reported.")
    message: Message | None = Field(default=None, description="Why it waits.")
