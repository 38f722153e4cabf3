"""Jobs on Spark as a ManagedLedger declares them.

Ledgers are offloaded to a bucket by the schedule, bookies' copies are deleted, and everything is read back from the
earliest message; an analysis writes its report; wrong keys are reported. These tests run last, as the bucket is part of
the topics from then on.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import bucket, manifests
from tests.e2e.kube import Manifest, condition, until
from tests.e2e.quire_plugin import kubectl_quire
from tests.e2e.stack import Stack

Measured = Callable[[str, float], None]
RUN_S = 600.0
TOPICS = [f"{manifests.PULSAR_NAMESPACE}/load-{number}" for number in range(4)]


@pytest.fixture
def jobs(stack: Stack) -> Stack:
    """The stack with a bucket and jobs."""
    bucket.serve(stack)
    stack.cluster.merge(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER, {"spec": _spec(stack.where)})
    return stack


def _spec(where: str) -> Manifest:
    place = {"region": bucket.REGION, "endpoint": bucket.endpoint(where)}
    report = {"kind": "throughput", "output": f"s3://{bucket.REPORTS}/reports", "params": place}
    small = {"resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1536Mi"}}}
    return {
        "rollover": {"maxEntries": 2000, "maxSize": "64Mi", "minTime": "0s", "maxTime": "1h"},
        "offload": {
            **place,
            "target": f"s3://{bucket.LEDGERS}",
            "credentialsRef": {"name": bucket.CREDENTIALS},
            "after": {"time": "1s"},
            "deleteLag": "5s",
            "schedule": "* * * * *",
        },
        "analytics": [
            {"name": "hours", "credentialsRef": {"name": bucket.CREDENTIALS}, **report},
            {"name": "denied", "credentialsRef": {"name": bucket.WRONG_CREDENTIALS}, **report},
        ],
        "spark": {"launcher": "Job", "driver": small, "executors": {"replicas": 1, **small}},
    }


@pytest.mark.timeout(2400)
def test_ledgers_go_to_the_bucket_and_every_message_comes_back_from_there(
    jobs: Stack, shell: Callable[..., str], measured: Measured
) -> None:
    start_s = time.monotonic()
    first = until("a run of the schedule has ended well", lambda: _job(jobs, "offload", "lastSuccess"), RUN_S)
    measured("from the spec to the first run that ended well", time.monotonic() - start_s)
    assert first["kind"] == "offload" and first["runId"].startswith(f"{manifests.LEDGER}-offload-")
    gone = until("bookies' copies are deleted, of each topic", lambda: _gone(jobs, shell), RUN_S, poll_s=5.0)
    measured("from the spec to bookies' copies that are deleted", time.monotonic() - start_s)
    kept = bucket.names(jobs.cluster, bucket.LEDGERS)
    for ledger in gone:
        assert any(f"-ledger-{ledger}-index" in name for name in kept), (
            f"{ledger} is neither on bookies nor in the bucket"
        )
    measured("messages that a stock client read back from the earliest on", float(jobs.check_all()))
    healthy = condition(_ledger(jobs), "OffloadHealthy")
    assert healthy is not None and healthy["status"] == "True", healthy
    logged = '"ledgers_offloaded"'
    until("its driver's log tells", lambda: logged in kubectl_quire(jobs, "job", "logs", "offload"), RUN_S, poll_s=2.0)


@pytest.mark.timeout(1200)
def test_an_analysis_that_is_asked_for_leaves_its_report_and_its_summary(jobs: Stack, measured: Measured) -> None:
    start_s = time.monotonic()
    kubectl_quire(jobs, "job", "run", f"{manifests.LEDGER}/hours")
    row = until("it has ended", lambda: _job(jobs, "hours", "endedAt"), RUN_S)
    assert row["state"] == "Succeeded", row
    measured("from the wish to the report", time.monotonic() - start_s)
    assert any(url.startswith(f"s3://{bucket.REPORTS}/reports") for url in row["outputs"]), row
    assert "Succeeded" in kubectl_quire(jobs, "jobs", manifests.LEDGER)
    summary = json.loads(bucket.content(jobs.cluster, bucket.REPORTS, "reports/throughput/summary.json"))
    assert summary["counts"]["topics"] == len(TOPICS) and summary["counts"]["messages"] > 0, summary
    page = bucket.content(jobs.cluster, bucket.REPORTS, "reports/throughput/report.html")
    assert "<svg" in page and all(topic.rpartition("/")[2] in page for topic in TOPICS)


@pytest.mark.timeout(1200)
def test_wrong_keys_are_a_condition_with_the_reason(jobs: Stack) -> None:
    kubectl_quire(jobs, "job", "run", "denied")
    row = until("it has failed", lambda: _failed(jobs, "denied"), RUN_S)
    assert bucket.REPORTS in row["reason"], row
    said = until("the condition reports it", lambda: _unhealthy(jobs, "AnalyticsHealthy"), 60)
    assert "denied" in said["message"] and "only-of-this-test" not in json.dumps(_ledger(jobs))
    assert "AnalyticsHealthy is False" in kubectl_quire(jobs, "explain", f"managedledger/{manifests.LEDGER}")


def _ledger(stack: Stack) -> Manifest:
    return stack.cluster.get(manifests.API_VERSION, "ManagedLedger", manifests.LEDGER) or {}


def _job(stack: Stack, name: str, field: str) -> Manifest | None:
    """Return a job's row of the status, once it has the field."""
    rows: list[Manifest] = _ledger(stack).get("status", {}).get("jobs", [])
    return next((row for row in rows if row["name"] == name and row.get(field)), None)


def _failed(stack: Stack, name: str) -> Manifest | None:
    row = _job(stack, name, "endedAt")
    return row if row is not None and row["state"] == "Failed" else None


def _unhealthy(stack: Stack, kind: str) -> Manifest | None:
    found = condition(_ledger(stack), kind)
    return found if found is not None and found["status"] == "False" else None


def _gone(stack: Stack, shell: Callable[..., str]) -> list[int]:
    """Return offloaded ledgers that no bookie has any more, if there is at least one of each topic."""
    found: list[int] = []
    for topic in TOPICS:
        ledgers = _internal(stack, topic)["ledgers"]
        gone = [one["ledgerId"] for one in ledgers if one["offloaded"] and not _is_on_bookies(shell, one["ledgerId"])]
        if not gone:
            return []
        found += gone
    return found


def _internal(stack: Stack, topic: str) -> dict[str, Any]:
    where = f"/api/v1/namespaces/{stack.where}/pods/https:{manifests.LEDGER}-broker-0:8443/proxy"
    answer = stack.cluster.api.call("GET", f"{where}/admin/v2/persistent/{topic}/internalStats")
    found: dict[str, Any] = answer.expect()
    return found


def _is_on_bookies(shell: Callable[..., str], ledger: int) -> bool:
    try:
        shell("ledger", "read", str(ledger), "0", "--text")
    except AssertionError as error:
        assert f"{ledger}" in str(error), error
        return False
    return True
