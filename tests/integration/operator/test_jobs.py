"""Runs of jobs from a ManagedLedger to objects of a real API server, with a real broker; only pods are ours.

No controller of Jobs runs here, and no kubelet: the test says what they would say.
"""

from typing import Any

import pytest

from quire_operator.builders.job_runs import DRIVER_PORT
from tests.integration.operator import test_managed_ledger
from tests.integration.operator.conftest import CRD_PATH
from tests.integration.operator.declared_stack import make_broker_pod
from tests.integration.operator.kube_api import KubeApi
from tests.integration.operator.test_managed_ledger import Stack
from tests.support.polling import until

pytestmark = pytest.mark.slow
stack = test_managed_ledger.stack
ASKED = "2030-03-17T17:46:00Z"
"""Some seconds before the time of the passes."""
RUN = "orders-offload-20300317t1746"
OFFLOAD = {"target": "file:///mnt/cold", "deleteLag": "1h", "credentialsRef": {"name": "bucket"}}
SUMMARY = '{"outcome":"succeeded","kind":"offload","counts":{"ledgers_offloaded":2},"outputs":["file:///mnt/cold"]}'
GROUPS = {"sparkoperator.k8s.io": "v1beta2", "spark.apache.org": "v1"}


def jobs(stack: Stack) -> str:
    return f"/apis/batch/v1/namespaces/{stack.namespace}/jobs"


def row(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = stack.resource()["status"]["jobs"][0]
    return found


def ask(stack: Stack, wish: str = f"offload@{ASKED}") -> None:
    assert stack.api.merge(stack.path, {"metadata": {"annotations": {"quire.dev/run-job": wish}}}).ok


def condition(stack: Stack, kind: str) -> dict[str, Any]:
    return next(one for one in stack.resource()["status"]["conditions"] if one["type"] == kind)


def make_secret(stack: Stack, value: str) -> None:
    path = f"/api/v1/namespaces/{stack.namespace}/secrets/bucket"
    body = {"apiVersion": "v1", "kind": "Secret", "stringData": {"AWS_SECRET_ACCESS_KEY": value}}
    stack.api.apply(path, body | {"metadata": {"name": "bucket"}}).expect()


def make_driver(stack: Stack, job: dict[str, Any], status: dict[str, Any]) -> None:
    """As the controller of Jobs makes it from the template, and a kubelet reports of it."""
    path = f"/api/v1/namespaces/{stack.namespace}/pods"
    template = job["spec"]["template"]
    metadata = template["metadata"] | {"name": f"{job['metadata']['name']}-x"}
    stack.api.create(path, {"metadata": metadata, "spec": template["spec"]}).expect()
    stack.api.merge(f"{path}/{metadata['name']}/status", {"status": status}).expect()


def until_served(kube: KubeApi, path: str) -> None:
    """Served is later than established by a moment."""
    until(lambda: kube.get(path).ok, lambda: kube.get(path).message)


async def open_with(stack: Stack, **spec: Any) -> None:
    make_broker_pod(stack.api, stack.namespace)
    assert stack.api.merge(stack.path, {"spec": {"spark": {"image": "quire-jobs:1"}} | spec}).ok
    await stack.passes(4)


async def test_a_run_that_is_asked_for_is_made_once_watched_and_told(stack: Stack) -> None:
    await open_with(stack, offload=OFFLOAD)
    assert condition(stack, "OffloadHealthy")["reason"] == "CannotRun"
    assert "Secret bucket not found" in condition(stack, "OffloadHealthy")["message"]
    policies = await stack.rest("GET", "/admin/v2/namespaces/shop/orders/offloadPolicies")
    assert policies["managedLedgerOffloadDriver"] == "quire-folder"
    assert policies["managedLedgerOffloadBucket"] == "/mnt/cold"
    assert policies["managedLedgerOffloadDeletionLagInMillis"] == 3_600_000
    sets = f"/apis/apps/v1/namespaces/{stack.namespace}/statefulsets/orders-broker"
    digests = []
    for value in ("hidden-one", "hidden-two"):
        make_secret(stack, value)
        await stack.passes(1)
        annotations = stack.api.get(sets).expect()["spec"]["template"]["metadata"]["annotations"]
        digests.append(annotations["quire.dev/credentials-hash"])
    assert len(set(digests)) == 2, "a changed Secret is another template"

    ask(stack)
    await stack.passes(3)
    made = stack.api.get(jobs(stack)).expect()["items"]
    assert [job["metadata"]["name"] for job in made] == [RUN]
    pod = made[0]["spec"]["template"]["spec"]
    assert pod["containers"][0]["ports"][0]["containerPort"] == DRIVER_PORT
    assert "hidden" not in str(made), "credentials stay in their Secret"
    assert (row(stack)["state"], row(stack)["runId"]) == ("Pending", RUN)
    for kind in ("roles", "rolebindings"):
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{stack.namespace}/{kind}/orders-jobs"
        assert stack.api.get(path).ok, kind

    make_driver(stack, made[0], {"phase": "Running"})
    await stack.passes(1)
    assert (row(stack)["state"], row(stack)["pod"]) == ("Running", f"{RUN}-x")
    ended = {"terminated": {"exitCode": 0, "message": SUMMARY}}
    container = {"name": "quire", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": ended}
    pods = f"/api/v1/namespaces/{stack.namespace}/pods/{RUN}-x/status"
    stack.api.merge(pods, {"status": {"phase": "Succeeded", "containerStatuses": [container]}}).expect()
    times = {"lastTransitionTime": "2030-03-17T17:46:30Z", "lastProbeTime": "2030-03-17T17:46:30Z"}
    done = [{"type": kind, "status": "True", **times} for kind in ("SuccessCriteriaMet", "Complete")]
    status = {"startTime": ASKED, "completionTime": "2030-03-17T17:46:30Z", "succeeded": 1, "conditions": done}
    stack.api.merge(f"{jobs(stack)}/{RUN}/status", {"status": status}).expect()
    await stack.passes(2)
    assert row(stack)["state"] == "Succeeded"
    assert row(stack)["reason"] == "ledgers offloaded 2"
    assert row(stack)["lastSuccess"] == row(stack)["endedAt"] == "2030-03-17T17:46:30Z"
    assert row(stack)["outputs"] == ["file:///mnt/cold"]
    assert condition(stack, "OffloadHealthy")["status"] == "True"
    events = stack.api.get(f"/api/v1/namespaces/{stack.namespace}/events").expect()["items"]
    assert sorted(event["reason"] for event in events) == ["RunStarted", "RunSucceeded"]

    stack.api.call("DELETE", f"{jobs(stack)}/{RUN}", {"propagationPolicy": "Background"}).expect()
    await stack.passes(2)
    assert stack.api.get(jobs(stack)).expect()["items"] == [], "what was asked for once is done once"
    assert row(stack)["state"] == "Succeeded"


async def test_a_run_that_is_refused_is_told_and_keeps_no_other_back(stack: Stack, kube: KubeApi) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    namesake = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    kube.apply(f"{jobs(stack)}/{RUN}", namesake | {"metadata": {"name": RUN}}).expect()
    rates = {"name": "rates", "kind": "throughput", "output": "file:///mnt/reports"}
    await open_with(stack, offload=OFFLOAD | {"credentialsRef": None}, analytics=[rates])
    ask(stack, f"offload@{ASKED},rates@{ASKED}")
    await stack.passes(3)
    made = [job["metadata"]["name"] for job in stack.api.get(jobs(stack)).expect()["items"]]
    assert sorted(made) == [RUN, "orders-rates-20300317t1746"]
    assert f"Job {RUN} exists and does not belong to this resource" in condition(stack, "OffloadHealthy")["message"]
    assert (row(stack)["state"], condition(stack, "OffloadHealthy")["reason"]) == ("Pending", "CannotRun")
    assert condition(stack, "Ready")["status"] == "True", "the brokers serve as before"
    events = stack.api.get(f"/api/v1/namespaces/{stack.namespace}/events").expect()["items"]
    assert [event["message"].split(":")[0] for event in events if event["reason"] == "RunStarted"] == ["rates"]


async def test_of_ended_runs_only_as_many_stay_as_the_spec_says(stack: Stack) -> None:
    await open_with(stack, offload=OFFLOAD | {"credentialsRef": None}, spark={"image": "quire-jobs:1", "runsKept": 1})
    begun: list[str] = []
    for minute in (40, 42, 44):
        ask(stack, f"offload@2030-03-17T17:{minute}:00Z")
        await stack.passes(3)
        begun.append(f"orders-offload-20300317t17{minute}")
        made = [job["metadata"]["name"] for job in stack.api.get(jobs(stack)).expect()["items"]]
        assert sorted(made) == begun[-2:], "beside the one that runs the latest that ended"
        end(stack, begun[-1], "Failed" if minute == 44 else "Complete")
        await stack.passes(3)
        made = [job["metadata"]["name"] for job in stack.api.get(jobs(stack)).expect()["items"]]
        assert made == begun[-1:], "the API server has no other"
    assert (row(stack)["state"], row(stack)["runId"]) == ("Failed", begun[-1])
    assert row(stack)["lastSuccess"], "of a run that is no more"
    await stack.passes(2)
    made = [job["metadata"]["name"] for job in stack.api.get(jobs(stack)).expect()["items"]]
    assert made == begun[-1:], "what was cleaned away does not run again"


def end(stack: Stack, name: str, kind: str) -> None:
    """As the controller of Jobs says it: `Complete` or `Failed`."""
    times = {"lastTransitionTime": "2030-03-17T17:46:30Z", "lastProbeTime": "2030-03-17T17:46:30Z"}
    before = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
    status = {
        "startTime": ASKED,
        "conditions": [{"type": one, "status": "True", **times} for one in (before, kind)],
        **({"completionTime": "2030-03-17T17:46:30Z", "succeeded": 1} if kind == "Complete" else {"failed": 1}),
    }
    stack.api.merge(f"{jobs(stack)}/{name}/status", {"status": status}).expect()


async def test_where_a_spark_operator_is_runs_are_its_applications(stack: Stack, kube: KubeApi) -> None:
    for group, version in GROUPS.items():
        kube.apply(f"{CRD_PATH}/sparkapplications.{group}", minimal_crd(group, version)).expect()
    try:
        for group, version in GROUPS.items():
            path = f"/apis/{group}/{version}/namespaces/{stack.namespace}/sparkapplications"
            until_served(kube, path)
        await open_with(stack, offload=OFFLOAD | {"credentialsRef": None})
        ask(stack)
        await stack.passes(3)
        path = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{stack.namespace}/sparkapplications"
        made = kube.get(path).expect()["items"]
        assert [one["metadata"]["name"] for one in made] == [RUN]
        assert made[0]["spec"]["arguments"][:3] == ["jobs", "run", "offload"]
        assert kube.get(jobs(stack)).expect()["items"] == []
        state = {"applicationState": {"state": "FAILED", "errorMessage": "driver evicted"}, "terminationTime": ASKED}
        kube.merge(f"{path}/{RUN}", {"status": state}).expect()
        await stack.passes(2)
        assert (row(stack)["state"], row(stack)["reason"]) == ("Failed", "driver evicted")
        assert condition(stack, "OffloadHealthy")["status"] == "False"
    finally:
        for group in GROUPS:
            kube.call("DELETE", f"{CRD_PATH}/sparkapplications.{group}")


def minimal_crd(group: str, version: str) -> dict[str, Any]:
    """As far as the operator looks at it: the API server keeps what is in it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"sparkapplications.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": "SparkApplication", "plural": "sparkapplications", "singular": "sparkapplication"},
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
