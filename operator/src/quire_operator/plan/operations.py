"""What the state machines share: one move of an operation, and its times. Pure."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.plan.actions import Action


@dataclass(frozen=True, slots=True)
class Move:
    """What one pass makes of an operation: what to do for the step that is on record, and what to put on record."""

    operation: Operation | None
    """The same, the next step, or None: done."""
    actions: tuple[Action, ...] = field(default=())


def rfc3339(now_s: float) -> str:
    """A time as Kubernetes writes it, in whole seconds."""
    return datetime.fromtimestamp(int(now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(timestamp: str) -> float:
    """Seconds since the epoch. ValueError for what is no time."""
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
    """A new operation at its first step."""
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
    """At another step, which begins now; `pod` names the next one it is about, `empty_look` what led here."""
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
    """At the same step, for a reason."""
    return operation if operation.message == message else operation.model_copy(update={"message": message})


def step_age_s(operation: Operation, now_s: float) -> float:
    """How long it has been at its step."""
    return now_s - seconds_of(operation.step_started_at)
