"""Conditions of a status, as in `meta/v1`, and how a list of them is updated. Pure."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from quire_operator.api.fields import ApiModel, Message, Timestamp, keyed


class Truth(StrEnum):
    """Status of a condition; Unknown if it could not be determined."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One aspect of a resource's state, with a reason and the time of its last change."""

    type: Annotated[str, StringConstraints(max_length=64)] = Field(description="Type of the condition.")
    status: Truth = Field(description="True, False, or Unknown.")
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=128)] = Field(
        description="Reason for the status, machine-readable."
    )
    message: Message = Field(default="", description="Explanation of the status, human-readable.")
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    observed_generation: int | None = Field(default=None, description="Generation of the spec that was observed.")


def conditions_field() -> Any:
    """Return the field of a status that has the list of conditions."""
    return keyed("type", 32, "Conditions of the resource.")


class Finding(ApiModel):
    """The current value of one condition, without the transition time, which `moved_on` adds."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def moved_on(
    before: Iterable[Condition], found: Iterable[Finding], now: str, generation: int | None
) -> tuple[Condition, ...]:
    """Return the updated conditions, sorted by type. The time of a condition changes only with its status.

    A condition without a current value is dropped: a stale condition is worse than none.
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
