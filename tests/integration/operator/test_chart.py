"""The chart on a real API server: what it makes is taken, and the operator can live with the rights that it gets."""

import asyncio
import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire_operator.certificates import issuing
from quire_operator.certificates.issuing import Pair
from tests.integration.operator import openapi_schemas
from tests.integration.operator.kube_api import KubeApi
from tests.integration.operator.test_running import operator, until, until_gone
from tests.support.kube_resources import BOOKIE, MANAGED_LEDGER, of_orders
from tests.unit.charts.rendering import ALL_NAMESPACES, NO_ETCD, ONE_NAMESPACE, VALUES, Manifest, template, tool

pytestmark = pytest.mark.slow
WITHOUT_CRDS: Manifest = {"crds": {"install": False}}
OF_OTHERS = ("PodMonitor", "PrometheusRule")
NO_SCHEMA = (*OF_OTHERS, "CustomResourceDefinition")
"""The API server says nothing of the form of definitions; it takes them itself, in the test above and in test_crds."""
DECLARED: dict[str, dict[str, Any]] = {
    "Tenant": {},
    "TopicNamespace": {"namespace": "shop/returns"},
    "Topic": {},
    "ClientRole": {},
}


def kubectl(kubeconfig: Path, text: str, *words: str) -> str:
    """`kubectl apply` of a text; what it says. AssertionError when something was refused."""
    command = [tool("kubectl"), "--kubeconfig", str(kubeconfig), "apply", "--server-side", *words, "-f", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_kinds_of_others(text: str) -> str:
    """What a cluster without Prometheus' operator knows."""
    found = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each and each["kind"] not in OF_OTHERS]
    return yaml.dump_all(found, Dumper=yaml.CSafeDumper)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_takes_everything(kubeconfig: Path, kube: KubeApi, namespace: str, values: Manifest) -> None:
    for other in ("prod", "test"):
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}
        kube.apply(f"/api/v1/namespaces/{other}", made).expect()
    text = without_kinds_of_others(template(values, "quire", namespace))
    said = kubectl(kubeconfig, text, "--dry-run=server", "--validate=strict", "--force-conflicts")
    assert said.count("serverside-applied") == text.count("\nkind: ") + text.startswith("kind: ")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_kubeconform_finds_nothing(schemas: Path, values: Manifest) -> None:
    command = [tool("kubeconform"), "-strict", "-summary", "-skip", ",".join(NO_SCHEMA)]
    command += ["-schema-location", f"{schemas}/{openapi_schemas.LOCATION}", "-"]
    done = subprocess.run(command, input=template(values), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Errors: 0" in done.stdout and "Invalid: 0" in done.stdout


def test_kubeconform_would_find_an_unknown_field_and_a_wrong_type(schemas: Path) -> None:
    for wrong, complaint in ({"replica": 1}, "replica"), ({"replicas": "x"}, "replicas"):
        bad = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": wrong}
        command = [tool("kubeconform"), "-strict", "-schema-location", f"{schemas}/{openapi_schemas.LOCATION}", "-"]
        text = yaml.safe_dump(bad)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and complaint in done.stdout


@pytest.fixture(scope="session")
def schemas(kube: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of everything that the API server knows, our resources too."""
    folder = tmp_path_factory.mktemp("schemas")
    assert openapi_schemas.write(kube, folder) > 100
    return folder


def with_account(kubeconfig: Path, kube: KubeApi, namespace: str, account: str, folder: Path) -> Path:
    """A kubeconfig with a token of a ServiceAccount."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = kube.create(path, asked).expect()["status"]["token"]
    config = yaml.safe_load(kubeconfig.read_text())
    current = next(each for each in config["contexts"] if each["name"] == config["current-context"])
    user = next(each for each in config["users"] if each["name"] == current["context"]["user"])
    user["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


def arguments(rendered: str) -> list[str]:
    """What the chart calls the operator with."""
    found = [each for each in yaml.load_all(rendered, yaml.CSafeLoader) if each and each["kind"] == "Deployment"]
    (container,) = found[0]["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


@pytest.mark.parametrize(
    "values",
    [WITHOUT_CRDS, {**ALL_NAMESPACES, **WITHOUT_CRDS}, {**ONE_NAMESPACE, **NO_ETCD, **WITHOUT_CRDS}],
    ids=["its own", "all", "another"],
)
async def test_the_operator_can_do_all_it_does_with_the_rights_of_the_chart(
    kubeconfig: Path, kube: KubeApi, namespace: str, tmp_path: Path, values: dict[str, Any]
) -> None:
    if values.get("operator") == ONE_NAMESPACE["operator"]:
        values = {**values, "operator": {"watchNamespace": namespace}}
    rendered = template(values, "quire", namespace)
    kubectl(kubeconfig, rendered)
    mine = with_account(kubeconfig, kube, namespace, "quire-operator", tmp_path)
    given = {"$(POD_NAME)": "one", "$(POD_NAMESPACE)": namespace}
    words = [re.sub(r"\$\(\w+\)", lambda found: given[found[0]], word) for word in arguments(rendered)]
    words = [word for word in words if not word.startswith("--metrics-port")]
    command = [sys.executable, "-m", "quire_operator.main", *words, "--metrics-port=0", f"--kubeconfig={mine}"]
    resources = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    log = tmp_path / "operator.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, stderr=file)
        try:
            kube.create(f"{resources}/bookies", BOOKIE).expect()
            kube.create(f"{resources}/managedledgers", MANAGED_LEDGER).expect()
            for kind, plural in (
                ("Tenant", "tenants"),
                ("TopicNamespace", "topicnamespaces"),
                ("Topic", "topics"),
                ("ClientRole", "clientroles"),
            ):
                kube.create(f"{resources}/{plural}", of_orders(kind, "shop", **DECLARED[kind])).expect()
                await until(kube, f"{resources}/{plural}/shop", "status", "observedGeneration")
            await until(kube, f"{resources}/bookies/pool", "status", "observedGeneration")
            await until(kube, f"{resources}/managedledgers/orders", "status", "observedGeneration")
            secrets = f"/api/v1/namespaces/{namespace}/secrets"
            for name in ("pool-bookie-tls", *(() if "etcd" in values else ("quire-etcd-tls", "quire-etcd-client"))):
                data = await until(kube, f"{secrets}/{name}", "data")
                assert set(data) == {"tls.crt", "tls.key", "ca.crt"}
            # A change by hand is put back, and a scale-up is taken: patches of a StatefulSet and of claims' owner.
            kube.merge(f"{resources}/bookies/pool", {"spec": {"replicas": 4}}).expect()
            sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie"
            await until(kube, sets, "spec", "replicas", is_not=3)
            kube.call("DELETE", f"{resources}/managedledgers/orders").expect()
            kube.call("DELETE", f"{resources}/bookies/pool").expect()
            await until_gone(kube, f"{resources}/bookies/pool")
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
    said = log.read_text()
    assert process.returncode == 0, said
    refused = re.search(r"forbidden|(?<!,)\b403\b", said, re.IGNORECASE)  # not the milliseconds of a line's time
    assert refused is None, said


async def test_generated_certificates_are_renewed_as_the_resource_changes(
    kubeconfig: Path, kube: KubeApi, namespace: str
) -> None:
    """Against the real server: names of new listeners reach the Secret; one of somebody else is a condition."""
    resources = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    theirs = {"metadata": {"name": "pool-bookie-tls"}, "stringData": {"tls.crt": "theirs"}}
    kube.create(secrets, theirs).expect()
    async with operator(kubeconfig, namespace, "one", "--tls", "generated"):
        kube.create(f"{resources}/bookies", BOOKIE).expect()
        kube.create(f"{resources}/managedledgers", MANAGED_LEDGER).expect()
        first = await until(kube, f"{secrets}/orders-broker-tls", "data", "tls.crt")
        listeners = [{"name": "outside", "host": "mq.example"}]
        changed = {"spec": {"brokers": {"advertisedListeners": listeners}}}
        kube.merge(f"{resources}/managedledgers/orders", changed).expect()
        await until(kube, f"{secrets}/orders-broker-tls", "data", "tls.crt", is_not=first)
        found = kube.get(f"{secrets}/orders-broker-tls").expect()["data"]
        data = {key: base64.b64decode(value) for key, value in found.items()}
        assert "mq.example" in issuing.read(Pair(data["tls.crt"], data["tls.key"])).subject.dns
        conditions = await until(kube, f"{resources}/bookies/pool", "status", "conditions")
        assert any("pool-bookie-tls was not created by this operator" in each["message"] for each in conditions)
        assert not kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").ok
        assert kube.get(f"{secrets}/pool-bookie-tls").body["data"] == {"tls.crt": base64.b64encode(b"theirs").decode()}
