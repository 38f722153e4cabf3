"""Why a StatefulSet cannot create its pods, from events."""

from typing import Any

import pytest

from quire_operator.cluster.memory import Cache
from quire_operator.cluster.pod_creation import last_rejection, rejected_pod
from quire_operator.errors import KubeError

MESSAGE = 'create Pod pool-bookie-3 failed: pods "pool-bookie-3" is forbidden: exceeded quota: compute'
SET = {"metadata": {"name": "pool-bookie", "uid": "s"}, "spec": {"replicas": 4}}


def event(reason: str, at: str, uid: str = "s") -> dict[str, Any]:
    return {"involvedObject": {"uid": uid}, "reason": reason, "lastTimestamp": at, "message": MESSAGE}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], None),
        ([event("FailedCreate", "2030-01-01T00:00:05Z")], MESSAGE),
        ([event("FailedCreate", "2030-01-01T00:00:05Z", "another")], None),
        ([event("SuccessfulCreate", "2030-01-01T00:00:09Z"), event("FailedCreate", "2030-01-01T00:00:05Z")], None),
        ([event("FailedCreate", "2030-01-01T00:00:09Z"), event("SuccessfulCreate", "2030-01-01T00:00:05Z")], MESSAGE),
        ([event("FailedCreate", "2030-01-01T00:00:05Z"), event("SuccessfulCreate", "2030-01-01T00:00:05Z")], None),
        ([event("RecreatingFailedPod", "2030-01-01T00:00:05Z")], None),
    ],
)
def test_the_latest_event_about_pods_decides(events: list[dict[str, Any]], message: str | None) -> None:
    assert last_rejection(events, "s") == message


class Events:
    """Serves events, or refuses to, and counts the requests."""

    def __init__(self, *, forbidden: bool = False) -> None:
        self.asked = 0
        self._forbidden = forbidden

    async def list(self, path: str) -> list[dict[str, Any]]:
        assert path == "/api/v1/namespaces/ns/events"
        self.asked += 1
        if self._forbidden:
            raise KubeError(403, "events is forbidden")
        return [event("FailedCreate", "2030-01-01T00:00:05Z")]


async def test_events_are_read_only_while_pods_are_missing_and_once_a_minute() -> None:
    kube, cache = Events(), Cache()
    served: Any = kube
    assert await rejected_pod(served, cache, "ns", SET, 4, 0.0) is None
    assert kube.asked == 0
    assert await rejected_pod(served, cache, "ns", SET, 3, 0.0) == MESSAGE
    assert await rejected_pod(served, cache, "ns", SET, 3, 30.0) == MESSAGE
    assert kube.asked == 1
    assert await rejected_pod(served, cache, "ns", SET, 3, 61.0) == MESSAGE
    assert kube.asked == 2


async def test_without_the_permission_to_read_events_the_cause_is_unknown() -> None:
    served: Any = Events(forbidden=True)
    assert await rejected_pod(served, Cache(), "ns", SET, 3, 0.0) is None
