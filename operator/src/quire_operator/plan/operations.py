"""Shared by the state machines: a move of an operation, and its times. Pure."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.plan.actions import Action


@dataclass(frozen=True, slots=True)
class Move:
    """The result of advancing an operation: the actions for the recorded step, and the operation to record next."""

    operation: Operation | None
    """The same step, the next step, or None when the operation is done."""
    actions: tuple[Action, ...] = field(default=())


def rfc3339(now_s: float) -> str:
    """Format a time as Kubernetes does, in whole seconds."""
    return datetime.fromtimestamp(int(now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(timestamp: str) -> float:
    """Parse a timestamp to seconds since the epoch. ValueError if it is invalid."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def begun(
    kind: OperationType,
    step: Step,
    now_s: float,
    *,
    pod: str | None = None,
    bookie: str | None = None,
    target: str | None = None,
    message: str | None = None,
) -> Operation:
    """Return a new operation at its first step."""
    now = rfc3339(now_s)
    return Operation(
        type=kind,
        step=step,
        started_at=now,
        step_started_at=now,
        pod=pod,
        bookie=bookie,
        target=target,
        message=message,
    )


def moved(
    operation: Operation,
    step: Step,
    now_s: float,
    message: str | None = None,
    pod: str | None = None,
    empty_look: int | None = None,
) -> Operation:
    """Return the operation at another step, which begins now. `pod`: the next pod. `empty_look`: see `Operation`."""
    return operation.model_copy(
        update={
            "step": step,
            "step_started_at": rfc3339(now_s),
            "attempt": 1,
            "message": message,
            "pod": operation.pod if pod is None else pod,
            "empty_look": empty_look,
        }
    )


def waiting(operation: Operation, message: str) -> Operation:
    """Return the operation at the same step, with the reason why it waits."""
    return operation if operation.message == message else operation.model_copy(update={"message": message})


def step_age_s(operation: Operation, now_s: float) -> float:
    """Return how long the operation has been at its step."""
    return now_s - seconds_of(operation.step_started_at)
