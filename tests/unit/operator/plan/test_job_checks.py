"""Secrets in Spark settings and URLs of a spec are refused; no message shows one."""

from typing import Any

import pytest

from quire_jobs.main import secret_settings
from quire_operator.api.bookie import Bookie
from quire_operator.api.conditions import Finding
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.job_parameters import jobs_of
from quire_operator.plan import actions as act
from quire_operator.plan import job_checks
from quire_operator.plan.job_checks import holds_secret, job_faults
from quire_operator.plan.jobs import plan_jobs
from quire_operator.plan.jobs_observation import JobsObservation
from quire_operator.plan.ledger_observation import LedgerObservation
from tests.support.kube_resources import bookie, managed_ledger
from tests.unit.jobs.main.test_secret_settings import OPEN, SECRET

VALUE = "not-for-the-spec"
ASKED_S = 1_900_000_000.0
ASKED = "2030-03-17T17:46:40Z"


def resource(conf: dict[str, str], **metadata: Any) -> ManagedLedger:
    manifest = managed_ledger(offload={"target": "s3://cold"}, spark={"conf": conf})
    manifest["metadata"] |= {"namespace": "ns", "uid": "u"} | metadata
    return ManagedLedger.model_validate(manifest)


def faults(conf: dict[str, str]) -> list[str]:
    wanted = resource(conf)
    return job_faults(wanted, jobs_of(wanted)[0], JobsObservation(), "quire-jobs:1")


@pytest.mark.parametrize("key", SECRET)
def test_a_secret_in_spark_settings_is_refused_with_the_remedy(key: str) -> None:
    (fault,) = faults({key: VALUE})
    assert fault.startswith(f"spark.conf: {key} is a secret") and "credentialsRef" in fault
    assert VALUE not in fault


@pytest.mark.parametrize("key", [key for key in OPEN if key])
def test_settings_that_name_a_class_a_file_or_a_switch_are_accepted(key: str) -> None:
    assert faults({key: "x"}) == []


def test_the_jobs_detect_secrets_by_the_same_rule() -> None:
    for key in (*SECRET, *OPEN, "spark.x.token.file.token", "spark.ACCESSKEY", "Password", "..."):
        assert holds_secret(key) == secret_settings.holds_secret(key), key
    assert (job_checks._SECRETS, job_checks._ABOUT) == (secret_settings._SECRETS, secret_settings._ABOUT)


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("target", {"offload": {"target": f"s3://me:{VALUE}@cold"}}),
        ("endpoint", {"offload": {"target": "s3://cold", "endpoint": f"https://me:{VALUE}@minio:9000"}}),
        ("table.name", {"offload": {"target": "s3://cold", "table": {"name": f"s3://me:{VALUE}@rows/x"}}}),
        ("output", {"analytics": [{"name": "a", "kind": "cost", "output": f"s3://me:{VALUE}@reports"}]}),
        ("output", {"analytics": [{"name": "a", "kind": "cost", "output": f"https://me:{VALUE}@reports"}]}),
        ("spark.conf: spark.jars.repositories", {"spark": {"conf": {"spark.jars.repositories": f"h://:{VALUE}@n"}}}),
        ("spark.conf: spark.jars.repositories", {"spark": {"conf": {"spark.jars.repositories": f"https://{VALUE}@n"}}}),
        ("endpoint", {"offload": {"target": "az://cold", "endpoint": f"https://a.net/?sv=1&sig={VALUE}"}}),
        ("spark.conf: spark.jars", {"spark": {"conf": {"spark.jars": f"https://n/a.jar?X-Amz-Signature={VALUE}"}}}),
        ("spark.conf: spark.jars", {"spark": {"conf": {"spark.jars": f"https://n/a.jar?private_token={VALUE}"}}}),
        ("spark.conf: spark.jars", {"spark": {"conf": {"spark.jars": f"HTTPS://{VALUE}@n,ftp://n/b"}}}),
        ("spark.conf: spark.jars", {"spark": {"conf": {"spark.jars": f"ftp://{VALUE}@n/a.jar"}}}),
        (
            "spark.conf: spark.db.url",
            {"spark": {"conf": {"spark.db.url": f"jdbc:sqlserver://h;user=u;password={VALUE}"}}},
        ),
        ("spark.conf: spark.x.url", {"spark": {"conf": {"spark.x.url": f"https://h/?apikey={VALUE}"}}}),
        (
            "params: messages",
            {
                "analytics": [
                    {"name": "a", "kind": "keys", "output": "s3://r", "params": {"messages": f"s3://me:{VALUE}@m/x"}}
                ]
            },
        ),
    ],
)
def test_a_password_within_a_url_is_refused_without_being_repeated(field: str, spec: dict[str, Any]) -> None:
    manifest = managed_ledger(**({"offload": {"target": "s3://cold"}} | spec))
    manifest["metadata"] |= {"namespace": "ns", "uid": "u"}
    wanted = ManagedLedger.model_validate(manifest)
    (fault,) = job_faults(wanted, jobs_of(wanted)[-1], JobsObservation(), "quire-jobs:1")
    assert fault.startswith(f"{field} is a URL that contains a secret: ") and VALUE not in fault


def test_an_account_in_a_url_is_not_a_password() -> None:
    report = {"name": "a", "kind": "cost", "output": "az://reports/orders"}
    conf = {
        "spark.jars.repositories": "https://nexus:8443/a@b",
        "spark.eventLog.dir": "abfss://logs@account.dfs.core.windows.net/spark",
        "spark.jars": "https://nexus/a.jar?version=1&page.token.length=3,https://nexus:8443,me@x",
        "spark.openlineage.transport.url": "https://lineage.example?owner=a@b.example",
    }
    manifest = managed_ledger(analytics=[report], spark={"conf": conf})
    manifest["metadata"] |= {"namespace": "ns", "uid": "u"}
    wanted = ManagedLedger.model_validate(manifest)
    assert job_faults(wanted, jobs_of(wanted)[0], JobsObservation(), "quire-jobs:1") == []


def test_a_run_with_a_secret_in_its_arguments_is_refused_with_the_remedy() -> None:
    wish = {"annotations": {"quire.dev/run-job": f"offload@{ASKED}"}}
    for conf, runs in (({}, 1), ({"spark.hadoop.fs.s3a.secret.key": VALUE}, 0)):
        seen = LedgerObservation(
            resource(conf, **wish), ASKED_S, Bookie.model_validate(bookie()), jobs=JobsObservation()
        )
        found = plan_jobs(seen, "quire-jobs:1", may_act=True, ready=True)
        assert len([one for one in found.actions if isinstance(one, act.StartRun)]) == runs
    (reported,) = [one for one in found.findings if isinstance(one, Finding) and one.type == "OffloadHealthy"]
    assert (reported.status, reported.reason) == ("False", "CannotRun")
    assert "spark.hadoop.fs.s3a.secret.key is a secret" in reported.message and VALUE not in reported.message
