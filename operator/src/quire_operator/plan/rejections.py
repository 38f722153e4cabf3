"""Rejected writes and blocked pods: their reasons, and the event that reports each once. Pure."""

from collections.abc import Iterable, Sequence

from quire_operator.api.conditions import Condition, Finding, Truth
from quire_operator.errors import ConflictError, KubeError, OperatorError, RefusedError
from quire_operator.plan.actions import Emit
from quire_operator.plan.observation import ObservedPod, ObservedStatefulSet, Rejection

REJECTED, BLOCKED = "WriteRejected", "PodsBlocked"
MESSAGE_MAX = 1000
PODS_NAMED = 5
_REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "TooLarge",
    422: "Invalid",
}
"""By HTTP status. Others (429, 503, 504, ...) mean that the API server is overloaded: the next retry may succeed."""


def rejection_of(error: OperatorError) -> Rejection | None:
    """Return the rejection that an error reports; None if the same write may succeed without a change."""
    message = str(error)[:MESSAGE_MAX]
    if isinstance(error, RefusedError):
        return Rejection("Refused", message)
    if not isinstance(error, KubeError) or isinstance(error, ConflictError):
        return None
    if "admission webhook" in message or "failed calling webhook" in message:
        return Rejection("RejectedByWebhook", message)
    if error.status == 403 and "exceeded quota" in message:
        return Rejection("QuotaExceeded", message)
    reason = _REASONS.get(error.status)
    return None if reason is None else Rejection(reason, message)


def rejected(rejection: Rejection | None) -> Finding:
    """Return the condition `WriteRejected`."""
    if rejection is None:
        return Finding(type=REJECTED, status=Truth.FALSE, reason="Accepted")
    return Finding(type=REJECTED, status=Truth.TRUE, reason=rejection.reason, message=rejection.message)


def blocked(pods: Iterable[ObservedPod], there: ObservedStatefulSet | None = None) -> Finding:
    """Return the condition `PodsBlocked`; its reason is that of a rejected pod, or of the first blocked one."""
    if there is not None and there.rejected_pod is not None:
        message = f"{there.name}: {there.rejected_pod}"[:MESSAGE_MAX]
        return Finding(type=BLOCKED, status=Truth.TRUE, reason="FailedCreate", message=message)
    found = sorted(
        (pod.name, pod.blocked) for pod in pods if pod.blocked is not None and not pod.deleting and not pod.ready
    )
    if not found:
        return Finding(type=BLOCKED, status=Truth.FALSE, reason="NoneBlocked")
    texts = [
        f"{name}: {reason}" + (f": {message}" if message else "") for name, (reason, message) in found[:PODS_NAMED]
    ]
    texts += [f"{len(found) - PODS_NAMED} more"] if len(found) > PODS_NAMED else []
    return Finding(type=BLOCKED, status=Truth.TRUE, reason=found[0][1][0], message="; ".join(texts)[:MESSAGE_MAX])


def rejection_events(before: Sequence[Condition], rejection: Rejection | None) -> list[Emit]:
    """Return an event for a rejection that the former conditions did not report."""
    return _events(before, rejected(rejection))


def blocked_events(
    before: Sequence[Condition], pods: Iterable[ObservedPod], there: ObservedStatefulSet | None = None
) -> list[Emit]:
    """Return an event for blocked pods that the former conditions did not report."""
    return _events(before, blocked(pods, there))


def _events(before: Sequence[Condition], found: Finding) -> list[Emit]:
    known = any((one.type, one.status, one.reason) == (found.type, Truth.TRUE, found.reason) for one in before)
    return [] if known or found.status is not Truth.TRUE else [Emit(found.reason, found.message, True)]
