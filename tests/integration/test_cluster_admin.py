"""REST paths of Pulsar about the whole cluster: racks, peers, moved clusters, isolation and bundles by broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess

CLUSTERS = "/admin/v2/clusters"
BOOKIES = "/admin/v2/bookies"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("cluster-admin"))
    yield process
    process.close()


def test_racks_of_bookies_are_set_moved_and_removed(broker: BrokerProcess) -> None:
    (bookie,) = [one["bookieId"] for one in broker.rest("GET", f"{BOOKIES}/all")["bookies"]]
    path = f"{BOOKIES}/racks-info/{bookie}"
    assert broker.rest("GET", f"{BOOKIES}/racks-info") == {}
    assert broker.refused("GET", path)[0] == 404
    assert broker.refused("DELETE", path)[0] == 404
    broker.rest("POST", f"{path}?group=left", {"rack": "/zone/r1", "hostname": "b1"})
    assert broker.rest("GET", path) == {"rack": "/zone/r1", "hostname": "b1"}
    broker.rest("POST", f"{path}?group=right", {"rack": "r2"})
    assert broker.rest("GET", f"{BOOKIES}/racks-info") == {"right": {bookie: {"rack": "r2", "hostname": None}}}
    broker.rest("DELETE", path)
    assert broker.rest("GET", f"{BOOKIES}/racks-info") == {}


@pytest.mark.parametrize(
    ("query", "info", "reason"),
    [
        ("", {"rack": "/r"}, "the query needs group="),
        ("?group=g", {}, "rack is 'None'"),
        ("?group=g", {"rack": "/"}, "give a path such as /zone/rack"),
        ("?group=g", {"rack": "/r", "hostname": 7}, "hostname is '7'"),
        ("?group=" + "g" * 1025, {"rack": "/r"}, "1 to 1024 characters"),
    ],
)
def test_an_invalid_rack_is_refused(broker: BrokerProcess, query: str, info: Any, reason: str) -> None:
    code, said = broker.refused("POST", f"{BOOKIES}/racks-info/b:3181{query}", info)
    assert code == 412
    assert reason in said


def test_peer_clusters_must_exist(broker: BrokerProcess) -> None:
    broker.rest("PUT", f"{CLUSTERS}/peer", {"serviceUrl": "http://x:1"})
    path = f"{CLUSTERS}/standalone/peers"
    assert broker.rest("GET", path) is None
    broker.rest("POST", path, ["peer"])
    assert broker.rest("GET", path) == ["peer"]
    assert broker.refused("POST", path, ["nowhere"]) == (412, "Peer cluster 'nowhere' does not exist")
    assert broker.refused("POST", path, ["standalone"])[0] == 412
    assert broker.refused("POST", path, {"peer": 1})[0] == 412
    assert broker.refused("POST", path, ["peer"] * 2 + [f"c{number}" for number in range(101)])[0] == 412
    broker.rest("POST", path, [])
    assert broker.rest("GET", path) == []
    assert broker.refused("GET", f"{CLUSTERS}/nowhere/peers")[0] == 404
    broker.rest("DELETE", f"{CLUSTERS}/peer")


def test_only_another_cluster_may_be_declared_as_moved(broker: BrokerProcess) -> None:
    broker.rest("PUT", f"{CLUSTERS}/moved", {"serviceUrl": "http://x:1"})
    path = f"{CLUSTERS}/moved/migrate"
    assert broker.refused("GET", path)[0] == 404
    broker.rest("POST", f"{path}?isMigrated=true", {"serviceUrl": "http://y:1", "empty": False})
    found = broker.rest("GET", path)
    assert (found["migrated"], found["migratedClusterUrl"]["serviceUrl"]) == (True, "http://y:1")
    assert broker.refused("POST", path, {"serviceUrl": 5})[0] == 412
    code, reason = broker.refused("POST", f"{CLUSTERS}/standalone/migrate?isMigrated=true", {})
    assert (code, "does not send clients to another cluster" in reason) == (501, True)
    broker.rest("POST", f"{CLUSTERS}/standalone/migrate", {"serviceUrl": "http://y:1"})
    broker.rest("DELETE", f"{CLUSTERS}/moved")
    assert "moved" not in broker.rest("GET", CLUSTERS)


def test_isolation_is_shown_by_broker(broker: BrokerProcess) -> None:
    (own,) = broker.rest("GET", "/admin/v2/brokers")
    root = f"{CLUSTERS}/standalone/namespaceIsolationPolicies"
    free = {"brokerName": own, "policyName": None, "primary": False, "namespaceRegex": []}
    assert broker.rest("GET", f"{root}/brokers") == [free]
    broker.rest("POST", f"{root}/p", {"namespaces": ["a/.*"], "primary": ["127.*"], "secondary": []})
    broker.rest("POST", f"{root}/q", {"namespaces": ["b/.*"], "primary": ["other"], "secondary": ["127.*"]})
    found = broker.rest("GET", f"{root}/brokers/{own}")
    assert found == {"brokerName": own, "policyName": "q", "primary": False, "namespaceRegex": ["a/.*", "b/.*"]}
    assert broker.refused("GET", f"{root}/brokers/other:1")[0] == 404
    for name in ("p", "q"):
        broker.rest("DELETE", f"{root}/{name}")


def test_a_broker_lists_its_bundles(broker: BrokerProcess) -> None:
    (own,) = broker.rest("GET", "/admin/v2/brokers")
    broker.rest("PUT", "/admin/v2/persistent/public/default/listed")
    found = broker.rest("GET", f"/admin/v2/brokers/standalone/{own}/ownedNamespaces")
    assert {"broker_assignment": "shared", "is_controlled": False, "is_active": True} in found.values()
    assert any(bundle.startswith("public/default/0x") for bundle in found)
    assert broker.refused("GET", "/admin/v2/brokers/standalone/other:1/ownedNamespaces")[0] == 404
    assert broker.refused("GET", f"/admin/v2/brokers/other/{own}/ownedNamespaces")[0] == 404
    assert broker.rest("GET", "/admin/v2/brokers/backlog-quota-check") is None


def test_the_counters_of_a_broker_have_stocks_form(broker: BrokerProcess) -> None:
    (own,) = broker.rest("GET", "/admin/v2/brokers")
    (found,) = broker.rest("GET", "/admin/v2/broker-stats/metrics")
    assert found["dimensions"] == {"broker": own, "cluster": "standalone", "metric": "broker"}
    assert {"topics", "bundles_owned", "messages_in"} <= found["metrics"].keys()


def test_a_bundle_without_an_owner_is_split(broker: BrokerProcess) -> None:
    broker.rest("PUT", "/admin/v2/namespaces/public/halves", {"bundles": {"numBundles": 1}})
    broker.rest("PUT", "/admin/v2/namespaces/public/halves/0x00000000_0xffffffff/split")
    assert broker.rest("GET", "/admin/v2/namespaces/public/halves/bundles")["numBundles"] == 2
    broker.rest("DELETE", "/admin/v2/namespaces/public/halves")


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("GET", "/admin/v3/functions/public/default", "functions, sources, sinks and packages are not part of Quire"),
        ("POST", "/admin/v3/sinks/public/default/one", "functions, sources, sinks and packages are not part of Quire"),
        ("GET", "/admin/v2/worker/cluster", "functions, sources, sinks and packages are not part of Quire"),
        ("GET", "/admin/v3/transactions/coordinators", "transactions are not served"),
        ("GET", "/admin/v2/broker-stats/mbeans", "does not run in a Java VM"),
        ("GET", "/admin/v2/broker-stats/allocator-stats/default", "does not run in a Java VM"),
    ],
)
def test_parts_of_pulsar_that_are_not_served_say_why(
    broker: BrokerProcess, method: str, path: str, reason: str
) -> None:
    code, said = broker.refused(method, path)
    assert code == 501
    assert reason in said
