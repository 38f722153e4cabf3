"""The REST surface of a whole broker: codes, JSON, policies, ledgers of our own endpoints, probes."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from quire_broker.limits import SUBSCRIPTION_RATES_MAX
from tests.support.broker_process import BrokerProcess
from tests.support.polling import until

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "etcd" / "pulsar-broker.txt"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("admin"))
    yield process
    process.close()


def refused(broker: BrokerProcess, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Code and reason of a refusal."""
    return broker.refused(method, path, body)


def test_probes_metrics_and_the_page(broker: BrokerProcess) -> None:
    assert broker.rest("GET", "/healthz").strip() == "ok"
    assert broker.rest("GET", "/readyz").strip() == "ok"
    assert broker.rest("GET", "/admin/v2/brokers/health") == "ok"
    assert broker.rest("GET", "/admin/v2/brokers/version").startswith("quire-")
    assert broker.http.removeprefix("http://") in broker.rest("GET", "/admin/v2/brokers/standalone")
    assert "pulsar_connection_created_total_count" in broker.rest("GET", "/metrics")
    metrics = broker.rest("GET", "/metrics")
    assert "quire_broker_speculative_reads_total" in metrics
    assert "quire_broker_foreign_ledger_answers_total" in metrics
    with urlopen(broker.http + "/") as answer:
        assert b"<h1>Quire" in answer.read()
    assert refused(broker, "GET", "/nothing/here")[0] == 404


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_a_page_of_another_site_sets_no_offload_policy(
    broker: BrokerProcess, headers: dict[str, str], code: int
) -> None:
    path = "/admin/v2/namespaces/public/default/offloadPolicies"
    policy = {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "theirs"}
    with pytest.raises(HTTPError) as failure:
        urlopen(Request(broker.http + path, json.dumps(policy).encode(), headers, method="POST"))
    assert failure.value.code == code
    assert broker.rest("GET", path) is None


def test_a_name_that_another_site_led_here_is_refused(broker: BrokerProcess) -> None:
    for path, code in (("/admin/v2/tenants", 403), ("/admin/v2/namespaces/public/default/topics", 403)):
        with pytest.raises(HTTPError) as failure:
            urlopen(Request(broker.http + path, headers={"Host": "evil.example:8080"}))
        assert failure.value.code == code
        assert "httpServerAllowedHosts" in json.loads(failure.value.read())["reason"]
    with urlopen(Request(broker.http + "/healthz", headers={"Host": "evil.example:8080"})) as answer:
        assert answer.status == 200


def test_clusters(broker: BrokerProcess) -> None:
    assert broker.rest("GET", "/admin/v2/clusters") == ["standalone"]
    assert broker.rest("GET", "/admin/v2/clusters/standalone")["brokerServiceUrl"] == broker.url
    broker.rest("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://x:1"})
    assert refused(broker, "PUT", "/admin/v2/clusters/other", {})[0] == 409
    broker.rest("POST", "/admin/v2/clusters/other", {"serviceUrl": "http://y:1"})
    assert broker.rest("GET", "/admin/v2/clusters/other")["serviceUrl"] == "http://y:1"
    broker.rest("DELETE", "/admin/v2/clusters/other")
    assert refused(broker, "GET", "/admin/v2/clusters/other")[0] == 404
    assert refused(broker, "DELETE", "/admin/v2/clusters/standalone")[0] == 409


def test_tenants_and_namespaces(broker: BrokerProcess) -> None:
    info = {"adminRoles": ["me"], "allowedClusters": ["standalone"]}
    broker.rest("PUT", "/admin/v2/tenants/acme", info)
    assert broker.rest("GET", "/admin/v2/tenants/acme") == info
    assert "acme" in broker.rest("GET", "/admin/v2/tenants")
    assert refused(broker, "PUT", "/admin/v2/tenants/acme", info)[0] == 409
    assert refused(broker, "PUT", "/admin/v2/tenants/bad", {"allowedClusters": ["nowhere"]})[0] == 412
    broker.rest("PUT", "/admin/v2/namespaces/acme/orders")
    assert broker.rest("GET", "/admin/v2/namespaces/acme") == ["acme/orders"]
    assert refused(broker, "PUT", "/admin/v2/namespaces/acme/orders")[0] == 409
    assert refused(broker, "PUT", "/admin/v2/namespaces/nobody/orders")[0] == 404
    assert refused(broker, "GET", "/admin/v2/namespaces/acme/missing") == (404, "Namespace does not exist")
    assert broker.rest("GET", "/admin/v2/namespaces/acme/orders/bundles")["numBundles"] == 4
    broker.rest("PUT", "/admin/v2/persistent/acme/orders/t")
    assert broker.rest("GET", "/admin/v2/namespaces/acme/orders/topics") == ["persistent://acme/orders/t"]
    assert refused(broker, "DELETE", "/admin/v2/namespaces/acme/orders")[0] == 409
    assert refused(broker, "DELETE", "/admin/v2/tenants/acme")[0] == 409
    broker.rest("DELETE", "/admin/v2/namespaces/acme/orders?force=true")
    broker.rest("DELETE", "/admin/v2/tenants/acme")
    assert refused(broker, "GET", "/admin/v2/tenants/acme")[0] == 404


def test_policies_are_stored_checked_and_removed(broker: BrokerProcess) -> None:
    root = "/admin/v2/namespaces/public/policies"
    broker.rest("PUT", root)
    assert broker.rest("GET", root + "/retention") is None
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
    broker.rest("POST", root + "/retention", retention)
    assert broker.rest("GET", root + "/retention") == retention
    assert broker.rest("GET", root)["retention_policies"] == retention
    broker.rest("DELETE", root + "/retention")
    assert broker.rest("GET", root + "/retention") is None
    persistence = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}
    broker.rest("POST", root + "/persistence", persistence)
    broker.rest("PUT", "/admin/v2/persistent/public/policies/t")
    code, reason = refused(broker, "POST", root + "/persistence", {**persistence, "bookkeeperAckQuorum": 2})
    assert code == 412
    assert "AckQuorum (2)" in reason
    assert refused(broker, "POST", root + "/deduplication", "yes")[0] == 412
    broker.rest("POST", root + "/messageTTL", 60)
    assert broker.rest("GET", root + "/messageTTL") == 60
    assert refused(broker, "POST", root + "/messageTTL", "soon")[0] == 412
    assert broker.rest("GET", root + "/backlogQuotaMap") == {}
    code, reason = refused(broker, "POST", root + "/replicatorDispatchRate", {})
    assert (code, "topics are not replicated to other clusters" in reason) == (501, True)


def test_a_rate_is_of_the_own_cluster(broker: BrokerProcess) -> None:
    root = "/admin/v2/namespaces/public/rates"
    broker.rest("PUT", root)
    assert broker.rest("GET", root + "/publishRate") is None
    broker.rest("POST", root + "/publishRate", {"publishThrottlingRateInMsg": 5})
    rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    assert broker.rest("GET", root + "/publishRate") == rate
    assert broker.rest("GET", root)["publishMaxMessageRate"] == {"standalone": rate}
    for wrong in (5, {"publishThrottlingRateInMsg": "5"}, {"rate": 5}):
        assert refused(broker, "POST", root + "/publishRate", wrong)[0] == 412
    broker.rest("DELETE", root + "/publishRate")
    assert broker.rest("GET", root + "/publishRate") is None


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", "/admin/v2/namespaces/public/new", {"auth_policies": []}, "auth_policies"),
        ("PUT", "/admin/v2/namespaces/public/new", {"retention": {}}, "retention"),
        ("POST", "/admin/v2/namespaces/public/default/messageTTL", 10**400, "message_ttl_in_seconds"),
        (
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": 10**400, "retentionSizeInMB": 1},
            "retentionTimeInMinutes",
        ),
        ("POST", "/admin/v2/namespaces/public/default/properties", {"a": 1}, "properties"),
        ("PUT", "/admin/v2/tenants/new", {"adminRoles": "me", "allowedClusters": ["standalone"]}, "adminRoles"),
        ("POST", "/admin/v2/tenants/public", {"admins": ["me"]}, "admins"),
    ],
)
def test_a_body_of_a_wrong_type_is_refused_with_the_name_of_its_field(
    broker: BrokerProcess, method: str, path: str, body: Any, field: str
) -> None:
    code, reason = refused(broker, method, path, body)
    assert code == 412
    assert field in reason


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "reason"),
    [
        ("PUT", "/admin/v2/persistent/public/default/a%0Ab", None, 412, "holds a control character"),
        ("PUT", "/admin/v2/persistent/public/default/" + "x" * 1100, None, 412, "the limit is 1024"),
        ("PUT", "/admin/v2/persistent/public/default/a%1Bb/partitions", 3, 412, "holds a control character"),
        ("PUT", "/admin/v2/persistent/public/default/odd/subscription/a%0Ab", None, 412, "subscription name 'a\\nb'"),
        ("PUT", "/admin/v2/persistent/public/default/odd/subscription/" + "s" * 1100, None, 412, "nameMaxCharacters"),
        ("PUT", "/admin/v2/tenants/a%0Ab", {"allowedClusters": ["standalone"]}, 412, "is not a valid name of a tenant"),
        ("DELETE", "/admin/v2/clusters/%2F", None, 404, "must not contain '/'"),
        ("DELETE", "/admin/v2/tenants/public%2Fdefault", None, 404, "must not contain '/'"),
        ("POST", "/admin/v2/tenants/public%2Fdefault", {"adminRoles": ["me"]}, 404, "must not contain '/'"),
        ("POST", "/admin/v2/tenants/public", {"adminRoles": ["\ud800"]}, 400, "the body is not JSON"),
        ("PUT", "/admin/v2/clusters/a%0Ab", {}, 412, "is not a valid name of a cluster"),
        ("POST", "/admin/v2/persistent/public/default/odd/subscription/s/skip/-1", None, 400, "count=-1 is not"),
        ("POST", "/admin/v2/persistent/public/default/odd/subscription/s/skip/" + "9" * 5000, None, 400, "2147483647"),
        (
            "POST",
            "/admin/v2/persistent/public/default/odd/subscription/s/resetcursor/" + "9" * 30,
            None,
            400,
            "time_ms",
        ),
        ("GET", "/admin/v2/schemas/public/default/odd/schema/" + "9" * 5000, None, 400, "version="),
        ("GET", "/admin/quire/ledgers/" + "9" * 5000, None, 400, "ledger="),
        ("GET", "/admin/quire/ledgers?limit=" + "9" * 30, None, 400, "limit="),
    ],
)
def test_names_and_numbers_out_of_bounds_are_refused_with_the_reason(
    broker: BrokerProcess, method: str, path: str, body: Any, code: int, reason: str
) -> None:
    found = refused(broker, method, path, body)
    assert found[0] == code
    assert reason in found[1]
    assert len(found[1]) < 300


def test_json_that_is_nested_too_deeply_is_refused(broker: BrokerProcess) -> None:
    request = Request(broker.http + "/admin/v2/namespaces/public/default/retention", b"[" * 100_000, method="POST")
    request.add_header("Content-Type", "application/json")
    with pytest.raises(HTTPError) as failure:
        urlopen(request, timeout=30)
    assert failure.value.code == 400
    assert "the body is not JSON" in failure.value.read().decode()


def test_isolation_policies(broker: BrokerProcess) -> None:
    root = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
    policy = {"namespaces": ["public/nowhere"], "primary": ["other-host"], "secondary": []}
    assert broker.rest("GET", root) == {}
    broker.rest("POST", f"{root}/p", policy)
    assert broker.rest("GET", root) == {"p": policy}
    assert broker.rest("GET", f"{root}/p") == policy
    broker.rest("PUT", "/admin/v2/namespaces/public/nowhere")
    assert refused(broker, "PUT", "/admin/v2/persistent/public/nowhere/t")[0] == 503
    assert refused(broker, "POST", f"{root}/p", {"namespaces": ["("], "primary": ["x"]})[0] == 400
    broker.rest("DELETE", f"{root}/p")
    assert refused(broker, "DELETE", f"{root}/p")[0] == 404
    assert refused(broker, "GET", "/admin/v2/clusters/other/namespaceIsolationPolicies")[0] == 404
    broker.rest("PUT", "/admin/v2/persistent/public/nowhere/t")
    broker.rest("DELETE", "/admin/v2/namespaces/public/nowhere?force=true")


def test_a_whole_namespace_in_one_answer(broker: BrokerProcess) -> None:
    namespace, root = "public/whole", "/admin/quire/namespaces/public/whole"
    assert refused(broker, "GET", root) == (404, "Namespace does not exist")
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}")
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/parts/partitions", 2)
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/plain")
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/plain/subscription/s", "earliest")
    found = broker.rest("GET", root)
    assert found["partitioned"] == {"parts": 2}
    assert set(found["topics"]) == {"parts-partition-0", "parts-partition-1", "plain"}
    plain = found["topics"]["plain"]
    assert (plain["loaded"], plain["entries"], plain["cursors"]) == (True, 0, {"s": 0})
    assert plain["owner"] == found["broker"]
    assert (plain["producers"], found["topics"]["parts-partition-0"]["producers"]) == (0, None)
    assert found["bookies"] == {"writable": 1}
    assert found["topics"]["parts-partition-0"]["loaded"] is False
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/plain/unload")
    after = broker.rest("GET", root)["topics"]["plain"]
    assert (after["loaded"], after["cursors"]) == (False, {"s": None})


def test_plain_topics(broker: BrokerProcess) -> None:
    path = "/admin/v2/persistent/public/default/plain%2Ftopic"
    broker.rest("PUT", path)
    assert refused(broker, "PUT", path) == (409, "This topic already exists")
    assert refused(broker, "PUT", path + "/partitions", 2)[0] == 409
    assert broker.rest("GET", path + "/partitions") == {"partitions": 0, "deleted": False}
    stats = broker.rest("GET", path + "/stats")
    assert (stats["msgInCounter"], stats["publishers"], stats["subscriptions"]) == (0, [], {})
    internal = broker.rest("GET", path + "/internalStats?metadata=true")
    assert internal["state"] == "LedgerOpened"
    assert internal["numberOfEntries"] == 0
    assert broker.rest("GET", path + "/lastMessageId") == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    lookup = broker.rest("GET", "/lookup/v2/topic/persistent/public/default/plain%2Ftopic")
    assert lookup == {"brokerUrl": broker.url, "httpUrl": broker.http, "nativeUrl": broker.url, "brokerUrlSsl": ""}
    assert broker.rest("GET", "/lookup/v2/topic/persistent/public/default/a/bundle") == "0xe0000000_0xf0000000"
    broker.rest("PUT", path + "/unload")
    broker.rest("DELETE", path)
    assert refused(broker, "DELETE", path)[0] == 404
    assert refused(broker, "GET", path + "/stats")[0] == 404


def test_partitioned_topics(broker: BrokerProcess) -> None:
    path = "/admin/v2/persistent/public/default/parts"
    for wrong in (0, -1, 100_000, "three", None):
        assert refused(broker, "PUT", path + "/partitions", wrong)[0] == 412
    broker.rest("PUT", path + "/partitions", 2)
    assert refused(broker, "POST", path + "/partitions", 1)[0] == 409
    broker.rest("POST", path + "/partitions", 3)
    broker.rest("POST", path + "/createMissedPartitions")
    topics = broker.rest("GET", "/admin/v2/persistent/public/default")
    assert [name for name in topics if "parts" in name] == [
        f"persistent://public/default/parts-partition-{index}" for index in range(3)
    ]
    broker.rest("PUT", path + "/subscription/s", "latest")
    assert broker.rest("GET", path + "/subscriptions") == ["s"]
    stats = broker.rest("GET", path + "/partitioned-stats")
    assert stats["metadata"]["partitions"] == 3
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert refused(broker, "DELETE", path)[0] == 409
    assert refused(broker, "PUT", path, None)[0] == 409
    broker.rest("DELETE", path + "/partitions")
    assert refused(broker, "DELETE", path + "/partitions")[0] == 404


def test_what_is_not_served_says_so(broker: BrokerProcess) -> None:
    broker.rest("PUT", "/admin/v2/non-persistent/public/default/unstored")
    assert broker.rest("GET", "/admin/v2/non-persistent/public/default/unstored/internalStats")["ledgers"] == []
    for method, end in (("POST", "terminate"), ("POST", "createMissedPartitions")):
        assert refused(broker, method, f"/admin/v2/non-persistent/public/default/unstored/{end}")[0] == 412
    broker.rest("DELETE", "/admin/v2/non-persistent/public/default/unstored")
    assert broker.rest("GET", "/admin/v2/non-persistent/public/default") == []
    schema = "/admin/v2/schemas/public/default/t/schema"
    assert refused(broker, "GET", schema)[0] == 404
    assert refused(broker, "POST", schema, {})[0] == 422


def test_nonsense_is_the_clients_fault(broker: BrokerProcess) -> None:
    assert refused(broker, "PUT", "/admin/v2/namespaces/public/bad%20name")[0] == 412
    assert refused(broker, "GET", "/admin/quire/ledgers/999999")[0] == 404
    assert refused(broker, "GET", "/admin/quire/ledgers?limit=many")[0] == 400
    path = "/admin/v2/persistent/public/default/nonsense"
    broker.rest("PUT", path)
    assert refused(broker, "PUT", path + "/subscription/s", {"ledgerId": "x"})[0] == 412
    assert refused(broker, "POST", path + "/subscription/nobody/skip_all")[0] == 404


def test_ledgers_can_be_listed_and_read(broker: BrokerProcess) -> None:
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("persistent://public/default/read-me", batching_enabled=False)
    ids = [producer.send(f"text {number}".encode(), partition_key=f"k{number}") for number in range(5)]
    client.close()
    ledger = ids[0].ledger_id()
    page = broker.rest("GET", "/admin/quire/ledgers?limit=1000")
    assert page["next"] is None
    (found,) = [item for item in page["ledgers"] if item["ledgerId"] == ledger]
    assert found["custom"]["pulsar/managed-ledger"] == "public/default/persistent/read-me"
    first = broker.rest("GET", "/admin/quire/ledgers?limit=1")
    assert len(first["ledgers"]) == 1
    info = broker.rest("GET", f"/admin/quire/ledgers/{ledger}")
    assert (info["ensembleSize"], info["digestType"]) == (1, "CRC32C")
    entries = broker.rest("GET", f"/admin/quire/ledgers/{ledger}/entries?first=1&last=3")["entries"]
    assert [entry["entryId"] for entry in entries] == [1, 2, 3]
    payload = base64.b64decode(entries[0]["payload"])
    assert payload[entries[0]["message"]["payloadOffset"] :] == b"text 1"
    assert entries[0]["message"]["key"] == "k1"
    assert refused(broker, "GET", f"/admin/quire/ledgers/{ledger}/entries?first=77")[0] == 404
    topics = broker.rest("GET", "/admin/quire/topics")
    assert {"messagesIn": 5, "topic": "persistent://public/default/read-me"}.items() <= next(
        item for item in topics if item["topic"].endswith("read-me")
    ).items()
    assert broker.rest("GET", "/admin/quire/stats")["messages_in"] >= 5


def test_the_ledger_of_a_cursor_is_shown(broker: BrokerProcess) -> None:
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("persistent://public/default/saved", batching_enabled=False)
    path = "/admin/v2/persistent/public/default/saved"
    broker.rest("PUT", path + "/subscription/s", "latest")
    producer.send(b"text")
    client.close()

    def cursor() -> dict[str, Any]:
        found: dict[str, Any] = broker.rest("GET", path + "/internalStats")["cursors"]["s"]
        return found

    assert (cursor()["cursorLedger"], cursor()["cursorLedgerLastEntry"]) == (-1, -1), "in its node, as it is new"
    broker.rest("POST", path + "/subscription/s/skip_all")
    until(lambda: cursor()["cursorLedgerLastEntry"] >= 0, "the cursor is not saved")
    ledger = broker.rest("GET", f"/admin/quire/ledgers/{cursor()['cursorLedger']}")
    assert ledger["custom"]["pulsar/cursor"] == "s"


def test_the_rate_in_force_is_the_topics_or_the_namespaces_or_the_brokers(broker: BrokerProcess) -> None:
    namespace, topic = "/admin/v2/namespaces/public/rates2", "/admin/v2/persistent/public/rates2/t"
    broker.rest("PUT", namespace)
    broker.rest("PUT", topic)
    rate = {"dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}
    none = rate | {"dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0}
    slow, off = rate | {"dispatchThrottlingRateInMsg": 5}, rate | {"dispatchThrottlingRateInMsg": -1}
    for path in ("/dispatchRate", "/subscriptionDispatchRate", "/s/dispatchRate"):
        assert broker.rest("GET", topic + path) is None
        assert broker.rest("GET", topic + path + "?applied=true") == none
        broker.rest("POST", topic + path, off)
        assert broker.rest("GET", topic + path) == off
    for path in ("/dispatchRate", "/subscriptionDispatchRate"):
        broker.rest("POST", namespace + path, slow)
        assert broker.rest("GET", topic + path + "?applied=true") == slow
        broker.rest("DELETE", topic + path)
    assert broker.rest("GET", topic + "/s/dispatchRate?applied=true") == slow
    broker.rest("DELETE", topic + "/s/dispatchRate")
    assert broker.rest("GET", topic + "/s/dispatchRate") is None
    code, reason = refused(broker, "POST", topic + "/dispatchRate", slow | {"ratePeriodInSecond": 0})
    assert (code, "ratePeriodInSecond is 0" in reason) == (412, True)
    assert refused(broker, "POST", topic + "/" + "s" * 1100 + "/dispatchRate", slow)[0] == 412
    assert refused(broker, "POST", topic + "/s/dispatchRate", {"rate": 1})[0] == 412


def test_only_so_many_subscriptions_have_a_rate_of_their_own(broker: BrokerProcess) -> None:
    namespace, topic = "/admin/v2/namespaces/public/rates3", "/admin/v2/persistent/public/rates3/t"
    broker.rest("PUT", namespace)
    broker.rest("PUT", topic + "/partitions", 1)
    for number in range(SUBSCRIPTION_RATES_MAX):
        broker.rest("POST", f"{topic}/s{number}/dispatchRate", {"dispatchThrottlingRateInMsg": 5})
    broker.rest("POST", topic + "/s0/dispatchRate", {"dispatchThrottlingRateInMsg": 6})
    code, reason = refused(broker, "POST", topic + "/more/dispatchRate", {"dispatchThrottlingRateInMsg": 5})
    assert (code, "remove one first" in reason) == (412, True)


def test_policies_of_inactive_topics_are_checked(broker: BrokerProcess) -> None:
    namespace, topic = "/admin/v2/namespaces/public/inactive", "/admin/v2/persistent/public/inactive/t"
    broker.rest("PUT", namespace)
    broker.rest("PUT", topic)
    policy = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 3600}
    default = policy | {"maxInactiveDurationSeconds": 60, "deleteWhileInactive": False}
    for path in (namespace, topic):
        assert broker.rest("GET", path + "/inactiveTopicPolicies") is None
        for wrong in ({"inactiveTopicDeleteMode": "never"}, {"maxInactiveDurationSeconds": 0}):
            changed = policy | wrong | {"deleteWhileInactive": True}
            assert refused(broker, "POST", path + "/inactiveTopicPolicies", changed)[0] == 412
    assert broker.rest("GET", topic + "/inactiveTopicPolicies?applied=true") == default
    broker.rest("POST", namespace + "/inactiveTopicPolicies", policy | {"deleteWhileInactive": True})
    assert broker.rest("GET", topic + "/inactiveTopicPolicies?applied=true") == policy | {"deleteWhileInactive": True}
    broker.rest("DELETE", namespace + "/inactiveTopicPolicies")
    assert broker.rest("GET", namespace + "/inactiveTopicPolicies") is None
    broker.rest("POST", namespace + "/subscriptionExpirationTime", 5)
    assert broker.rest("GET", namespace + "/subscriptionExpirationTime") == 5
    assert refused(broker, "POST", namespace + "/subscriptionExpirationTime", -1)[0] == 412
    broker.rest("DELETE", namespace + "/subscriptionExpirationTime")
    assert broker.rest("GET", namespace + "/subscriptionExpirationTime") is None
