"""Reasons of rejected writes and of blocked pods, and the events that report them once."""

import pytest

from quire_operator.api.conditions import moved_on
from quire_operator.errors import ConflictError, KubeError, OperatorError, RefusedError, UnreachableError
from quire_operator.plan.observation import ObservedPod, Rejection
from quire_operator.plan.rejections import (
    MESSAGE_MAX,
    blocked,
    blocked_events,
    rejected,
    rejection_events,
    rejection_of,
)

QUOTA = 'PATCH x: pods "p" is forbidden: exceeded quota: compute, requested: cpu=3, used: cpu=8, limited: cpu=8'


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KubeError(422, "StatefulSet is invalid: resources.requests: must be less than the limit"), "Invalid"),
        (KubeError(403, QUOTA), "QuotaExceeded"),
        (KubeError(403, "statefulsets.apps is forbidden: User cannot patch resource"), "Forbidden"),
        (KubeError(400, 'admission webhook "policy.example.org" denied the request: no'), "RejectedByWebhook"),
        (KubeError(500, 'Internal error occurred: failed calling webhook "policy.example.org"'), "RejectedByWebhook"),
        (RefusedError("POST persistence: the broker refused (412)"), "Refused"),
        (KubeError(429, "too many requests"), None),
        (KubeError(503, "etcd leader changed"), None),
        (ConflictError(409, "the object has been modified"), None),
        (UnreachableError("no response in time"), None),
    ],
)
def test_a_rejection_has_a_reason_and_an_overload_is_none(error: OperatorError, reason: str | None) -> None:
    found = rejection_of(error)
    assert (None if found is None else found.reason) == reason
    assert found is None or found.message == str(error)


def test_messages_are_bounded() -> None:
    found = rejection_of(KubeError(422, "x" * 10_000))
    assert found is not None
    assert len(found.message) == MESSAGE_MAX
    pods = [ObservedPod(f"pool-bookie-{number}", blocked=("ErrImagePull", "y" * 900)) for number in range(9)]
    assert len(blocked(pods).message) == MESSAGE_MAX


def test_blocked_pods_are_named_and_ready_ones_are_not() -> None:
    pods = [
        ObservedPod("pool-bookie-1", blocked=("Unschedulable", "0/3 nodes are available")),
        ObservedPod("pool-bookie-0", ready=True, blocked=("CrashLoopBackOff", "a sidecar")),
        ObservedPod("pool-bookie-2", deleting=True, blocked=("ErrImagePull", "")),
    ]
    found = blocked(pods)
    assert (found.reason, found.message) == ("Unschedulable", "pool-bookie-1: Unschedulable: 0/3 nodes are available")


def test_an_event_reports_each_reason_once() -> None:
    rejection = Rejection("Invalid", "must be less than the limit")
    (event,) = rejection_events((), rejection)
    assert (event.reason, event.message, event.warning) == ("Invalid", rejection.message, True)
    before = moved_on((), [rejected(rejection)], "2030-01-01T00:00:00Z", 1)
    assert rejection_events(before, rejection) == []
    assert [one.reason for one in rejection_events(before, Rejection("QuotaExceeded", "cpu"))] == ["QuotaExceeded"]
    assert rejection_events(before, None) == []
    pods = [ObservedPod("pool-bookie-1", blocked=("ErrImagePull", "not found"))]
    assert [one.reason for one in blocked_events(before, pods)] == ["ErrImagePull"]
    assert blocked_events(moved_on((), [blocked(pods)], "2030-01-01T00:00:00Z", 1), pods) == []
