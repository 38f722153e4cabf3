"""The runbook of docs/kubernetes/backup.md under load: etcd is lost, an old backup is restored, no message is lost."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import bucket, manifests, release
from tests.e2e.kube import condition, until
from tests.e2e.release import kubectl
from tests.e2e.stack import BROKER_PODS, ETCD_PODS, OPERATOR_PODS, Stack

Measured = Callable[..., None]
WELL_S = 400.0
PLACE = f"s3://{bucket.BACKUPS}/prod"
BACKUP = f"{manifests.ETCD}-backup"
LEDGER_PASSWORD = "/etc/quire/ledger-password/password"
AUTO_RECOVERY_PODS = "app.kubernetes.io/name=quire-autorecovery"


@pytest.mark.timeout(1500)
def test_a_lost_etcd_is_restored_from_an_old_backup_and_newer_ledgers_are_found_on_the_bookies(
    stack: Stack, shell: Callable[..., str], measured: Measured
) -> None:
    _back_up(stack)
    shell("metadata", "verify", "--from", PLACE)
    # Topics close their ledgers and continue in new ones, which the backup does not contain.
    (broker,) = stack.cluster.pods(BROKER_PODS)
    stack.cluster.delete("v1", "Pod", broker["metadata"]["name"])
    until("the broker is another one", lambda: _uid(stack) not in (None, broker["metadata"]["uid"]), WELL_S)
    stack.goes_on(2000)

    start_s = time.monotonic()
    _lose_the_metadata(stack)
    assert '"restored": false' in shell("metadata", "restore", "--from", PLACE, "--json"), "a dry run restores nothing"
    shell("metadata", "restore", "--from", PLACE, "--yes")
    until("all bookies are there, with their cookies", lambda: _all_known(shell, stack.replicas), WELL_S)
    found = until("all bookies report their ledgers", lambda: _complete(shell), WELL_S)
    newer = [row["ledger"] for row in found["differences"] if row["kind"] == "orphan"]
    assert newer, "no ledger was created after the backup"
    shell("metadata", "orphans", "adopt", "--all", "--password-file", LEDGER_PASSWORD)
    attached = _attach(shell, newer)
    assert len(attached) == stack.topics, "every topic had a newer ledger"
    shell("metadata", "release-hold")
    kubectl(stack.cluster, "scale", f"deployment/{manifests.OPERATOR}", "--replicas=1")
    stack.wait_until_well(WELL_S)
    stack.goes_on()
    measured("from the loss of etcd to a pool that is well", time.monotonic() - start_s)
    release.helm(stack.cluster, "rollback", manifests.RELEASE, "--wait", "--timeout", release.PATIENCE)
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check_all()


def _back_up(stack: Stack) -> None:
    """Back up into the bucket with the chart's CronJob, which an upgrade of the release adds."""
    bucket.serve(stack)
    keys = bucket.access(stack.where)
    env = {name: value for name, value in keys.items() if name in ("AWS_ENDPOINT_URL", "AWS_REGION")}
    backup = {
        "enabled": True,
        "to": PLACE,
        "schedule": "0 0 1 1 *",
        "credentialsSecret": bucket.CREDENTIALS,
        "env": env,
    }
    release.install(stack.cluster, etcd={"backup": backup})
    kubectl(stack.cluster, "create", "job", "first-backup", f"--from=cronjob/{BACKUP}")
    until("the backup is made", lambda: _has_ended(stack, "first-backup"), WELL_S)
    kubectl(stack.cluster, "patch", "cronjob", BACKUP, "--patch", '{"spec": {"suspend": true}}')


def _has_ended(stack: Stack, job: str) -> bool:
    found = stack.cluster.get("batch/v1", "Job", job) or {}
    failed = condition(found, "Failed")
    assert failed is None or failed["status"] != "True", failed
    done = condition(found, "Complete")
    return done is not None and done["status"] == "True"


def _uid(stack: Stack) -> str | None:
    pods = stack.cluster.pods(BROKER_PODS)
    return pods[0]["metadata"]["uid"] if len(pods) == 1 else None


def _lose_the_metadata(stack: Stack) -> None:
    """Delete etcd with its volume, then stop all writers before an empty etcd replaces it."""
    etcd = f"statefulset/{manifests.ETCD}"
    kubectl(stack.cluster, "scale", etcd, "--replicas=0")
    stack.wait_for_pods(ETCD_PODS, 0, 120)
    kubectl(stack.cluster, "delete", "persistentvolumeclaim", f"data-{manifests.ETCD}-0")
    kubectl(stack.cluster, "scale", f"deployment/{manifests.OPERATOR}", "--replicas=0")
    stack.wait_for_pods(OPERATOR_PODS, 0, 120)
    writers = (f"deployment/{manifests.POOL}-autorecovery", f"statefulset/{manifests.LEDGER}-broker")
    kubectl(stack.cluster, "scale", *writers, "--replicas=0")
    for pods in (AUTO_RECOVERY_PODS, BROKER_PODS):
        stack.wait_for_pods(pods, 0, 180)
    kubectl(stack.cluster, "scale", etcd, "--replicas=1")
    stack.wait_for_pods(ETCD_PODS, 1, 180)


def _all_known(shell: Callable[..., str], count: int) -> bool:
    rows = json.loads(shell("metadata", "cookies", "list", "--json"))["bookies"]
    return [row["state"] for row in rows] == ["known"] * count


def _complete(shell: Callable[..., str]) -> dict[str, Any] | None:
    said: dict[str, Any] = json.loads(shell("metadata", "orphans", "list", "--json"))
    return None if said["silent"] or said["unsure"] else said


def _attach(shell: Callable[..., str], ledgers: list[int]) -> dict[str, list[int]]:
    """Attach each ledger to the topic whose name its messages begin with."""
    found: dict[str, list[int]] = {}
    for ledger in sorted(ledgers):
        text = shell("ledger", "read", str(ledger), "0", "--text")
        topic = re.search(rf"persistent://{manifests.PULSAR_NAMESPACE}/load-\d+(?= \d+ )", text)
        if topic is not None:
            found.setdefault(topic[0], []).append(ledger)
    for topic_name, its in found.items():
        words = ("topic", "attach", topic_name, *map(str, its))
        try:
            shell(*words)
        except AssertionError as error:
            # The topic was writing to its last listed ledger when the backup was made, as the message says.
            named = re.search(r"`quire (metadata orphans adopt \d+)` closes it", str(error))
            assert named is not None, error
            shell(*named[1].split())
            shell(*words)
    return found
