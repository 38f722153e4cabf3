"""Tenants, namespaces and topics as resources: a real API server, etcd, bookie and broker; only the pod is ours."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_operator.errors import OperatorError, RefusedError
from tests.integration.operator.declared_stack import DeclaredStack, running_stack
from tests.integration.operator.kube_api import KubeApi
from tests.support.etcd_server import EtcdServer
from tests.support.kube_resources import of_orders

pytestmark = pytest.mark.slow
NAMESPACE = "shop/returns"
QUOTA = {"size": "1Gi", "policy": "ProducerException"}


@pytest.fixture
async def stack(
    kubeconfig: Path, kube: KubeApi, namespace: str, etcd_server: EtcdServer, tmp_path: Path
) -> AsyncIterator[DeclaredStack]:
    async with running_stack(kubeconfig, kube, namespace, etcd_server.endpoint, tmp_path) as found:
        yield found


async def test_a_tenant_and_a_namespace_become_as_declared_and_stay_so(stack: DeclaredStack) -> None:
    stack.declare("Tenant", "shop", adminRoles=["ops"])
    await stack.settle("Tenant", "shop")
    assert stack.condition("Tenant", "shop") == ("True", "InSync"), "the tenant had no roles before"
    assert (await stack.rest("GET", "/admin/v2/tenants/shop"))["adminRoles"] == ["ops"]
    assert stack.status("Tenant", "shop")["namespaces"] == 1

    stack.declare(
        "TopicNamespace",
        "returns",
        namespace=NAMESPACE,
        retention={"time": "1h", "size": "unbounded", "ttl": "30m"},
        backlogQuota=QUOTA,
        schemaCompatibility="Backward",
        deduplication=True,
        autoTopicCreation=False,
        replication={"ensemble": 1, "writeQuorum": 1, "ackQuorum": 1},
    )
    await stack.settle("TopicNamespace", "returns")
    assert stack.condition("TopicNamespace", "returns") == ("True", "InSync")
    policies = await stack.rest("GET", f"/admin/v2/namespaces/{NAMESPACE}")
    assert policies["retention_policies"] == {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    assert policies["schema_compatibility_strategy"] == "BACKWARD"
    assert policies["deduplicationEnabled"] is True
    assert policies["autoTopicCreationOverride"] == {"allowAutoTopicCreation": False}
    assert policies["backlog_quota_map"]["destination_storage"]["policy"] == "producer_exception"
    isolation = await stack.rest("GET", "/admin/v2/clusters/quire/namespaceIsolationPolicies")
    assert isolation["shop~returns"]["primary"] == isolation["shop~orders"]["primary"]

    await stack.rest("POST", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL", 5)
    await stack.settle("TopicNamespace", "returns")
    reverted = stack.status("TopicNamespace", "returns")["reverted"]
    assert reverted["what"] == "messageTTL is 5, declared is 1800"
    assert "RevertingDrift" in stack.events("returns")
    assert await stack.rest("GET", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL") == 1800

    stack.change("TopicNamespace", "returns", backlogQuota=None, deduplication=None, retention={"ttl": "1h"})
    await stack.settle("TopicNamespace", "returns")
    policies = await stack.rest("GET", f"/admin/v2/namespaces/{NAMESPACE}")
    assert not policies["backlog_quota_map"] and "deduplicationEnabled" not in policies
    assert policies["message_ttl_in_seconds"] == 3600
    assert stack.status("TopicNamespace", "returns")["reverted"] == reverted, "a change of the spec is no drift"


async def test_what_exists_otherwise_is_not_taken_over_and_the_older_resource_wins(stack: DeclaredStack) -> None:
    await stack.rest("PUT", "/admin/v2/tenants/other", {"adminRoles": ["them"], "allowedClusters": ["quire"]})
    stack.declare("Tenant", "other", adminRoles=["us"])
    await stack.settle("Tenant", "other")
    assert stack.condition("Tenant", "other") == ("False", "NotAdopted")
    assert "adminRoles are them, declared are us" in stack.message("Tenant", "other")
    assert (await stack.rest("GET", "/admin/v2/tenants/other"))["adminRoles"] == ["them"]
    stack.change("Tenant", "other", adoptionPolicy="Always")
    await stack.settle("Tenant", "other")
    assert stack.condition("Tenant", "other") == ("True", "InSync")
    assert (await stack.rest("GET", "/admin/v2/tenants/other"))["adminRoles"] == ["us"]

    stack.declare("Tenant", "second", tenant="other", adminRoles=["third"], deletionPolicy="Delete")
    await stack.settle("Tenant", "second")
    assert stack.condition("Tenant", "second") == ("False", "Claimed")
    assert f"Tenant {stack.namespace}/other" in stack.message("Tenant", "second")
    stack.remove("Tenant", "second")
    await stack.settle("Tenant", "second")
    assert not stack.exists("Tenant", "second")
    assert (await stack.rest("GET", "/admin/v2/tenants/other"))["adminRoles"] == ["us"]

    stack.declare("TopicNamespace", "own", namespace="shop/orders")
    await stack.settle("TopicNamespace", "own")
    assert stack.condition("TopicNamespace", "own") == ("False", "Claimed")
    assert "ManagedLedger" in stack.message("TopicNamespace", "own")


async def test_deletions_keep_data_unless_they_are_told_otherwise(stack: DeclaredStack) -> None:
    stack.declare("Tenant", "lab", deletionPolicy="Delete")
    stack.declare("TopicNamespace", "trial", namespace="lab/trial", deletionPolicy="Delete")
    await stack.settle("Tenant", "lab")
    await stack.settle("TopicNamespace", "trial")
    await stack.rest("PUT", "/admin/v2/persistent/lab/trial/t")
    stack.remove("Tenant", "lab")
    stack.remove("TopicNamespace", "trial")
    await stack.settle("Tenant", "lab")
    await stack.settle("TopicNamespace", "trial")
    assert stack.condition("Tenant", "lab") == ("False", "DeletionHeld")
    assert "still has topics (1)" in stack.message("TopicNamespace", "trial")
    await stack.rest("DELETE", "/admin/v2/persistent/lab/trial/t")
    for kind, name in (("TopicNamespace", "trial"), ("Tenant", "lab")):
        await stack.settle(kind, name)
        assert not stack.exists(kind, name)
    assert "lab" not in await stack.rest("GET", "/admin/v2/tenants")

    stack.declare("TopicNamespace", "kept", namespace="shop/kept")
    await stack.settle("TopicNamespace", "kept")
    stack.remove("TopicNamespace", "kept")
    await stack.settle("TopicNamespace", "kept")
    assert not stack.exists("TopicNamespace", "kept")
    assert "shop/kept" in await stack.rest("GET", "/admin/v2/namespaces/shop")


async def test_a_silent_broker_is_unknown_and_a_lost_lease_writes_nothing(stack: DeclaredStack) -> None:
    class LostError(OperatorError):
        """The lease is lost."""

    def lost() -> None:
        raise LostError("lease lost")

    stack.declare("Tenant", "later", adminRoles=["ops"])
    await stack.settle("Tenant", "later")
    await stack.rest("POST", "/admin/v2/tenants/later", {"adminRoles": ["else"], "allowedClusters": ["quire"]})
    stack.kube.before_writing = lost
    with pytest.raises(LostError):
        await stack.settle("Tenant", "later")
    assert (await stack.rest("GET", "/admin/v2/tenants/later"))["adminRoles"] == ["else"]
    stack.kube.before_writing = lambda: None

    stack.api.merge(f"{stack.path('ManagedLedger', 'orders')}/status", {"status": {"ready": 0}}).expect()
    await stack.settle("Tenant", "later")
    assert stack.condition("Tenant", "later") == ("Unknown", "NoBroker")
    assert stack.condition("Tenant", "later", "Synced") == ("Unknown", "NoBroker")
    stack.api.merge(f"{stack.path('ManagedLedger', 'orders')}/status", {"status": {"ready": 1}}).expect()
    await stack.settle("Tenant", "later")
    assert stack.condition("Tenant", "later") == ("True", "InSync")
    assert stack.status("Tenant", "later")["reverted"]["what"] == "adminRoles are else, declared are ops"


async def test_a_topic_becomes_as_declared_grows_and_reports_its_figures(stack: DeclaredStack) -> None:
    root = "/admin/v2/persistent/shop/orders"
    stack.declare("Topic", "placed", partitions=2, subscriptions=[{"name": "billing"}])
    await stack.settle("Topic", "placed")
    assert stack.condition("Topic", "placed") == ("True", "InSync")
    status = stack.status("Topic", "placed")
    assert status["topic"] == "persistent://shop/orders/placed"
    figures = ("partitions", "producers", "subscriptions", "backlog", "sizeBytes", "owner")
    assert [status[name] for name in figures] == [2, 0, 1, 0, 0, "orders-broker-0"]

    stack.change("Topic", "placed", partitions=3)
    await stack.settle("Topic", "placed")
    assert (await stack.rest("GET", f"{root}/placed/partitions"))["partitions"] == 3
    assert "reverted" not in stack.status("Topic", "placed")
    await stack.rest("DELETE", f"{root}/placed-partition-1/subscription/billing")
    await stack.settle("Topic", "placed")
    assert stack.status("Topic", "placed")["reverted"]["what"] == "subscription billing does not exist"
    assert await stack.rest("GET", f"{root}/placed-partition-1/subscriptions") == ["billing"]

    await stack.rest("POST", f"{root}/placed/partitions", 5)
    await stack.settle("Topic", "placed")
    assert stack.condition("Topic", "placed") == ("False", "Contradiction")
    assert "has 5 partitions, but 3 are declared" in stack.message("Topic", "placed")
    stack.change("Topic", "placed", partitions=5)
    await stack.settle("Topic", "placed")
    assert stack.condition("Topic", "placed") == ("True", "InSync")


def avro(*fields: str, default: bool = True) -> str:
    """Return an Avro schema of a record with text fields."""
    found = [{"name": name, "type": "string"} | ({"default": ""} if default else {}) for name in fields]
    return json.dumps({"type": "record", "name": "Placed", "fields": found})


async def test_a_declared_schema_is_registered_reverted_and_refused_if_incompatible(stack: DeclaredStack) -> None:
    root = "/admin/v2/schemas/shop/orders/placed"
    stack.declare("Topic", "placed", partitions=2, schema={"type": "AVRO", "definition": avro("id")})
    await stack.settle("Topic", "placed")
    assert stack.condition("Topic", "placed") == ("True", "InSync")
    assert stack.status("Topic", "placed")["schemaVersion"] == 0
    assert json.loads((await stack.rest("GET", f"{root}/schema"))["data"]) == json.loads(avro("id"))

    stack.change("Topic", "placed", schema={"definition": avro("id", "buyer")})
    await stack.settle("Topic", "placed")
    assert stack.status("Topic", "placed")["schemaVersion"] == 1
    newer = {"type": "AVRO", "schema": avro("id", "buyer", "price"), "properties": {}}
    assert (await stack.rest("POST", f"{root}/schema", newer))["version"]["version"] == 2
    await stack.settle("Topic", "placed")
    assert stack.status("Topic", "placed")["schemaVersion"] == 1, "a producer may register a newer one"
    assert "reverted" not in stack.status("Topic", "placed")

    await stack.rest("DELETE", f"{root}/schema")
    await stack.settle("Topic", "placed")
    assert "the declared schema of type AVRO is not registered" in stack.status("Topic", "placed")["reverted"]["what"]
    assert json.loads((await stack.rest("GET", f"{root}/schema"))["data"]) == json.loads(avro("id", "buyer"))

    stack.change("Topic", "placed", schema={"definition": avro("id", "buyer", "tax", default=False)})
    with pytest.raises(RefusedError, match="the broker refused the schema"):
        await stack.settle("Topic", "placed")
    assert stack.condition("Topic", "placed") == ("False", "Refused")
    stack.change("Topic", "placed", schema={"definition": "{no schema"})
    with pytest.raises(RefusedError, match="not JSON"):
        await stack.settle("Topic", "placed")
    assert "(422): Invalid schema definition" in stack.message("Topic", "placed")


@pytest.mark.parametrize("schema", [{"type": "AVRO"}, {"type": "STRING", "definition": "x"}, {"type": "NONE"}])
async def test_a_schema_without_the_definition_that_its_type_needs_is_refused(
    kube: KubeApi, namespace: str, schema: dict[str, str]
) -> None:
    path = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/topics"
    assert kube.create(path, of_orders("Topic", "placed", schema=schema)).status == 422


async def test_claims_namespaces_and_deletions_of_topics(stack: DeclaredStack) -> None:
    root = "/admin/v2/persistent/shop"
    stack.declare("Topic", "early", namespace=NAMESPACE, deletionPolicy="Delete")
    await stack.settle("Topic", "early")
    assert stack.condition("Topic", "early") == ("False", "NoNamespace")
    stack.declare("TopicNamespace", "returns", namespace=NAMESPACE)
    await stack.settle("TopicNamespace", "returns")
    await stack.settle("Topic", "early")
    assert stack.condition("Topic", "early") == ("True", "InSync")

    stack.declare("Topic", "late", namespace=NAMESPACE, topic="early", deletionPolicy="Delete")
    await stack.settle("Topic", "late")
    assert stack.condition("Topic", "late") == ("False", "Claimed")
    stack.remove("Topic", "late")
    await stack.settle("Topic", "late")
    assert not stack.exists("Topic", "late")
    assert f"persistent://{NAMESPACE}/early" in await stack.rest("GET", f"{root}/returns")

    stack.remove("Topic", "early")
    await stack.settle("Topic", "early")
    assert not stack.exists("Topic", "early")
    assert await stack.rest("GET", f"{root}/returns") == []

    stack.declare("Topic", "kept")
    await stack.settle("Topic", "kept")
    stack.remove("Topic", "kept")
    await stack.settle("Topic", "kept")
    assert not stack.exists("Topic", "kept")
    assert "persistent://shop/orders/kept" in await stack.rest("GET", f"{root}/orders")


async def test_a_deleted_managed_ledger_opens_its_namespaces_to_other_brokers(stack: DeclaredStack) -> None:
    stack.declare("TopicNamespace", "returns", namespace=NAMESPACE)
    await stack.settle("TopicNamespace", "returns")
    policies = "/admin/v2/clusters/quire/namespaceIsolationPolicies"
    assert set(await stack.rest("GET", policies)) == {"shop~orders", "shop~returns"}
    stack.remove("ManagedLedger", "orders")
    await stack.settle("TopicNamespace", "returns")
    assert stack.condition("TopicNamespace", "returns") == ("True", "InSync")
    await stack.rest("DELETE", f"{policies}/shop~returns")
    await stack.settle("TopicNamespace", "returns")
    assert stack.condition("TopicNamespace", "returns") == ("False", "ManagedLedgerDeleted")
    await stack.rest("POST", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL", 5)
    await stack.ledger_passes(2)
    assert not stack.exists("ManagedLedger", "orders")
    assert await stack.rest("GET", policies) == {}
    await stack.settle("TopicNamespace", "returns")
    assert stack.condition("TopicNamespace", "returns") == ("False", "NoManagedLedger")
    assert await stack.rest("GET", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL") == 5
    stack.remove("TopicNamespace", "returns")
    await stack.settle("TopicNamespace", "returns")
    assert not stack.exists("TopicNamespace", "returns")
