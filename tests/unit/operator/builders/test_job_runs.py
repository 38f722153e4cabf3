"""A run of a job as a Job: its name, its pods and their parameters."""

import json
from typing import Any

import pytest

from quire_jobs.job import parse_parameters
from quire_jobs.main.jobs import EXIT_RETRY_USELESS
from quire_jobs.main.kinds import MODULES, is_list, load_kind
from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.effective import effective_bookie, effective_managed_ledger
from quire_operator.builders.job_access import job_access
from quire_operator.builders.job_parameters import jobs_of, parameters
from quire_operator.builders.job_runs import RUN_NAME_MAX, JobFacts, Slot, job_run, run_name
from quire_operator.builders.spark_applications import APACHE, KUBEFLOW, application_run
from quire_operator.generated.known_jobs import KINDS
from tests.support.kube_resources import bookie, managed_ledger

SLOT = Slot(1_900_000_020.0)
"""2030-03-17T17:47:00Z."""
HOW = "run scripts/k8s/known_jobs.py, then ruff format"
OFFLOAD: dict[str, Any] = {"target": "s3://cold/", "credentialsRef": {"name": "s3"}, "schedule": "@hourly"}
ANALYSIS: dict[str, Any] = {"name": "rates", "kind": "throughput", "output": "file:///reports"}


def resource(*, generated: bool = False, **spec: Any) -> ManagedLedger:
    manifest = managed_ledger(**({"offload": OFFLOAD} | spec))
    manifest["metadata"] |= {"namespace": "ns", "uid": "u-2"}
    return effective_managed_ledger(ManagedLedger.model_validate(manifest), generated)


def pool(*, generated: bool = False, **spec: Any) -> Bookie:
    manifest = bookie(**spec)
    manifest["metadata"] |= {"namespace": "ns"}
    return effective_bookie(Bookie.model_validate(manifest), generated)


def run(what: ManagedLedger, of: Bookie | None = None, token: str | None = None, place: int = 0) -> dict[str, Any]:
    return job_run(what, JobFacts(of or pool(), "quire-jobs:1", token), jobs_of(what)[place], SLOT)


def file_of(made: dict[str, Any], file: str) -> str:
    found: str = made["spec"]["template"]["metadata"]["annotations"][f"job.quire.dev/{file}"]
    return found


def container(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["template"]["spec"]["containers"][0]
    return found


def test_a_run_name_has_job_and_slot_and_fits_the_names_of_executors() -> None:
    assert run_name("orders", "offload", SLOT) == "orders-offload-20300317t1747"
    assert run_name("orders", "offload", Slot(1_900_000_000)) == "orders-offload-20300317t174640"
    long = [run_name("o" * 40, f"{'j' * 38}{end}", Slot(1_900_000_000)) for end in "ab"]
    assert long[0] != long[1]
    assert {len(name) for name in long} == {RUN_NAME_MAX}


@pytest.mark.parametrize("at_s", [1_900_000_020.0, 1_900_000_000.0])
def test_a_stamp_is_parsed_to_its_slot(at_s: float) -> None:
    assert Slot.parse(Slot(at_s).stamp) == Slot(at_s)


def test_driver_and_executors_have_labels_and_only_the_driver_is_watched() -> None:
    made = run(resource())
    mine = {"quire.dev/managedledger": "orders", "quire.dev/job": "offload", "quire.dev/slot": "20300317t1747"}
    executor = json.loads(file_of(made, "executor.json"))
    for labels in (made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]):
        assert labels.items() >= {**mine, "app.kubernetes.io/managed-by": "quire-operator"}.items()
    assert executor["metadata"]["labels"].items() >= mine.items()
    assert "app.kubernetes.io/managed-by" not in executor["metadata"]["labels"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-2"


def test_the_driver_creates_executor_pods_and_has_the_only_token() -> None:
    made = run(resource(spark={"executors": {"replicas": 3, "cores": 2, "resources": {"limits": {"memory": "3Gi"}}}}))
    words = " ".join(container(made)["args"])
    assert words.startswith("jobs run offload --slot 2030-03-17T17:47:00Z --params /etc/quire/job/params.json --json")
    assert "--master k8s://https://kubernetes.default.svc" in words
    assert {one["name"] for one in container(made)["env"]} >= {"POD_NAME", "POD_NAMESPACE", "POD_IP"}
    assert made["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, EXIT_RETRY_USELESS]
    settings = dict(line.split(" ", 1) for line in file_of(made, "spark-defaults.conf").splitlines())
    assert settings["spark.executor.instances"] == "3"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.executor.memory"] == settings["spark.executor.memoryOverhead"] == "1536m"
    assert settings["spark.kubernetes.executor.podNamePrefix"] == made["metadata"]["name"]
    assert made["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert json.loads(file_of(made, "executor.json"))["spec"]["automountServiceAccountToken"] is False


def test_without_executors_one_pod_runs_everything_without_permissions() -> None:
    made = run(resource(spark={"executors": {"replicas": 0}, "conf": {"spark.log.level": "$(HOME)$$(POD_IP)"}}))
    words = container(made)["args"]
    assert words[-4:] == ["--master", "local[*]", "--conf", "spark.log.level=$$(HOME)$$$$(POD_IP)"]
    assert made["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert "job.quire.dev/executor.json" not in made["spec"]["template"]["metadata"]["annotations"]


def test_both_pods_are_unprivileged() -> None:
    made = run(resource())
    for pod in (made["spec"]["template"]["spec"], json.loads(file_of(made, "executor.json"))["spec"]):
        security = pod["containers"][0]["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert pod["securityContext"]["runAsNonRoot"]
        assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]


def test_certificates_tokens_and_credentials_are_mounted_and_never_the_brokers_keys() -> None:
    what = resource(generated=True, brokers={"authentication": {"tokenKeySecret": "keys"}})
    metadata = {"endpoints": ["etcd:2379"], "tls": {"secretName": "etcd-client"}}
    made = run(what, pool(generated=True, metadata=metadata), "jobs.token")
    for pod in (made["spec"]["template"]["spec"], json.loads(file_of(made, "executor.json"))["spec"]):
        volumes = {one["name"]: one.get("secret") for one in pod["volumes"]}
        assert volumes["tls"]["secretName"] == "pool-bookie-tls"
        assert volumes["metadata-tls"]["secretName"] == "etcd-client"
        assert volumes["broker-tls"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
        assert volumes["broker-token"]["items"] == [{"key": "jobs.token", "path": "token"}]
        env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert env["QUIRE_TOKEN"] == "file:///etc/quire/broker-token/token"
        assert env["QUIRE_TLS_TRUST_CERTS"] == "/etc/quire/broker-tls/ca.crt"
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert 'metadataTlsTrustCertsFilePath = "/etc/quire/metadata-tls/ca.crt"' in file_of(made, "quire.toml")
    assert json.loads(file_of(made, "params.json"))["http"] == "https://orders-broker.ns.svc:8443"


def test_scheduling_and_template_apply_to_both_pods() -> None:
    tolerations = [{"key": "batch", "operator": "Exists"}]
    template = {"spec": {"priorityClassName": "low", "containers": [{"name": "quire", "env": [{"name": "A"}]}]}}
    spark = {"nodeSelector": {"pool": "batch"}, "tolerations": tolerations, "podTemplate": template}
    made = run(resource(spark=spark))
    for pod in (made["spec"]["template"]["spec"], json.loads(file_of(made, "executor.json"))["spec"]):
        assert pod["nodeSelector"] == {"pool": "batch"}
        assert pod["tolerations"] == tolerations
        assert pod["priorityClassName"] == "low"
        assert {"name": "A"} in pod["containers"][0]["env"]


def test_offload_parameters_are_valid_for_the_job() -> None:
    wanted = OFFLOAD | {"endpoint": "http://s3:9000", "region": "here", "after": {"time": "90m", "size": "1Gi"}}
    more = {"rate": "50M", "params": {"ledgers": "7, 8", "blockSize": "8Mi"}}
    what = resource(offload=wanted | more)
    given = parameters(what, pool(), jobs_of(what)[0])
    found: Any = parse_parameters(load_kind("offload").parameters, given)  # type: ignore[arg-type]
    assert (found.target, found.endpoint, found.region) == ("s3://cold", "http://s3:9000", "here")
    assert (found.after_time, found.after_size, found.rate) == (5400, 2**30, 50_000_000)
    assert (found.ledgers, found.block_size) == ((7, 8), 8 << 20)
    assert found.topics == ("shop/orders/*",)
    assert found.metadata == "etcd://etcd-0.etcd:2379,etcd-1.etcd:2379"
    assert found.http == "http://orders-broker.ns.svc:8080"


@pytest.mark.parametrize(
    ("kind", "params", "topics"),
    [
        ("throughput", {}, ("shop/orders/*",)),
        ("throughput", {"topics": "placed, other/ns/x", "top": "5"}, ("shop/orders/placed", "other/ns/x")),
        ("throughput", {"messages": "file:///table"}, ()),
        ("backlog", {"topics": "a-*"}, ("shop/orders/a-*",)),
    ],
)
def test_analysis_parameters_are_valid_for_the_kind(kind: str, params: dict[str, str], topics: object) -> None:
    what = resource(offload=None, analytics=[ANALYSIS | {"kind": kind, "params": params}])
    given = parameters(what, pool(), jobs_of(what)[0])
    found: Any = parse_parameters(load_kind(kind).parameters, given)  # type: ignore[arg-type]
    assert found.topics == topics
    assert found.output == "file:///reports"
    assert found.top == int(params.get("top", 20))


def test_the_parameters_of_a_compaction_are_valid_for_the_job() -> None:
    what = resource(offload=None, jobs=[{"name": "newest", "kind": "compact", "params": {"topics": "a, other/ns/b-*"}}])
    given = parameters(what, pool(), jobs_of(what)[0])
    found: Any = parse_parameters(load_kind("compact").parameters, given)  # type: ignore[arg-type]
    assert found.topics == ("shop/orders/a", "other/ns/b-*")
    assert "output" not in given


def test_the_parameters_of_a_table_are_valid_for_the_job() -> None:
    params = {"topics": "a, b", "table": "lake.shop.orders", "partitionBy": "day", "compact": "false"}
    what = resource(offload=None, jobs=[{"name": "orders", "kind": "table", "params": params}])
    given = parameters(what, pool(), jobs_of(what)[0])
    found: Any = parse_parameters(load_kind("table").parameters, given)  # type: ignore[arg-type]
    assert found.topics == ("shop/orders/a", "shop/orders/b")
    assert (found.table, found.compact) == ("lake.shop.orders", False)


def test_the_table_of_kinds_matches_the_jobs() -> None:
    assert KINDS.keys() == MODULES.keys(), HOW
    for name, known in KINDS.items():
        model = load_kind(name).parameters
        keys = {field.alias or key: field for key, field in model.model_fields.items()}
        assert keys.keys() == known.parameters, HOW
        assert {key for key, field in keys.items() if field.is_required()} == known.required, HOW
        assert {key for key in keys if is_list(model, key)} == known.lists, HOW


def test_both_spark_operators_get_the_same_pods_and_arguments() -> None:
    what = resource()
    job, facts = jobs_of(what)[0], JobFacts(pool(), "quire-jobs:1")
    kubeflow = application_run(what, facts, job, SLOT, KUBEFLOW)
    apache = application_run(what, facts, job, SLOT, APACHE)
    assert kubeflow["metadata"] == apache["metadata"] == run(what)["metadata"]
    assert kubeflow["spec"]["arguments"] == apache["spec"]["driverArgs"]
    assert kubeflow["spec"]["driver"]["template"] == apache["spec"]["driverSpec"]["podTemplateSpec"]
    assert kubeflow["spec"]["executor"]["template"] == apache["spec"]["executorSpec"]["podTemplateSpec"]
    assert apache["spec"]["sparkConf"]["spark.kubernetes.authenticate.driver.serviceAccountName"] == "orders-jobs"
    driver = kubeflow["spec"]["driver"]["template"]
    assert driver["spec"]["activeDeadlineSeconds"] == 6 * 3600
    assert json.loads(driver["metadata"]["annotations"]["job.quire.dev/params.json"])["target"] == "s3://cold"


def test_drivers_may_only_manage_pods() -> None:
    account, role, binding = job_access(resource(), cluster_mode=False)
    assert account["automountServiceAccountToken"] is False
    assert [rule["resources"] for rule in role["rules"]] == [["pods"]]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "orders-jobs", "namespace": "ns"}]
    _, wider, _ = job_access(resource(), cluster_mode=True)
    assert wider["rules"][0]["resources"] == ["pods", "services", "configmaps"]
