"""What is read from a pod."""

from quire_operator.cluster.observing import observed_pod


def test_a_pod_of_a_machine_that_is_away_was_started_and_is_not_ready() -> None:
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
