"""What stock admin tools ask of a broker with messages: single messages, properties, flags, refusals."""

import itertools
import json
import re
from typing import Any
from urllib.request import urlopen

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.compat.conftest import path_of  # noqa: E402  after the check that there is a client
from tests.support.broker_process import BrokerProcess  # noqa: E402
from tests.support.polling import until  # noqa: E402

pytestmark = pytest.mark.compat
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/r{next(_names)}"


def message(broker: BrokerProcess, path: str) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a message."""
    with urlopen(broker.http + path) as response:
        return response.read(), dict(response.headers)


def publish(client: Any, topic: str, count: int = 3, **options: Any) -> list[Any]:
    """Publish `0`, `1`, ... in entries of their own, and return the ids."""
    producer = client.create_producer(topic, batching_enabled=False, **options)
    return [producer.send(str(number).encode(), properties={"n": str(number)}) for number in range(count)]


def test_messages_are_shown_by_position_and_by_id(broker: BrokerProcess, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = publish(client, topic, compression_type=pulsar.CompressionType.ZLib)
    consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    consumer.close()
    body, headers = message(broker, path_of(topic, "/subscription/s/position/2"))
    assert (body, json.loads(headers["X-Pulsar-PROPERTY"])) == (b"2", {"n": "2"})
    assert headers["X-Pulsar-Message-ID"] == f"{ids[2].ledger_id()}:{ids[2].entry_id()}"
    assert broker.refused("GET", path_of(topic, "/subscription/s/position/3")) == (404, "Message not found")
    assert broker.refused("GET", path_of(topic, "/subscription/none/position/1"))[0] == 404
    assert message(broker, path_of(topic, "/examinemessage?initialPosition=earliest&messagePosition=1"))[0] == b"0"
    assert message(broker, path_of(topic, "/examinemessage?initialPosition=latest&messagePosition=1"))[0] == b"2"
    ledger = ids[1].ledger_id()
    assert message(broker, path_of(topic, f"/ledger/{ledger}/entry/1"))[0] == b"1"
    assert broker.refused("GET", path_of(topic, f"/ledger/{ledger}/entry/3")) == (404, "Message id not found")
    assert broker.refused("GET", path_of(topic, f"/ledger/{ledger + 99}/entry/0")) == (404, "Message id not found")
    assert broker.rest("GET", path_of(topic, "/messageid/0"))["entryId"] == 0
    assert broker.rest("GET", path_of(topic, "/messageid/99999999999999"))["entryId"] == 2


def test_a_batch_is_sent_whole(broker: BrokerProcess, client: Any, topic: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(4):
        producer.send_async(str(number).encode(), lambda result, sent: None)
    producer.flush()
    _, headers = message(broker, path_of(topic, "/subscription/s/position/1"))
    assert headers["X-Pulsar-num-batch-message"] == "4"
    found = broker.rest("POST", path_of(topic, "/subscription/s/analyzeBacklog"))
    assert (found["entries"], found["messages"], found["aborted"]) == (1, 4, False)


def test_a_backlog_is_analyzed_and_a_topic_trimmed(broker: BrokerProcess, client: Any, topic: str) -> None:
    client.subscribe(topic, "s").close()
    ids = publish(client, topic)
    assert broker.rest("POST", path_of(topic, "/subscription/s/analyzeBacklog"))["entries"] == 3
    whole = broker.rest("PUT", path_of(topic, "/backlogSize"), {"ledgerId": -1, "entryId": -1})
    rest = broker.rest("PUT", path_of(topic, "/backlogSize"), {"ledgerId": ids[0].ledger_id(), "entryId": 0})
    assert whole > rest > 0
    broker.rest("POST", path_of(topic, "/subscription/s/skip/2"))
    found = broker.rest("POST", path_of(topic, "/subscription/s/analyzeBacklog"))
    assert (found["entries"], found["firstMessageId"]) == (1, f"{ids[2].ledger_id()}:2")
    broker.rest("POST", path_of(topic, "/subscription/s/skip_all"))
    broker.rest("PUT", path_of(topic, "/unload"))
    broker.rest("POST", path_of(topic, "/trim"))
    assert ids[0].ledger_id() not in [
        each["ledgerId"] for each in broker.rest("GET", path_of(topic, "/internalStats"))["ledgers"]
    ]


def test_stats_have_true_figures_of_stocks_types(broker: BrokerProcess, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    ids = publish(client, topic, 4)
    messages = [consumer.receive(timeout_millis=30_000) for _ in range(4)]
    for number in (1, 2):
        consumer.acknowledge(messages[number])
    ledger = ids[0].ledger_id()

    def acknowledged() -> bool:
        return bool(broker.rest("GET", path_of(topic, "/stats"))["subscriptions"]["s"]["msgBacklog"] == 2)

    assert until(acknowledged)
    stats = broker.rest("GET", path_of(topic, "/stats"))
    subscription = stats["subscriptions"]["s"]
    for connected in (*stats["publishers"], *subscription["consumers"]):
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", connected["connectedSince"])
    assert subscription["nonContiguousDeletedMessagesRanges"] == 1
    assert subscription["totalMsgExpired"] == 0
    internals = broker.rest("GET", path_of(topic, "/internalStats"))
    cursor = internals["cursors"]["s"]
    assert cursor["individuallyDeletedMessages"] == f"[({ledger}:0..{ledger}:2]]"
    assert (cursor["active"], cursor["totalNonContiguousDeletedMessagesRange"]) == (True, 1)
    assert cursor["lastLedgerSwitchTimestamp"] >= internals["lastLedgerCreatedTimestamp"][:10]
    consumer.close()
    broker.rest("POST", path_of(topic, "/subscription/s/expireMessages/0"))
    found = broker.rest("GET", path_of(topic, "/stats"))["subscriptions"]["s"]
    assert found["totalMsgExpired"] == 2
    assert found["lastExpireTimestamp"] > 1_700_000_000_000


def test_partitions_that_were_not_used_have_an_empty_ledger_in_internal_stats(
    broker: BrokerProcess, topic: str
) -> None:
    broker.rest("PUT", path_of(topic, "/partitions"), {"partitions": 2, "properties": {"k": "v"}})
    found = broker.rest("GET", path_of(topic, "/partitioned-internalStats"))
    assert found["metadata"] == {"partitions": 2, "deleted": False, "properties": {"k": "v"}}
    assert len(found["partitions"]) == 2
    for one in found["partitions"].values():
        [ledger] = one["ledgers"]
        assert one["lastConfirmedEntry"] == f"{ledger['ledgerId']}:-1" and ledger["entries"] == 0
        assert (one["state"], one["numberOfEntries"]) == ("LedgerOpened", 0) and one["lastLedgerCreatedTimestamp"]
    assert broker.rest("GET", path_of(topic, "/partitioned-stats"))["metadata"]["properties"] == {"k": "v"}


def test_the_metadata_store_has_one_url_for_all_that_tools_ask_for(broker: BrokerProcess) -> None:
    found = broker.rest("GET", "/admin/v2/brokers/internal-configuration")
    names = ("zookeeperServers", "configurationStoreServers", "metadataStoreUrl", "configurationMetadataStoreUrl")
    assert {found[name] for name in names} == {found["metadataStoreUrl"]}
    assert found["metadataStoreUrl"].startswith("local:/") and found["ledgersRootPath"] == "/ledgers"


@pytest.mark.parametrize("partitions", [0, 2])
def test_properties_of_a_topic_are_kept(broker: BrokerProcess, topic: str, partitions: int) -> None:
    if partitions:
        broker.rest("PUT", path_of(topic, "/partitions"), {"partitions": 2, "properties": {"a": "1"}})
        assert broker.rest("GET", path_of(topic, "/partitions"))["properties"] == {"a": "1"}
    else:
        broker.rest("PUT", path_of(topic), {"a": "1"})
    broker.rest("PUT", path_of(topic, "/properties"), {"b": "2"})
    assert broker.rest("GET", path_of(topic, "/properties")) == {"a": "1", "b": "2"}
    if not partitions:
        broker.rest("PUT", path_of(topic, "/unload"))
    broker.rest("DELETE", path_of(topic, "/properties?key=a"))
    assert broker.rest("GET", path_of(topic, "/properties")) == {"b": "2"}
    assert broker.refused("PUT", path_of(topic, "/properties"), {"quire.x": "1"})[0] == 412
    assert broker.refused("PUT", path_of(topic, "/properties"), {"x": 1})[0] == 412
    assert broker.refused("PUT", path_of(topic, "/properties"), {"x": "1" * 70_000})[0] == 412


def test_properties_and_the_replicated_flag_of_a_subscription_are_kept(
    broker: BrokerProcess, client: Any, topic: str
) -> None:
    client.create_producer(topic)
    body = {"ledgerId": -1, "entryId": -1, "properties": {"a": "1"}}
    broker.rest("PUT", path_of(topic, "/subscription/s?replicated=true"), body)
    one = path_of(topic, "/subscription/s")
    assert broker.rest("GET", f"{one}/properties") == {"a": "1"}
    broker.rest("PUT", f"{one}/properties", {"b": "2"})
    broker.rest("POST", f"{one}/resetcursor", {"ledgerId": -1, "entryId": -1})
    broker.rest("PUT", path_of(topic, "/unload"))
    assert broker.rest("GET", f"{one}/properties") == {"b": "2"}
    assert broker.rest("GET", f"{one}/replicatedSubscriptionStatus") == {topic: True}
    assert broker.rest("GET", path_of(topic, "/stats"))["subscriptions"]["s"]["isReplicated"] is True
    broker.rest("POST", f"{one}/replicatedSubscriptionStatus", False)
    assert broker.rest("GET", f"{one}/replicatedSubscriptionStatus") == {topic: False}
    client.subscribe(topic, "s", replicate_subscription_state_enabled=True)
    assert broker.rest("GET", f"{one}/replicatedSubscriptionStatus") == {topic: True}


def test_quotas_are_accepted_as_texts(broker: BrokerProcess) -> None:
    broker.rest("PUT", "/admin/v2/namespaces/public/quoted")
    path = "/admin/v2/namespaces/public/quoted"
    broker.rest("POST", f"{path}/backlogQuota", {"limit": "10240", "limitTime": "-1", "policy": "producer_exception"})
    stored = broker.rest("GET", f"{path}/backlogQuotaMap")["destination_storage"]
    assert (stored["limitSize"], stored["limitTime"]) == (10240, -1)
    assert broker.refused("POST", f"{path}/backlogQuota", {"limit": "10K", "policy": "producer_exception"})[0] == 412


def test_settings_in_force_are_shown_and_some_are_changed(broker: BrokerProcess, client: Any, topic: str) -> None:
    root = "/admin/v2/brokers/configuration"
    shown = broker.rest("GET", f"{root}/runtime")
    assert (shown["clusterName"], shown["maxUnackedMessagesPerConsumer"]) == ("standalone", "50000")
    code, reason = broker.refused("POST", f"{root}/maxUnackedMessagesPerConsumer/7")
    assert (code, "restart it" in reason) == (412, True)
    assert "integer from 0" in broker.refused("POST", f"{root}/maxPublishRatePerTopicInMessages/many")[1]
    assert "maxPublishRatePerTopicInMessages" in broker.rest("GET", root)
    publish(client, topic, 1)
    broker.rest("POST", f"{root}/maxPublishRatePerTopicInMessages/5")
    assert broker.rest("GET", f"{root}/values") == {"maxPublishRatePerTopicInMessages": "5"}
    assert broker.rest("GET", f"{root}/runtime")["maxPublishRatePerTopicInMessages"] == "5"
    publish(client, topic, 20)
    assert broker.rest("GET", path_of(topic, "/stats"))["publishRateLimitedTimes"] > 0
    broker.rest("DELETE", f"{root}/maxPublishRatePerTopicInMessages")
    assert broker.rest("GET", f"{root}/values") == {}
    assert broker.rest("GET", f"{root}/runtime")["maxPublishRatePerTopicInMessages"] == "0"
