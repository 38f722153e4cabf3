"""Pulsar's REST paths of namespaces and topics whose effect one request shows: properties, rules of messages, nodes."""

from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.broker_process import BrokerProcess

ROOT = "/admin/v2/namespaces/public/rules"
TOPICS = "/admin/v2/persistent/public/rules"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("namespace-admin"))
    process.rest("PUT", ROOT)
    yield process
    process.close()


def test_single_properties_of_a_namespace(broker: BrokerProcess) -> None:
    broker.rest("PUT", f"{ROOT}/property/a/one")
    broker.rest("PUT", f"{ROOT}/property/b/two")
    assert broker.rest("GET", f"{ROOT}/property/a") == "one"
    assert broker.rest("GET", f"{ROOT}/properties") == {"a": "one", "b": "two"}
    assert broker.rest("DELETE", f"{ROOT}/property/a") == "one"
    assert broker.rest("GET", f"{ROOT}/property/a") is None
    broker.rest("DELETE", f"{ROOT}/properties")
    assert broker.rest("GET", f"{ROOT}/properties") == {}
    code, reason = broker.refused("PUT", f"{ROOT}/property/a/{'v' * 1025}")
    assert (code, "at most 1024 characters" in reason) == (412, True)
    assert broker.refused("GET", "/admin/v2/namespaces/public/gone/property/a")[0] == 404


def test_a_role_is_removed_from_a_subscription_at_pulsars_path(broker: BrokerProcess) -> None:
    broker.rest("POST", f"{ROOT}/permissions/subscription/s", ["alice", "bob"])
    broker.rest("DELETE", f"{ROOT}/permissions/s/alice")
    assert broker.rest("GET", f"{ROOT}/permissions/subscription") == {"s": ["bob"]}
    broker.rest("DELETE", f"{ROOT}/permissions/s/bob")
    assert broker.rest("GET", f"{ROOT}/permissions/subscription") == {}


def test_a_group_is_set_by_its_name_without_quotes(broker: BrokerProcess) -> None:
    request = Request(f"{broker.http}{ROOT}/antiAffinity", b"shop", {"Content-Type": "application/json"}, method="POST")
    with urlopen(request) as answer:
        assert answer.status == 204
    assert broker.rest("GET", f"{ROOT}/antiAffinity") == "shop"
    members = "/admin/v2/namespaces/standalone/antiAffinity"
    assert broker.rest("GET", f"{members}/shop?tenant=public") == ["public/rules"]
    assert broker.rest("GET", f"{members}/shop?tenant=other") == []
    assert broker.rest("GET", f"{members}/none") == []
    assert broker.refused("GET", "/admin/v2/namespaces/elsewhere/antiAffinity/shop")[0] == 404
    broker.rest("DELETE", f"{ROOT}/antiAffinity")


def test_values_in_force_of_policies_that_are_not_set(broker: BrokerProcess) -> None:
    found = {
        "isAllowAutoUpdateSchema": True,
        "maxTopicsPerNamespace": 0,
        "subscriptionTypesEnabled": [],
        "allowedClusters": [],
        "encryptionRequired": False,
        "subscriptionAuthMode": "None",
    }
    assert {policy: broker.rest("GET", f"{ROOT}/{policy}") for policy in found} == found
    broker.rest("PUT", f"{TOPICS}/unset")
    assert broker.rest("GET", f"{TOPICS}/unset/schemaValidationEnforced") is False
    assert broker.rest("GET", f"{TOPICS}/unset/subscriptionTypesEnabled") == []


@pytest.mark.parametrize(
    ("policy", "value", "reason"),
    [
        ("allowedClusters", ["standalone", "far"], "topics are not replicated"),
        ("subscriptionAuthMode", "Suffix", "use one of None, Prefix"),
        ("schemaAutoUpdateCompatibilityStrategy", "Sometimes", "use one of AutoUpdateDisabled"),
        ("encryptionRequired", "yes", "true or false"),
    ],
)
def test_invalid_policies_are_refused(broker: BrokerProcess, policy: str, value: Any, reason: str) -> None:
    code, said = broker.refused("POST", f"{ROOT}/{policy}", value)
    assert code == 412
    assert reason in said


def test_a_namespace_cannot_be_declared_as_moved(broker: BrokerProcess) -> None:
    broker.rest("POST", f"{ROOT}/migration", False)
    assert broker.refused("POST", f"{ROOT}/migration", True)[0] == 501
    assert broker.refused("POST", "/admin/v2/namespaces/public/gone/migration", False)[0] == 404
    assert broker.rest("GET", "/admin/namespaces/public/standalone") == []
    assert broker.refused("GET", "/admin/namespaces/public/elsewhere")[0] == 404


def test_hashes_of_topics_in_a_bundle(broker: BrokerProcess) -> None:
    broker.rest("PUT", f"{TOPICS}/hashed")
    topic = "persistent://public/rules/hashed"
    positions: dict[str, int] = {}
    for low, high in ((0, 4), (4, 8), (8, 12), (12, 16)):
        end = "0xffffffff" if high == 16 else f"0x{high:x}0000000"
        bundle = f"0x{low:x}0000000_{end}"
        found = broker.rest("GET", f"{ROOT}/{bundle}/topicHashPositions?topics={topic}")
        assert (found["namespace"], found["bundle"]) == ("public/rules", bundle)
        assert all(low << 28 <= hash < high << 28 for hash in found["topicHashPositions"].values())
        positions |= found["topicHashPositions"]
        everything = broker.rest("GET", f"{ROOT}/{bundle}/topicHashPositions")["topicHashPositions"]
        assert found["topicHashPositions"].items() <= everything.items()
    assert list(positions) == [topic]


def test_the_size_of_messages_is_limited_for_one_topic(broker: BrokerProcess) -> None:
    broker.rest("PUT", f"{TOPICS}/small")
    publish = "/admin/quire/topics/persistent/public/rules/small/messages"
    broker.rest("POST", f"{TOPICS}/small/maxMessageSize", 100)
    assert broker.rest("GET", f"{TOPICS}/small/maxMessageSize") == 100
    broker.rest("POST", publish, {"payload": "eHh4"})
    assert "the policy maxMessageSize is 100" in broker.refused("POST", publish, {"payload": "eHh4" * 50})[1]
    assert "own maxMessageSize" in broker.refused("POST", f"{TOPICS}/small/maxMessageSize", 10**9)[1]
    broker.rest("DELETE", f"{TOPICS}/small/maxMessageSize")
    broker.rest("POST", publish, {"payload": "eHh4" * 50})


def test_the_rules_of_schemas_may_differ_by_topic(broker: BrokerProcess) -> None:
    def schema(*fields: str) -> dict[str, Any]:
        listed = ",".join(f'{{"name":"{field}","type":"int"}}' for field in fields)
        return {"type": "AVRO", "schema": f'{{"type":"record","name":"R","fields":[{listed}]}}', "properties": {}}

    for name in ("strict", "loose"):
        broker.rest("PUT", f"{TOPICS}/{name}")
        broker.rest("POST", f"/admin/v2/schemas/public/rules/{name}/schema", schema("a"))
    broker.rest("PUT", f"{TOPICS}/loose/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert broker.rest("GET", f"{TOPICS}/loose/schemaCompatibilityStrategy") == "ALWAYS_COMPATIBLE"
    assert broker.refused("POST", "/admin/v2/schemas/public/rules/strict/schema", schema("a", "b"))[0] == 409
    broker.rest("POST", "/admin/v2/schemas/public/rules/loose/schema", schema("a", "b"))
    broker.rest("PUT", f"{TOPICS}/loose/unload")
    broker.rest("POST", "/admin/v2/schemas/public/rules/loose/schema", schema("a", "c"))
    found = broker.rest("GET", "/admin/v2/schemas/public/rules/loose/metadata")
    assert [one["version"] for one in found["index"]] == [0, 1, 2]
    assert found["info"] == found["index"][-1]
    broker.rest("PUT", f"{ROOT}/schemaAutoUpdateCompatibilityStrategy", "AlwaysCompatible")
    broker.rest("POST", "/admin/v2/schemas/public/rules/strict/schema", schema("a", "b"))
    broker.rest("DELETE", f"{ROOT}/schemaAutoUpdateCompatibilityStrategy")
    assert broker.refused("GET", "/admin/v2/schemas/public/rules/none/metadata")[0] == 404


def test_the_stored_nodes_of_a_topic_are_shown(broker: BrokerProcess) -> None:
    broker.rest("PUT", f"{TOPICS}/shown", {"color": "red"})
    broker.rest("PUT", f"{TOPICS}/shown/subscription/s", "earliest")
    found = broker.rest("GET", f"{TOPICS}/shown/internal-info")
    assert found["properties"] == {"color": "red"}
    assert len(found["ledgers"]) == 1
    assert found["cursors"]["s"]["individualDeletedMessages"] == []
    broker.rest("PUT", f"{TOPICS}/parts/partitions", 2)
    broker.rest("PUT", f"{TOPICS}/parts-partition-1/subscription/s", "earliest")
    parts = broker.rest("GET", f"{TOPICS}/parts/internal-info")["partitions"]
    assert list(parts) == ["persistent://public/rules/parts-partition-1"]
    assert broker.refused("GET", f"{TOPICS}/gone/internal-info")[0] == 404
