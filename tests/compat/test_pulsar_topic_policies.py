"""Policies of topics and namespaces with the stock Python client: each that is stored is enforced, on loaded topics."""

import itertools
import json
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.error import HTTPError

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

pulsar = pytest.importorskip("pulsar")

from tests.support.broker_process import BrokerProcess  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def namespace(broker: BrokerProcess) -> str:
    name = f"p{next(_names)}"
    broker.rest("PUT", f"/admin/v2/namespaces/public/{name}")
    return name


@pytest.fixture(params=["plain", "partition"])
def topic(broker: BrokerProcess, namespace: str, request: pytest.FixtureRequest) -> str:
    """A topic that clients use: a plain one, or the only partition of a partitioned one."""
    name = f"persistent://public/{namespace}/t"
    if request.param == "plain":
        broker.rest("PUT", f"/admin/v2/persistent/public/{namespace}/t")
        return name
    broker.rest("PUT", f"/admin/v2/persistent/public/{namespace}/t/partitions", 1)
    return f"{name}-partition-0"


class Policies:
    """Sets a policy on a topic, through its partitioned topic if it has one, or on its namespace."""

    def __init__(self, broker: BrokerProcess, topic: str, *, of_topic: bool) -> None:
        _, namespace, local = topic.removeprefix("persistent://").split("/")
        self.broker = broker
        self.path = f"/admin/v2/namespaces/public/{namespace}"
        if of_topic:
            self.path = f"/admin/v2/persistent/public/{namespace}/{local.removesuffix('-partition-0')}"

    def set(self, policy: str, value: Any) -> None:
        self.broker.rest("POST", f"{self.path}/{policy}", value)
        assert self.broker.rest("GET", f"{self.path}/{policy}") == value

    def remove(self, policy: str) -> None:
        self.broker.rest("DELETE", f"{self.path}/{policy}")
        assert self.broker.rest("GET", f"{self.path}/{policy}") is None


@pytest.fixture(params=["topic", "namespace"])
def policies(broker: BrokerProcess, topic: str, request: pytest.FixtureRequest) -> Policies:
    return Policies(broker, topic, of_topic=request.param == "topic")


def refused(do: Any) -> None:
    with pytest.raises(pulsar.PulsarException):
        do()


def test_producers_are_limited(client: Any, topic: str, policies: Policies) -> None:
    policy = "maxProducers" if "persistent" in policies.path else "maxProducersPerTopic"
    one = client.create_producer(topic)
    policies.set(policy, 2)
    client.create_producer(topic)
    refused(lambda: client.create_producer(topic))
    one.close()
    client.create_producer(topic)
    policies.remove(policy)
    client.create_producer(topic)


def test_consumers_are_limited(client: Any, topic: str, policies: Policies) -> None:
    of_topic = "persistent" in policies.path
    shared = {"consumer_type": pulsar.ConsumerType.Shared}
    policies.set("maxConsumersPerSubscription", 1)
    client.subscribe(topic, "a", **shared)
    refused(lambda: client.subscribe(topic, "a", **shared))
    client.subscribe(topic, "b", **shared)
    policy = "maxConsumers" if of_topic else "maxConsumersPerTopic"
    policies.set(policy, 2)
    refused(lambda: client.subscribe(topic, "c", **shared))
    policies.remove(policy)
    client.subscribe(topic, "c", **shared)


def test_subscriptions_are_limited_and_not_created(
    broker: BrokerProcess, client: Any, topic: str, policies: Policies
) -> None:
    client.subscribe(topic, "a").close()
    policies.set("maxSubscriptionsPerTopic", 1)
    refused(lambda: client.subscribe(topic, "b"))
    path = f"/admin/v2/{topic.replace('://', '/')}/subscription"
    with pytest.raises(HTTPError) as failure:
        broker.rest("PUT", f"{path}/b")
    assert failure.value.code == 412
    client.subscribe(topic, "a").close()
    policies.remove("maxSubscriptionsPerTopic")
    policies.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    hasty = pulsar.Client(broker.url, operation_timeout_seconds=3)  # clients ask again until it ends
    refused(lambda: hasty.subscribe(topic, "b"))
    hasty.close()
    broker.rest("PUT", f"{path}/b")
    client.subscribe(topic, "b").close()


def test_only_enabled_types_of_subscriptions_are_served(client: Any, topic: str, policies: Policies) -> None:
    policies.set("subscriptionTypesEnabled", ["Shared"])
    refused(lambda: client.subscribe(topic, "a", consumer_type=pulsar.ConsumerType.Failover))
    client.subscribe(topic, "a", consumer_type=pulsar.ConsumerType.Shared)


def test_unacknowledged_messages_are_limited(client: Any, topic: str, policies: Policies) -> None:
    of_topic = "persistent" in policies.path
    consumer = client.subscribe(topic, "a", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    policies.set("maxUnackedMessagesOnConsumer" if of_topic else "maxUnackedMessagesPerConsumer", 1)
    for number in range(3):
        producer.send(str(number).encode())
    first = consumer.receive(timeout_millis=RECEIVE_MS)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)
    consumer.acknowledge(first)
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"1"


def test_delays_are_turned_off(client: Any, topic: str, policies: Policies) -> None:
    consumer = client.subscribe(topic, "a", consumer_type=pulsar.ConsumerType.Shared)
    policies.set("delayedDelivery", {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0})
    client.create_producer(topic).send(b"x", deliver_at=9_999_999_999_999)
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"x"


def test_duplicates_are_dropped(broker: BrokerProcess, client: Any, topic: str, policies: Policies) -> None:
    policy = "deduplicationEnabled" if "persistent" in policies.path else "deduplication"
    consumer = client.subscribe(topic, "a")
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    policies.set(policy, True)
    for sequence_id in (1, 1, 2):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    assert [consumer.receive(timeout_millis=RECEIVE_MS).data() for _ in range(2)] == [b"1", b"2"]


def test_ledgers_are_kept_by_retention(broker: BrokerProcess, client: Any, topic: str, policies: Policies) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}"
    client.subscribe(topic, "a").close()
    sent = client.create_producer(topic).send(b"x")
    policies.set("retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100})

    def kept() -> bool:
        return sent.ledger_id() in [each["ledgerId"] for each in broker.rest("GET", f"{path}/internalStats")["ledgers"]]

    broker.rest("POST", f"{path}/subscription/a/skip_all")
    broker.rest("PUT", f"{path}/unload")
    broker.rest("POST", f"{path}/trim")
    assert kept()
    policies.remove("retention")
    until(lambda: broker.rest("POST", f"{path}/trim") is None and not kept())


def test_the_quota_of_a_topic_refuses_producers(broker: BrokerProcess, client: Any, topic: str) -> None:
    policies = Policies(broker, topic, of_topic=True)
    client.subscribe(topic, "a").close()
    client.create_producer(topic).send(b"x" * 2000)
    body = {"limit": "1000", "policy": "producer_exception"}
    broker.rest("POST", f"{policies.path}/backlogQuota", body)
    assert broker.rest("GET", f"{policies.path}/backlogQuotaMap")["destination_storage"]["limitSize"] == 1000
    refused(lambda: client.create_producer(topic))
    broker.rest("DELETE", f"{policies.path}/backlogQuota")
    client.create_producer(topic)


def test_a_topic_goes_before_its_namespace_and_all_of_its_policies_are_removed(
    broker: BrokerProcess, client: Any, topic: str
) -> None:
    own, common = Policies(broker, topic, of_topic=True), Policies(broker, topic, of_topic=False)
    common.set("maxProducersPerTopic", 1)
    own.set("maxProducers", 2)
    client.create_producer(topic)
    client.create_producer(topic)
    assert broker.rest("GET", f"{own.path}/maxProducers?applied=true") == 2
    broker.rest("POST", f"{own.path}/messageTTL?messageTTL=60")
    assert broker.rest("GET", f"{own.path}/messageTTL") == 60
    broker.rest("DELETE", f"{own.path}/policies")
    assert broker.rest("GET", f"{own.path}/messageTTL") is None
    assert broker.rest("GET", f"{own.path}/maxProducers?applied=true") == 1
    refused(lambda: client.create_producer(topic))


def test_topics_of_a_namespace_are_limited(broker: BrokerProcess, client: Any, namespace: str) -> None:
    broker.rest("POST", f"/admin/v2/namespaces/public/{namespace}/maxTopicsPerNamespace", 1)
    client.create_producer(f"persistent://public/{namespace}/one")
    refused(lambda: client.create_producer(f"persistent://public/{namespace}/two"))
    client.create_producer(f"persistent://public/{namespace}/one")


def test_a_compaction_threshold_is_a_number_of_bytes(policies: Policies) -> None:
    policies.set("compactionThreshold", 10 << 20)
    with pytest.raises(HTTPError) as failure:
        policies.set("compactionThreshold", -1)
    assert failure.value.code == 412
    policies.remove("compactionThreshold")


@pytest.mark.parametrize("policy", ["replicatorDispatchRate"])
def test_what_is_not_enforced_is_refused_with_the_reason(
    broker: BrokerProcess, topic: str, policies: Policies, policy: str
) -> None:
    with pytest.raises(HTTPError) as failure:
        broker.rest("POST", f"{policies.path}/{policy}", {"a": 1})
    assert failure.value.code == 501
    assert f"{policy} is not supported by this broker: " in json.loads(failure.value.read())["reason"]
    assert broker.rest("GET", f"{policies.path}/{policy}") is None


def test_publishing_waits_for_its_rate(broker: BrokerProcess, client: Any, topic: str, policies: Policies) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    policies.set("publishRate", {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 1})
    answers: Queue[Any] = Queue()
    producer.send(bytes(1000))
    producer.send_async(b"x", lambda result, message_id: answers.put(result))
    path = f"/admin/v2/{topic.replace('://', '/')}/stats"
    assert broker.rest("GET", path)["publishRateLimitedTimes"] == 1
    assert broker.rest("GET", path)["msgInCounter"] == 1
    assert answers.empty()
    policies.remove("publishRate")
    assert answers.get(timeout=RECEIVE_MS / 1000) == pulsar.Result.Ok


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.KeyShared])
def test_delivery_waits_for_its_rate(client: Any, topic: str, policies: Policies, policy: str, kind: Any) -> None:
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1}
    policies.set(policy, {**rate, "relativeToPublishRate": False, "ratePeriodInSecond": 1_000_000})
    producer = client.create_producer(topic, batching_enabled=False)
    consumer = client.subscribe(topic, "a", consumer_type=kind)
    for number in range(3):
        producer.send(str(number).encode())
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"0"
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)
    policies.remove(policy)
    assert [consumer.receive(timeout_millis=RECEIVE_MS).data() for _ in range(2)] == [b"1", b"2"]


def test_a_subscription_has_a_rate_of_its_own(broker: BrokerProcess, client: Any, topic: str) -> None:
    policies = Policies(broker, topic, of_topic=True)
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1}
    policies.set("slow/dispatchRate", {**rate, "relativeToPublishRate": False, "ratePeriodInSecond": 1_000_000})
    slow, fast = client.subscribe(topic, "slow"), client.subscribe(topic, "fast")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(3):
        producer.send(str(number).encode())
    assert [fast.receive(timeout_millis=RECEIVE_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]
    assert slow.receive(timeout_millis=RECEIVE_MS).data() == b"0"
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")["subscriptions"]
    throttled = "dispatchThrottledMsgEventsBySubscriptionLimit"
    assert (stats["slow"][throttled] > 0, stats["fast"][throttled]) == (True, 0)
    policies.remove("slow/dispatchRate")
    assert [slow.receive(timeout_millis=RECEIVE_MS).data() for _ in range(2)] == [b"1", b"2"]


def test_a_consumer_subscribes_no_more_often_than_its_rate(
    broker: BrokerProcess, topic: str, policies: Policies
) -> None:
    policies.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 1_000_000})

    def subscribe() -> None:
        one = pulsar.Client(broker.url, operation_timeout_seconds=3)
        try:
            one.subscribe(topic, "a", consumer_name="same")
        finally:
            one.close()

    subscribe()
    refused(subscribe)
    policies.remove("subscribeRate")
    subscribe()


def test_only_encrypted_messages_are_taken_when_the_namespace_requires_it(
    broker: BrokerProcess, client: Any, topic: str, tmp_path: Path
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    reader = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    plain = client.create_producer(topic, batching_enabled=False, send_timeout_millis=2000)
    plain.send(b"open")
    Policies(broker, topic, of_topic=False).set("encryptionRequired", True)
    refused(lambda: plain.send(b"refused"))
    refused(lambda: client.create_producer(topic))
    client.create_producer(topic, encryption_key="one", crypto_key_reader=reader).send(b"secret")
    assert [consumer.receive(timeout_millis=RECEIVE_MS).data() for _ in range(2)] == [b"open", b"secret"]
