"""Observation of pods."""

from quire_operator.cluster.observing import observed_pod


def test_a_pod_on_an_unreachable_node_is_started_and_not_ready() -> None:
    pod = {
        "metadata": {"name": "pool-bookie-0", "uid": "u"},
        "spec": {"nodeName": "n"},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "quire", "started": True, "ready": True}],
        },
    }
    seen = observed_pod(pod, {})
    assert (seen.started, seen.ready) == (True, False)
    pod["status"] = {"containerStatuses": [{"name": "quire", "started": False}]}
    assert not observed_pod(pod, {}).started
