"""The CRDs before a real API server: it takes them, and each rule refuses its bad object with its own words."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.operator.conftest import CRD_PATH
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import ABSENT, BOOKIE, MANAGED_LEDGER, changed, of_orders
from tests.unit.charts.rendering import ROOT, tool

pytestmark = pytest.mark.slow
KINDS = {
    "Bookie": (BOOKIE, "bookies"),
    "ManagedLedger": (MANAGED_LEDGER, "managedledgers"),
    "Tenant": (of_orders("Tenant", "shop"), "tenants"),
    "TopicNamespace": (of_orders("TopicNamespace", "returns", namespace="shop/returns"), "topicnamespaces"),
    "ClientRole": (of_orders("ClientRole", "billing"), "clientroles"),
    "Topic": (of_orders("Topic", "placed", partitions=2), "topics"),
}
Changes = dict[str, Any]

AUTO_EXPAND = {"threshold": 80, "step": "10Gi", "max": "500Gi"}
ANALYSIS = {"name": "hourly", "kind": "throughput", "output": "s3://reports/orders", "schedule": "@hourly"}
COMPACTION = {"name": "newest", "kind": "compact", "params": {"topics": "accounts"}}
REFUSED: list[tuple[str, Changes, str]] = [
    # kind, what is wrong in a new object, what the API server must say
    ("Bookie", {"metadata.name": "a" * 41}, "longer than 40 characters"),
    ("Bookie", {"metadata.name": "1-pool"}, "must begin with a letter"),
    ("Bookie", {"spec.metadata": ABSENT}, "spec.metadata: Required value"),
    ("Bookie", {"spec.metadata.endpoints": []}, "should have at least 1 items"),
    ("Bookie", {"spec.metadata.endpoints": ["http://etcd:2379"]}, "spec.metadata.endpoints[0]"),
    ("Bookie", {"spec.metadata.endpoints": ["a:1", "a:1"]}, "Duplicate value"),
    ("Bookie", {"spec.replicas": -1}, "greater than or equal to 0"),
    ("Bookie", {"spec.storage.journal.size": ABSENT}, "spec.storage.journal.size: Required value"),
    ("Bookie", {"spec.storage.journal.size": "10 GB"}, "spec.storage.journal.size"),
    ("Bookie", {"spec.storage.ledgers.size": "0Gi"}, "a volume needs a size above 0"),
    ("Bookie", {"spec.storage.index": {"size": "1Gi", "volumes": 2}}, "less than or equal to 1"),
    ("Bookie", {"spec.storage.autoExpand": AUTO_EXPAND | {"max": "50Gi"}}, "autoExpand.max is below"),
    ("Bookie", {"spec.storage.autoExpand": AUTO_EXPAND | {"step": "0"}}, "autoExpand.step must be above 0"),
    ("Bookie", {"spec.durability.journal": "NoSync"}, "set acknowledgeDataLossRisk to accept that"),
    ("Bookie", {"spec.durability.journal": "Disabled"}, "set acknowledgeDataLossRisk to accept that"),
    ("Bookie", {"spec.durability.journal": "Sometimes"}, 'supported values: "Sync", "NoSync", "Disabled"'),
    ("Bookie", {"spec.engine.watermarks": {"full": 80}}, "low must not be above full"),
    ("Bookie", {"spec.engine.watermarks": {"full": 80, "low": 70}}, "warn must not be above full"),
    ("Bookie", {"spec.engine.settings": {"journalSyncData": "false"}}, "belongs to another field of the spec"),
    ("Bookie", {"spec.engine.settings": {"max frame": "1"}}, "a key is misspelled"),
    ("Bookie", {"spec.engine.writeCache": "16Mi"}, "writeCache must be 24Mi or more"),
    ("Bookie", {"spec.engine.entryLogSize": "2Gi"}, "entryLogSize must be 1Gi or less"),
    ("Bookie", {"spec.engine.flushInterval": "1ms"}, "flushInterval must be 10ms or more"),
    ("Bookie", {"spec.engine.compaction": {"minorThreshold": 80}}, "minorThreshold must be below majorThreshold"),
    ("Bookie", {"spec.engine.compaction": {"minorInterval": "24h"}}, "minorInterval must be below majorInterval"),
    ("Bookie", {"spec.scrub.bytesPerSecond": "1"}, "bytesPerSecond must be 1Ki or more"),
    ("Bookie", {"spec.scaleDown.deadline": "7d"}, "spec.scaleDown.deadline"),
    ("Bookie", {"spec.placement": {"enforce": True, "minZones": 4}}, "some zone could never have a bookie"),
    ("Bookie", {"spec.autoscale": {"min": 5, "max": 3}}, "min must not be above max"),
    ("Bookie", {"spec.autoscale": {"min": 3, "max": 9, "load": {}}}, "load needs at least one of adds, bytes and cpu"),
    ("Bookie", {"spec.autoscale": {"min": 3, "max": 9, "load": {"bytes": "0"}}}, "load.bytes must be above 0"),
    ("Bookie", {"spec.slowBookies": {"floor": "0s"}}, "floor must be 1ms or more"),
    ("Bookie", {"spec.slowBookies": {"replaceInterval": "1m"}}, "replaceInterval must be 10m or more"),
    ("Bookie", {"spec.autoscale": {"min": 4, "max": 9}}, "replicas is outside of autoscale.min"),
    (
        "Bookie",
        {"spec.autoscale": {"min": 3, "max": 9, "lowWatermark": 80}},
        "lowWatermark must be below highWatermark",
    ),
    ("Bookie", {"spec.update.maxUnavailable": 2}, "maxUnavailable must be 1"),
    ("Bookie", {"spec.tls": {"secretName": "s", "authorizedRoles": ["broker"]}}, "set clientAuthentication"),
    (
        "Bookie",
        {"spec.tls": {"secretName": "s", "mode": "Offered"}, "spec.authentication": {"tokenKeySecret": "t"}},
        "set tls.mode to Required",
    ),
    (
        "Bookie",
        {
            "spec.tls": {"secretName": "s", "clientAuthentication": True, "authorizedRoles": ["broker"]},
            "spec.authentication": {"tokenKeySecret": "t"},
        },
        "use authentication.roles",
    ),
    ("ManagedLedger", {"metadata.name": "b" * 41}, "longer than 40 characters"),
    ("ManagedLedger", {"metadata.name": "a.b"}, "must begin with a letter"),
    ("ManagedLedger", {"spec.namespace": "orders"}, "spec.namespace"),
    ("ManagedLedger", {"spec.bookieRef": ABSENT}, "spec.bookieRef: Required value"),
    ("ManagedLedger", {"spec.brokers.replicas": 101}, "should be less than or equal to 100"),
    ("ManagedLedger", {"spec.brokers.settings": {"clusterName": "x"}}, "belongs to another field of the spec"),
    (
        "ManagedLedger",
        {"spec.brokers.settings": {"advertisedListeners": "a:pulsar://b:1"}},
        "belongs to another field of the spec",
    ),
    ("ManagedLedger", {"spec.replication": {"ackQuorum": 3, "writeQuorum": 2}}, "ackQuorum must not be above"),
    ("ManagedLedger", {"spec.replication": {"ensemble": 2}}, "writeQuorum must not be above ensemble"),
    ("ManagedLedger", {"spec.rollover": {"minTime": "5h"}}, "minTime must not be above maxTime"),
    ("ManagedLedger", {"spec.rollover": {"minTime": "1s", "maxTime": "30s"}}, "maxTime must be a minute or more"),
    ("ManagedLedger", {"spec.rollover": {"maxSize": "1k"}}, "maxSize must be 1Mi or more"),
    ("ManagedLedger", {"spec.retention": {"time": "3h"}}, "time and size go together"),
    ("ManagedLedger", {"spec.backlogQuota": {"policy": "ProducerException"}}, "size or time is needed"),
    ("ManagedLedger", {"spec.backlogQuota": {"size": "0"}}, "size must be 1 or more"),
    ("ManagedLedger", {"spec.backlogQuota": {"time": "10ms"}}, "time must be 1s or more"),
    ("ManagedLedger", {"spec.topics": [{"name": "a"}, {"name": "a"}]}, 'Duplicate value: {"name":"a"}'),
    (
        "ManagedLedger",
        {"spec.topics": [{"name": "a", "cursors": [{"name": "c"}, {"name": "c"}]}]},
        'Duplicate value: {"name":"c"}',
    ),
    ("ManagedLedger", {"spec.topics": [{"name": "a/b"}]}, "spec.topics[0].name"),
    ("ManagedLedger", {"spec.access": [{"role": "r", "actions": []}]}, "should have at least 1 items"),
    ("ManagedLedger", {"spec.offload": {"target": "s3://data/folder"}}, "target must be s3://bucket"),
    ("ManagedLedger", {"spec.offload": {"target": "ftp://data"}}, "target must be s3://bucket"),
    ("ManagedLedger", {"spec.offload": {"target": "s3://data", "rate": "0"}}, "rate must be 1 or more"),
    ("ManagedLedger", {"spec.offload": {"target": "s3://data", "format": "Parquet"}}, "Iceberg needs table"),
    ("ManagedLedger", {"spec.offload": {"target": "s3://data", "table": {"name": "s3://t"}}}, "Segment writes none"),
    ("ManagedLedger", {"spec.analytics": [ANALYSIS | {"name": "offload"}]}, "the name offload is reserved"),
    ("ManagedLedger", {"spec.jobs": [COMPACTION | {"name": "offload"}]}, "the name offload is reserved"),
    (
        "ManagedLedger",
        {"spec.analytics": [ANALYSIS], "spec.jobs": [COMPACTION | {"name": "hourly"}]},
        "jobs: an entry has the name of one in analytics",
    ),
    ("ManagedLedger", {"spec.analytics": [ANALYSIS, ANALYSIS]}, 'Duplicate value: {"name":"hourly"}'),
    ("ManagedLedger", {"spec.analytics": [ANALYSIS | {"name": "Hourly"}]}, "spec.analytics[0].name"),
    ("ManagedLedger", {"spec.spark": {"activeDeadline": "30s"}}, "activeDeadline must be a minute or more"),
    ("ManagedLedger", {"spec.spark": {"runsKept": 0}}, "spec.spark.runsKept"),
    ("ManagedLedger", {"spec.spark": {"launcher": "Yarn"}}, 'supported values: "Auto", "Job", "SparkApplication"'),
]
REFUSED += [
    ("Tenant", {"spec.managedLedgerRef": ABSENT}, "spec.managedLedgerRef: Required value"),
    ("Tenant", {"spec.tenant": ".."}, "spec.tenant"),
    ("Tenant", {"spec.adminRoles": ["a", "a"]}, "Duplicate value"),
    ("Tenant", {"spec.deletionPolicy": "Orphan"}, 'supported values: "Retain", "Delete"'),
    ("Tenant", {"spec.adoptionPolicy": "Never"}, 'supported values: "IfEqual", "Always"'),
    ("TopicNamespace", {"spec.namespace": ABSENT}, "spec.namespace: Required value"),
    ("TopicNamespace", {"spec.namespace": "shop/../x"}, "spec.namespace"),
    ("TopicNamespace", {"spec.retention": {"time": "3h"}}, "time and size go together"),
    ("TopicNamespace", {"spec.backlogQuota": {"policy": "ProducerException"}}, "size or time is needed"),
    ("TopicNamespace", {"spec.replication": {"ensemble": 2}}, "writeQuorum must not be above ensemble"),
    ("TopicNamespace", {"spec.schemaCompatibility": "Sometimes"}, "supported values"),
    ("ClientRole", {"spec.permissions": [{"actions": ["Admin"]}]}, "exactly one of tenant, namespace and topic"),
    (
        "ClientRole",
        {"spec.permissions": [{"tenant": "a", "namespace": "a/b", "actions": ["Admin"]}]},
        "exactly one of tenant, namespace and topic",
    ),
    ("ClientRole", {"spec.permissions": [{"tenant": "a", "actions": ["Consume"]}]}, "only the action Admin"),
    ("ClientRole", {"spec.permissions": [{"topic": "a/b/c", "actions": ["Admin"]}]}, "only the actions Produce"),
    ("ClientRole", {"spec.permissions": [{"topic": "a/b", "actions": ["Consume"]}]}, "spec.permissions[0].topic"),
    ("ClientRole", {"spec.permissions": [{"namespace": "a/b", "actions": []}]}, "should have at least 1 items"),
    ("ClientRole", {"spec.token": {"validFor": "1m"}}, "validFor must be 10m or more"),
    ("ClientRole", {"spec.token": {"validFor": "1h", "renewBefore": "2h"}}, "renewBefore must be below validFor"),
    ("ClientRole", {"metadata.name": "a" * 241}, "longer than 240 characters"),
    ("Topic", {"spec.partitions": -1}, "greater than or equal to 0"),
    ("Topic", {"spec.topic": "a/b"}, "spec.topic"),
    ("Topic", {"spec.topic": "a-partition-3"}, "ends like a partition"),
    ("Topic", {"metadata.name": "a-partition-3"}, "ends like a partition"),
    ("Topic", {"spec.subscriptions": [{"name": "a"}, {"name": "a"}]}, 'Duplicate value: {"name":"a"}'),
    ("Topic", {"spec.subscriptions": [{"name": "a", "initialPosition": "Middle"}]}, "supported values"),
]
LARGE_TOPICS = [
    {"name": f"t{n}", "partitions": 4, "cursors": [{"name": f"c{m}"} for m in range(8)]} for n in range(200)
]
TAKEN: list[tuple[str, Changes]] = [
    ("Bookie", {}),
    ("Bookie", {"spec.durability": {"journal": "NoSync", "acknowledgeDataLossRisk": True}}),
    ("Bookie", {"spec.storage.index": {"size": "5Gi"}, "spec.storage.autoExpand": AUTO_EXPAND}),
    ("Bookie", {"spec.autoscale": {"min": 3, "max": 9}}),
    (
        "Bookie",
        {"spec.autoscale": {"min": 3, "max": 9, "load": {"adds": 5000, "bytes": "50Mi", "cpuMillicores": 1500}}},
    ),
    ("Bookie", {"spec.slowBookies": {"action": "Replace", "factor": 3, "floor": "50ms"}}),
    ("Bookie", {"spec.engine.settings": {"longPollsMax": "500"}}),
    ("Bookie", {"spec.engine.compaction": {"minorThreshold": 0, "majorThreshold": 0, "minorInterval": "0s"}}),
    ("Bookie", {"spec.update": {"maxUnavailable": 3, "waitFor": "Writable"}}),
    ("Bookie", {"spec.resources": {"requests": {"cpu": 2, "memory": "4Gi"}}}),
    (
        "Bookie",
        {"spec.tls": {"secretName": "s", "clientAuthentication": True, "authorizedRoles": ["broker"]}},
    ),
    (
        "Bookie",
        {"spec.authentication": {"tokenKeySecret": "t", "adminRoles": ["a"]}, "spec.tls": {"secretName": "s"}},
    ),
    ("ManagedLedger", {}),
    ("ManagedLedger", {"spec.topics": LARGE_TOPICS}),
    ("ManagedLedger", {"spec.retention": {"time": "forever", "size": "100Gi", "ttl": "24h"}}),
    ("ManagedLedger", {"spec.offload": {"target": "s3://data", "after": {"size": "1Ti"}, "rate": "50M"}}),
    ("ManagedLedger", {"spec.offload": {"target": "file:///mnt/cold/ledgers", "schedule": "17 * * * *"}}),
    ("ManagedLedger", {"spec.offload": {"target": "gs://d", "format": "Iceberg", "table": {"name": "a.b.c"}}}),
    ("ManagedLedger", {"spec.analytics": [ANALYSIS], "spec.spark": {"executors": {"replicas": 0}}}),
    ("ManagedLedger", {"spec.analytics": [ANALYSIS | {"name": f"a{n}"} for n in range(64)]}),
    (
        "ManagedLedger",
        {
            "spec.analytics": [ANALYSIS | {"name": f"a{n}"} for n in range(64)],
            "spec.jobs": [COMPACTION | {"name": f"b{n}"} for n in range(64)],
        },
    ),
    (
        "ClientRole",
        {
            "spec.permissions": [{"topic": f"a/b/{n}", "actions": ["Produce", "Consume"]} for n in range(62)]
            + [{"tenant": "a", "actions": ["Admin"]}, {"namespace": "a/b", "actions": ["Admin", "Consume"]}],
            "spec.token": {"validFor": "24h", "renewBefore": "6h", "secretName": "token", "signingKeySecret": "pair"},
        },
    ),
    ("Topic", {"spec.topic": "a=b:c", "spec.namespace": "shop/returns", "spec.partitions": 1024}),
    ("Topic", {"spec.subscriptions": [{"name": f"s{n}"} for n in range(64)]}),
    ("Tenant", {"spec.tenant": "a:b=c.d", "spec.adminRoles": [f"role-{n}" for n in range(256)]}),
    (
        "TopicNamespace",
        {
            "spec.retention": {"time": "forever", "size": "100Gi", "ttl": "24h"},
            "spec.backlogQuota": {"size": "1Gi", "time": "24h"},
            "spec.schemaCompatibility": "FullTransitive",
            "spec.replication": {"ensemble": 3, "writeQuorum": 2, "ackQuorum": 2},
        },
    ),
]
CHANGE_REFUSED: list[tuple[str, Changes, Changes, str]] = [
    # kind, the object at first, the update, what the API server must say
    ("Bookie", {}, {"spec.storage.journal.size": "9Gi"}, "sizes only grow"),
    ("Bookie", {}, {"spec.storage.ledgers.size": "100G"}, "sizes only grow"),
    ("Bookie", {"spec.storage.ledgers.volumes": 2}, {"spec.storage.ledgers.volumes": 1}, "volumes only grow"),
    ("Bookie", {}, {"spec.storage.ledgers.dirsPerVolume": 2}, "dirsPerVolume cannot be changed"),
    ("Bookie", {}, {"spec.storage.journal.storageClassName": "fast"}, "storageClassName cannot be changed"),
    ("Bookie", {}, {"spec.storage.index": {"size": "5Gi"}}, "the index cannot be moved"),
    ("ManagedLedger", {}, {"spec.namespace": "shop/other"}, "namespace cannot be changed"),
    (
        "ManagedLedger",
        {"spec.topics": [{"name": "a"}, {"name": "b", "partitions": 3}]},
        {"spec.topics": [{"name": "b", "partitions": 2}, {"name": "a"}]},
        "partitions only grow",
    ),
    (
        "ManagedLedger",
        {"spec.topics": [{"name": "a"}]},
        {"spec.topics": [{"name": "a", "partitions": 1}]},
        "cannot become a partitioned one",
    ),
]
CHANGE_REFUSED += [
    ("Tenant", {}, {"spec.managedLedgerRef.name": "others"}, "managedLedgerRef cannot be changed"),
    ("Tenant", {"spec.tenant": "a"}, {"spec.tenant": "b"}, "tenant cannot be changed"),
    ("Tenant", {}, {"spec.tenant": "b"}, "tenant cannot be changed"),
    ("TopicNamespace", {}, {"spec.namespace": "shop/others"}, "namespace cannot be changed"),
    ("ClientRole", {}, {"spec.role": "other"}, "role cannot be changed"),
    ("Topic", {}, {"spec.partitions": 1}, "partitions only grow"),
    ("Topic", {"spec.partitions": 0}, {"spec.partitions": 1}, "cannot become a partitioned one"),
    ("Topic", {}, {"spec.namespace": "shop/others"}, "namespace cannot be changed"),
    ("Topic", {"spec.topic": "a"}, {"spec.topic": None}, "topic cannot be changed"),
]
CHANGE_TAKEN: list[tuple[str, Changes, Changes]] = [
    ("Topic", {}, {"spec.partitions": 3, "spec.subscriptions": [{"name": "a"}], "spec.deletionPolicy": "Delete"}),
    ("Bookie", {}, {"spec.storage.ledgers.size": "0.5Ti", "spec.storage.ledgers.volumes": 2, "spec.replicas": 5}),
    ("ManagedLedger", {"spec.topics": [{"name": "b", "partitions": 3}]}, {"spec.topics": [{"name": "a"}]}),
    (
        "ManagedLedger",
        {"spec.topics": [{"name": "b", "partitions": 3}]},
        {"spec.topics": [{"name": "b", "partitions": 4}]},
    ),
]


def collection(namespace: str, kind: str) -> str:
    return f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/{KINDS[kind][1]}"


def test_the_api_server_takes_the_crds_and_finds_nothing_wrong_in_their_schemas(kube: KubeApi) -> None:
    for _, plural in KINDS.values():
        found = kube.get(f"{CRD_PATH}/{plural}.quire.dev").expect()
        conditions = {condition["type"]: condition for condition in found["status"]["conditions"]}
        assert conditions["Established"]["status"] == "True"
        assert "NonStructuralSchema" not in conditions, conditions


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED)
def test_a_bad_object_is_refused_with_the_reason(
    kube: KubeApi, namespace: str, kind: str, changes: Changes, message: str
) -> None:
    answer = kube.create(collection(namespace, kind), changed(KINDS[kind][0], changes))
    assert answer.status == 422, answer.body
    assert message in answer.message


@pytest.mark.parametrize(("kind", "changes"), TAKEN)
def test_a_good_object_is_taken(kube: KubeApi, namespace: str, kind: str, changes: Changes) -> None:
    kube.create(collection(namespace, kind), changed(KINDS[kind][0], changes)).expect()


@pytest.mark.parametrize(("kind", "before", "update", "message"), CHANGE_REFUSED)
def test_a_bad_change_is_refused_with_the_reason(
    kube: KubeApi, namespace: str, kind: str, before: Changes, update: Changes, message: str
) -> None:
    made = kube.create(collection(namespace, kind), changed(KINDS[kind][0], before)).expect()
    path = f"{collection(namespace, kind)}/{made['metadata']['name']}"
    answer = kube.merge(path, changed({}, update))
    assert answer.status == 422, answer.body
    assert message in answer.message


@pytest.mark.parametrize(("kind", "before", "update"), CHANGE_TAKEN)
def test_a_good_change_is_taken(kube: KubeApi, namespace: str, kind: str, before: Changes, update: Changes) -> None:
    made = kube.create(collection(namespace, kind), changed(KINDS[kind][0], before)).expect()
    kube.merge(f"{collection(namespace, kind)}/{made['metadata']['name']}", changed({}, update)).expect()


def test_defaults_are_filled_in_by_the_api_server(kube: KubeApi, namespace: str) -> None:
    spec = kube.create(collection(namespace, "Bookie"), BOOKIE).expect()["spec"]
    assert spec["replicas"] == 3
    assert spec["storage"]["reclaimPolicy"] == "Retain"
    assert spec["storage"]["ledgers"] == {"size": "100Gi", "volumes": 1, "dirsPerVolume": 1}
    assert spec["durability"] == {"journal": "Sync", "acknowledgeDataLossRisk": False}
    assert spec["scaleDown"]["strategy"] == "Drain"
    assert spec["update"] == {"maxUnavailable": 1, "waitFor": "FullyReplicated", "partition": 0}
    assert "autoscale" not in spec
    ledger = kube.create(collection(namespace, "ManagedLedger"), MANAGED_LEDGER).expect()["spec"]
    assert ledger["replication"] == {"ensemble": 3, "writeQuorum": 3, "ackQuorum": 2}
    assert ledger["brokers"]["replicas"] == 1
    assert ledger["deletionPolicy"] == "Retain"
    assert "topics" not in ledger


def test_kubectl_applies_the_folder_of_the_crds(kubeconfig: Path, kube: KubeApi) -> None:
    words = [tool("kubectl"), "--kubeconfig", str(kubeconfig), "apply", "-f", str(ROOT / "crds")]
    for _ in range(2):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert {line.split(" ")[0].rpartition("/")[2] for line in done.stdout.splitlines()} == {
            f"{plural}.quire.dev" for _, plural in KINDS.values()
        }
    assert done.stdout.count("unchanged") == len(KINDS), "the second time nothing changes"
    assert kube.get("/apis/quire.dev/v1alpha1/bookies").ok


def test_unknown_fields_of_a_pod_template_are_kept_and_others_pruned(kube: KubeApi, namespace: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"hostFutureField": {"x": [1]}, "nodeSelector": {"d": "s"}}}
    manifest = changed(BOOKIE, {"spec.podTemplate": template, "spec.misspelt": 1})
    spec = kube.create(collection(namespace, "Bookie"), manifest).expect()["spec"]
    assert spec["podTemplate"] == template
    assert "misspelt" not in spec


def test_kubectl_get_answers_whether_the_data_is_safe(kube: KubeApi, namespace: str) -> None:
    kube.create(collection(namespace, "Bookie"), BOOKIE).expect()
    condition = {"type": "FullyReplicated", "status": "False", "reason": "LedgersLackReplicas"}
    status = {
        "phase": "Degraded",
        "ready": 2,
        "writable": 2,
        "underReplicated": {"count": 17},
        "capacity": {"usedPercent": 41},
        "conditions": [condition | {"lastTransitionTime": "2030-01-01T00:00:00Z"}],
    }
    path = f"{collection(namespace, 'Bookie')}/pool"
    kube.merge(f"{path}/status", {"status": status}).expect()
    table = kube.table(path)
    names = [column["name"] for column in table["columnDefinitions"]]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert row["Safe"] == "False"
    assert row["Lacking"] == 17
    assert (row["Phase"], row["Desired"], row["Ready"], row["Used%"]) == ("Degraded", 3, 2, 41)


def test_the_scale_subresource_changes_the_replicas_and_obeys_the_rules(kube: KubeApi, namespace: str) -> None:
    kube.create(collection(namespace, "Bookie"), changed(BOOKIE, {"spec.autoscale": {"min": 3, "max": 6}})).expect()
    path = f"{collection(namespace, 'Bookie')}/pool"
    kube.merge(f"{path}/scale", {"spec": {"replicas": 5}}).expect()
    assert kube.get(path).expect()["spec"]["replicas"] == 5
    refused = kube.merge(f"{path}/scale", {"spec": {"replicas": 7}})
    assert refused.status == 422
    assert "outside of autoscale.min" in refused.message


def test_a_status_does_not_change_the_spec_and_does_not_count_as_a_generation(kube: KubeApi, namespace: str) -> None:
    made = kube.create(collection(namespace, "Bookie"), BOOKIE).expect()
    path = f"{collection(namespace, 'Bookie')}/pool"
    operation = {
        "type": "Drain",
        "step": "Copying",
        "startedAt": "2030-01-01T00:00:00Z",
        "stepStartedAt": "2030-01-01T00:00:01Z",
    }
    patch = {"status": {"operation": operation, "observedGeneration": 1}, "spec": {"replicas": 9}}
    after = kube.merge(f"{path}/status", patch).expect()
    assert after["spec"] == made["spec"]
    assert after["metadata"]["generation"] == made["metadata"]["generation"]
    assert after["status"]["operation"]["attempt"] == 1
