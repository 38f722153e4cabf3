"""Observation of runs and their driver pods."""

from typing import Any

import pytest

from quire_operator.api.managed_ledger import JobState, ManagedLedger
from quire_operator.cluster.observing_jobs import _of_application, _of_job, digest
from quire_operator.plan.jobs_observation import REASON_MAX
from tests.support.kube_resources import managed_ledger

LABELS = {"quire.dev/job": "offload", "quire.dev/slot": "20260131t0417"}
T1, T2 = "2026-01-31T04:17:02Z", "2026-01-31T04:18:00Z"


def resource() -> ManagedLedger:
    manifest = managed_ledger()
    manifest["metadata"] |= {"uid": "mine"}
    return ManagedLedger.model_validate(manifest)


def item(status: dict[str, Any], owner: str = "mine", **labels: str) -> dict[str, Any]:
    metadata = {"name": "r", "uid": "u", "labels": LABELS | labels, "ownerReferences": [{"uid": owner}]}
    return {"metadata": metadata, "status": status}


def pod(message: str = "", created: str = T1, name: str = "d", **status: Any) -> dict[str, Any]:
    statuses = [{"name": "quire", "state": {"terminated": {"message": message, "exitCode": 1}}}] if message else []
    metadata = {"name": name, "labels": LABELS, "creationTimestamp": created}
    return {"metadata": metadata, "status": {"containerStatuses": statuses, **status}}


def ends(kind: str, **more: str) -> dict[str, Any]:
    return {"startTime": T1, "conditions": [{"type": kind, "status": "True", "lastTransitionTime": T2, **more}]}


@pytest.mark.parametrize(
    ("status", "pods", "state", "reason"),
    [
        ({}, [], JobState.PENDING, ""),
        ({"active": 1}, [pod(phase="Running")], JobState.RUNNING, ""),
        (
            {"active": 1},
            [pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}])],
            JobState.PENDING,
            "no room",
        ),
        (ends("Complete"), [pod('{"counts": {"a_b": 1}}')], JobState.SUCCEEDED, "a b 1"),
        (ends("Failed", message="backoff limit"), [], JobState.FAILED, "backoff limit"),
        (
            ends("Failed", message="backoff limit"),
            [pod('{"error": "first"}'), pod('{"error": "second"}', T2, "e")],
            JobState.FAILED,
            "second",
        ),
        (
            ends("Failed", reason="DeadlineExceeded"),
            [pod('{"error": "terminated"}')],
            JobState.FAILED,
            "it took longer than spark.activeDeadline",
        ),
        ({"failed": 1}, [], JobState.PENDING, "its driver failed and is being restarted"),
    ],
)
def test_a_job_has_the_state_from_its_conditions_and_driver(
    status: dict[str, Any], pods: list[dict[str, Any]], state: JobState, reason: str
) -> None:
    found = _of_job(resource(), item(status), pods)
    assert found is not None
    assert (found.state, found.reason) == (state, reason)
    assert (found.ended_at == T2) == found.ended


def history(*states: str) -> dict[str, Any]:
    entries = {
        str(n): {"currentStateSummary": state, "lastTransitionTime": "2026-01-31T04:18:00.123Z", "message": f"m{n}"}
        for n, state in enumerate(states)
    }
    return {"currentState": entries[str(len(states) - 1)], "stateTransitionHistory": entries}


@pytest.mark.parametrize(
    ("version", "status", "state"),
    [
        ("sparkoperator.k8s.io/v1beta2", {}, JobState.PENDING),
        ("sparkoperator.k8s.io/v1beta2", {"applicationState": {"state": "SUBMITTED"}}, JobState.PENDING),
        ("sparkoperator.k8s.io/v1beta2", {"applicationState": {"state": "RUNNING"}}, JobState.RUNNING),
        ("sparkoperator.k8s.io/v1beta2", {"applicationState": {"state": "COMPLETED"}}, JobState.SUCCEEDED),
        ("sparkoperator.k8s.io/v1beta2", {"applicationState": {"state": "SUBMISSION_FAILED"}}, JobState.FAILED),
        ("spark.apache.org/v1", {}, JobState.PENDING),
        ("spark.apache.org/v1", history("Submitted", "DriverRequested"), JobState.PENDING),
        ("spark.apache.org/v1", history("Submitted", "RunningHealthy"), JobState.RUNNING),
        ("spark.apache.org/v1", history("RunningHealthy", "Succeeded", "ResourceReleased"), JobState.SUCCEEDED),
        ("spark.apache.org/v1", history("RunningHealthy", "Failed", "ResourceReleased"), JobState.FAILED),
        (
            "spark.apache.org/v1",
            history("Failed", "ScheduledToRestart", "Succeeded", "TerminatedWithoutReleaseResources"),
            JobState.SUCCEEDED,
        ),
        ("spark.apache.org/v1", history(*["Submitted"] * 10, "DriverEvicted", "ResourceReleased"), JobState.FAILED),
        ("spark.apache.org/v1", history("RunningHealthy", "Failed"), JobState.RUNNING),
        ("spark.apache.org/v1", history("RunningHealthy", "Failed", "ScheduledToRestart"), JobState.PENDING),
    ],
)
def test_applications_of_both_spark_operators_are_parsed(version: str, status: dict[str, Any], state: JobState) -> None:
    found = _of_application(resource(), version, item(status), [])
    assert found is not None
    assert (found.state, found.api_version, found.kind) == (state, version, "SparkApplication")
    if version.startswith("spark.apache") and found.ended:
        assert found.ended_at == T2, "whole seconds, as Kubernetes writes them"


def test_a_long_reason_is_cut_to_the_limit_of_a_status() -> None:
    trace = "at org.apache.spark.deploy.SparkSubmit$.main(SparkSubmit.scala:1120)\n" * 500
    status = {"applicationState": {"state": "FAILED", "errorMessage": trace}}
    found = _of_application(resource(), "sparkoperator.k8s.io/v1beta2", item(status), [])
    assert found is not None and found.reason == trace[:REASON_MAX]


def test_runs_of_another_owner_are_ignored() -> None:
    assert _of_job(resource(), item({}, owner="former"), []) is None
    assert _of_job(resource(), item({}, **{"quire.dev/slot": "soon"}), []) is None


def test_a_digest_depends_on_the_values_and_the_uid() -> None:
    secret = {"metadata": {"uid": "a"}, "data": {"KEY": "dmFsdWU="}}
    assert digest(secret) == digest({"metadata": {"uid": "a", "labels": {"x": "y"}}, "data": {"KEY": "dmFsdWU="}})
    others = [{"metadata": {"uid": "b"}, "data": secret["data"]}, {"metadata": {"uid": "a"}, "data": {"KEY": "eA=="}}]
    assert len({digest(one) for one in (secret, *others)}) == 3
