"""What is read from a pod."""

from quire_operator.cluster.observing import pod_seen


def test_a_pod_of_a_machine_that_is_away_was_started_and_is_not_ready() -> None:
    pod = {
        "metadata": {"name": "pool-bookie-0", "uid": "u"},
        "spec": {"nodeName": "n"},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "quire", "started": True, "ready": True}],
        },
    }
    seen = pod_seen(pod, {})
    assert (seen.started, seen.ready) == (True, False)
    pod["status"] = {"containerStatuses": [{"name": "quire", "started": False}]}
    assert not pod_seen(pod, {}).started
