"""Termination messages of pods, and hosts of volumes."""

from typing import Any

import pytest

from quire_operator.cluster.lost_volumes import hosts_of, last_words, what_blocks

ENDED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "starting\n\nquire: the folder /x is empty\n"}}


def pod(state: dict[str, Any], last: dict[str, Any] | None = None, name: str = "quire") -> dict[str, Any]:
    return {"status": {"containerStatuses": [{"name": name, "state": state, "lastState": last or {}}]}}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pod({"running": {}}, ENDED), None),
        (pod({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED), "the folder /x is empty"),
        (pod(ENDED), "the folder /x is empty"),
        (pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "its process exited with code 137 (OOMKilled)"),
        (pod({"waiting": {"reason": "ContainerCreating"}}), None),
        (
            pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            "ImagePullBackOff: no such image",
        ),
        (pod(ENDED, name="sidecar"), None),
        ({"status": {}}, None),
        ({}, None),
    ],
)
def test_the_termination_message_of_a_failing_process_is_found(found: dict[str, Any], words: str | None) -> None:
    assert last_words(found) == words


def test_only_a_local_volume_has_hosts() -> None:
    rules = [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]},
    ]
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": rules}]}}
    assert hosts_of({"spec": {"nodeAffinity": terms}}) == {"n1"}
    assert hosts_of({"spec": {}}) == set()


def conditioned(reason: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/3 nodes are available"}
    return {"status": {"conditions": [condition]}}


def waiting(reason: str) -> dict[str, Any]:
    return pod({"waiting": {"reason": reason, "message": "m"}})


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (conditioned("Unschedulable"), "Unschedulable"),
        (conditioned("SchedulingGated"), None),
        *((waiting(reason), reason) for reason in ("ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError")),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff"),
        (waiting("ContainerCreating"), None),
        (pod({"running": {}}), None),
        ({"status": {"initContainerStatuses": waiting("ErrImagePull")["status"]["containerStatuses"]}}, "ErrImagePull"),
        ({}, None),
    ],
)
def test_what_blocks_a_pod_is_the_reason_of_kubernetes(found: dict[str, Any], reason: str | None) -> None:
    blocks = what_blocks(found)
    assert (None if blocks is None else blocks[0]) == reason
