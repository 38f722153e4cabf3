"""A condition of a status, as `meta/v1` has it, and how a list of them moves on. Pure."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from quire_operator.api.fields import ApiModel, Message, Timestamp, keyed


class Truth(StrEnum):
    """What a condition says; Unknown when it could not be found out."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One statement about a resource, since when it has been so, and why."""

    type: Annotated[str, StringConstraints(max_length=64)] = Field(description="What is stated.")
    status: Truth = Field(description="True, False, or Unknown.")
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=128)] = Field(
        description="Why, in one word for programs."
    )
    message: Message = Field(default="", description="Why, in a sentence for people.")
    last_transition_time: Timestamp = Field(description="Since when the status has been what it is.")
    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")


def conditions_field() -> Any:
    """The list as a field of a status."""
    return keyed("type", 32, "Statements about the resource, each with its reason.")


class Finding(ApiModel):
    """What was found about one condition now: without the time, which `moved_on` keeps."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def moved_on(
    before: Iterable[Condition], found: Iterable[Finding], now: str, generation: int | None
) -> tuple[Condition, ...]:
    """The conditions after a look: the time of a condition moves only when its status does. Sorted by type.

    A condition that was not looked at is dropped: a stale statement is worse than none.
    """
    known = {condition.type: condition for condition in before}
    after = []
    for finding in found:
        former = known.get(finding.type)
        since = former.last_transition_time if former is not None and former.status is finding.status else now
        after.append(
            Condition(
                type=finding.type,
                status=finding.status,
                reason=finding.reason,
                message=finding.message,
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return tuple(sorted(after, key=lambda condition: condition.type))
