"""The operator's rights in the chart: what its code asks for, all of it and no more.

tests/integration/operator/test_chart.py runs the operator with them; what is asked only when something is lost is here.
"""

import re

import pytest

from quire_operator.api.proxy_spec import Proxy
from quire_operator.builders.auto_recovery import recovery_children
from quire_operator.builders.bookie import BookieFacts, bookie_children
from quire_operator.builders.broker import BrokerFacts
from quire_operator.builders.job_access import job_access
from quire_operator.builders.proxy import proxy_children
from quire_operator.cluster.paths import collection
from tests.support.broker_pods import declared_children
from tests.unit.charts.rendering import ALL_NAMESPACES, ONE_NAMESPACE, ROOT, Manifest, objects
from tests.unit.operator.certificates.test_keeping import bookie, managed_ledger

OPERATOR = ROOT / "operator" / "src" / "quire_operator"
CHILD = {"get", "list", "watch", "create", "patch"}
"""Applied on the server's side, and watched."""
NEEDED = {
    "bookies.quire.dev": {"get", "list", "watch", "patch"},
    "managedledgers.quire.dev": {"get", "list", "watch", "patch"},
    "bookies/status.quire.dev": {"update", "patch"},
    "managedledgers/status.quire.dev": {"update", "patch"},
    "bookies/finalizers.quire.dev": {"update"},
    "managedledgers/finalizers.quire.dev": {"update"},
    "clientroles.quire.dev": {"get", "list", "watch", "patch"},
    "clientroles/status.quire.dev": {"update"},
    "tenants.quire.dev": {"get", "list", "watch", "patch"},
    "tenants/status.quire.dev": {"update"},
    "topicnamespaces.quire.dev": {"get", "list", "watch", "patch"},
    "topicnamespaces/status.quire.dev": {"update"},
    "topics.quire.dev": {"get", "list", "watch", "patch"},
    "topics/status.quire.dev": {"update"},
    "statefulsets.apps": CHILD | {"delete"},
    "deployments.apps": CHILD | {"delete"},
    "services": CHILD | {"delete", "deletecollection"},
    "configmaps": CHILD | {"delete", "deletecollection"},
    "roles.rbac.authorization.k8s.io": {"get", "create", "patch"},
    "rolebindings.rbac.authorization.k8s.io": {"get", "create", "patch"},
    "jobs.batch": {"get", "list", "watch", "create", "delete"},
    "sparkapplications.sparkoperator.k8s.io": {"get", "list", "create", "delete"},
    "sparkapplications.spark.apache.org": {"get", "list", "create", "delete"},
    "serviceaccounts": CHILD,
    "poddisruptionbudgets.policy": CHILD | {"delete"},
    "podmonitors.monitoring.coreos.com": CHILD | {"delete"},
    "pods": {"get", "list", "watch", "create", "patch", "delete", "deletecollection"},
    "persistentvolumeclaims": {"get", "list", "watch", "patch", "delete"},
    "persistentvolumes": {"get", "patch"},
    "nodes": {"get", "list"},
    "storageclasses.storage.k8s.io": {"list"},
    "events": {"create", "patch", "list"},
    "secrets": {"get", "create", "update"},
    "leases.coordination.k8s.io": {"get", "create", "update"},
}


def given(found: dict[str, Manifest]) -> dict[str, set[str]]:
    """Verbs by resource, of all roles of the operator's account."""
    account = {"kind": "ServiceAccount", "name": "quire-operator", "namespace": "quire"}
    bound = {
        each["roleRef"]["kind"] + "/" + each["roleRef"]["name"]
        for each in found.values()
        if each["kind"].endswith("RoleBinding") and account in each["subjects"]
    }
    rights: dict[str, set[str]] = {}
    for each in found.values():
        if f"{each['kind']}/{each['metadata']['name']}" not in bound:
            continue
        for rule in each["rules"]:
            for group in rule["apiGroups"]:
                for name in rule["resources"]:
                    rights.setdefault(f"{name}.{group}" if group else name, set()).update(rule["verbs"])
    return rights


@pytest.mark.parametrize("values", [{}, ONE_NAMESPACE, ALL_NAMESPACES], ids=["its own", "another", "all"])
def test_the_account_may_do_what_is_needed_and_nothing_else(values: Manifest) -> None:
    assert given(objects(values)) == NEEDED


@pytest.mark.parametrize("values", [{}, ONE_NAMESPACE], ids=["its own", "another"])
def test_outside_its_namespace_the_account_only_reads_what_holds_no_secret(values: Manifest) -> None:
    found = objects(values)
    anywhere = given({name: each for name, each in found.items() if each["kind"].startswith("Cluster")})
    assert anywhere == {
        "bookies.quire.dev": {"get", "list", "watch"},
        "managedledgers.quire.dev": {"get", "list", "watch"},
        "tenants.quire.dev": {"get", "list", "watch"},
        "topicnamespaces.quire.dev": {"get", "list", "watch"},
        "nodes": {"get", "list"},
        "persistentvolumes": {"get", "patch"},  # keeps the volumes of a deleted pool
        "storageclasses.storage.k8s.io": {"list"},
    }
    namespaces = {each["metadata"]["namespace"] for each in found.values() if each["kind"] == "RoleBinding"}
    assert namespaces <= {"quire", values.get("operator", {}).get("watchNamespace", "quire")}


def test_it_neither_lists_nor_deletes_secrets() -> None:
    rights = given(objects({"operator": {"tls": "none"}, "etcd": {"enabled": False}}))
    assert rights["secrets"] == {"get", "create", "update"}  # passwords of ledgers, tokens of roles and their renewal


def test_every_kind_that_the_code_names_is_in_the_table() -> None:
    named = set()
    for path in OPERATOR.rglob("*.py"):
        named |= set(re.findall(r'(?:object_path|collection)\(\s*(?:"([\w./]+)"|[A-Z_]+), "(\w+)"', path.read_text()))
    kinds = {kind for _, kind in named}
    assert {"Pod", "PersistentVolumeClaim", "StatefulSet", "Event", "Secret"} <= kinds
    for kind in kinds:
        plural = collection("v1", kind, None).rpartition("/")[2]
        assert any(name.partition(".")[0] == plural for name in NEEDED), kind


def test_what_drivers_get_is_theirs_to_give() -> None:
    for cluster_mode in (False, True):
        (role,) = [each for each in job_access(managed_ledger(), cluster_mode=cluster_mode) if each["kind"] == "Role"]
        for rule in role["rules"]:
            assert rule["apiGroups"] == [""]
            for name in rule["resources"]:
                assert set(rule["verbs"]) <= NEEDED[name], name


def test_every_child_is_in_the_table() -> None:
    pool, ledger = bookie(), managed_ledger()
    children = bookie_children(pool, BookieFacts(3, "image", pod_monitors=True))
    children += recovery_children(pool, "image", True)
    children += declared_children(ledger, BrokerFacts(pool, "image", pod_monitors=True))
    children += proxy_children(ledger, Proxy.model_validate({}), "image", (), pod_monitors=True)
    children += job_access(ledger, cluster_mode=True)
    for child in children:
        group = child["apiVersion"].rpartition("/")[0]
        plural = collection("v1", child["kind"], None).rpartition("/")[2]
        assert NEEDED[f"{plural}.{group}" if group else plural] >= {"get", "create", "patch"}, child["kind"]
