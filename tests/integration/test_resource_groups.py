"""Resource groups, affinity to bookies and offloading of topics at Pulsar's paths, under the stock Python client."""

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess

GROUPS = "/admin/v2/resourcegroups"
NAMESPACES = "/admin/v2/namespaces/public"
TOPICS = "/admin/v2/persistent/public"
SENT = 500


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("resource-groups"), bookies=2)
    yield process
    process.close()


def new_namespace(broker: BrokerProcess, name: str) -> str:
    broker.rest("PUT", f"{NAMESPACES}/{name}")
    return f"{NAMESPACES}/{name}"


def test_groups_are_created_changed_and_deleted(broker: BrokerProcess) -> None:
    rates = {"publishRateInMsgs": 100, "publishRateInBytes": 1000, "dispatchRateInMsgs": -1, "dispatchRateInBytes": -1}
    broker.rest("PUT", f"{GROUPS}/rg1", rates)
    unlimited = dict.fromkeys(
        ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes"), -1
    )
    assert broker.rest("GET", f"{GROUPS}/rg1") == unlimited | rates
    broker.rest("PUT", f"{GROUPS}/rg1", {"publishRateInMsgs": 200, "dispatchRateInMsgs": None})
    assert broker.rest("GET", f"{GROUPS}/rg1") == {**unlimited, **rates, "publishRateInMsgs": 200}
    assert "rg1" in broker.rest("GET", GROUPS)
    code, reason = broker.refused("PUT", f"{GROUPS}/rg1", {"publishRateInMsgs": "many"})
    assert code == 412 and "publishRateInMsgs" in reason
    code, reason = broker.refused("PUT", f"{GROUPS}/rg1", {"dispatchRateInBytes": -2})
    assert code == 412 and "dispatchRateInBytes is an integer from -1" in reason
    assert broker.refused("PUT", f"{GROUPS}/a%20b", rates)[0] == 412
    broker.rest("DELETE", f"{GROUPS}/rg1")
    assert broker.refused("GET", f"{GROUPS}/rg1") == (404, "ResourceGroup does not exist")
    assert broker.refused("DELETE", f"{GROUPS}/rg1")[0] == 404


def test_a_group_with_a_namespace_is_not_deleted(broker: BrokerProcess) -> None:
    space = new_namespace(broker, "member")
    assert broker.rest("GET", f"{space}/resourcegroup") is None
    assert broker.refused("POST", f"{space}/resourcegroup/none")[0] == 404
    broker.rest("PUT", f"{GROUPS}/rg2", {"publishRateInMsgs": 100})
    broker.rest("POST", f"{space}/resourcegroup/rg2")
    assert broker.rest("GET", f"{space}/resourcegroup") == "rg2"
    code, reason = broker.refused("DELETE", f"{GROUPS}/rg2")
    assert code == 412 and "public/member" in reason
    broker.rest("DELETE", f"{space}/resourcegroup")
    assert broker.rest("GET", f"{space}/resourcegroup") is None
    broker.rest("DELETE", f"{GROUPS}/rg2")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_topics_of_two_namespaces_publish_within_the_rate_of_their_group(broker: BrokerProcess, domain: str) -> None:
    names = [f"one-{domain}", f"two-{domain}"]
    broker.rest("PUT", f"{GROUPS}/{domain}", {"publishRateInMsgs": 2})
    for name in names:
        broker.rest("POST", f"{new_namespace(broker, name)}/resourcegroup/{domain}")
    client = pulsar.Client(broker.url, operation_timeout_seconds=60)
    topics = [f"{domain}://public/{name}/t" for name in names]
    producers = [client.create_producer(topic, batching_enabled=False, send_timeout_millis=0) for topic in topics]
    failures: list[Any] = []

    def sent(result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    for producer in producers:
        for number in range(SENT):
            producer.send_async(b"%d" % number, sent)

    def stored() -> int:
        found = (broker.rest("GET", f"/admin/v2/{domain}/public/{name}/t/stats") for name in names)
        return sum(each["msgInCounter"] for each in found)

    assert stored() < SENT, "two messages in a second would take minutes"
    broker.rest("PUT", f"{GROUPS}/{domain}", {"publishRateInMsgs": -1})
    for producer in producers:
        producer.flush()
    assert stored() == 2 * SENT and not failures
    client.close()


def test_topics_of_a_group_deliver_within_its_rate(broker: BrokerProcess) -> None:
    space = new_namespace(broker, "delivered")
    broker.rest("PUT", f"{GROUPS}/slow", {"dispatchRateInMsgs": 2})
    broker.rest("POST", f"{space}/resourcegroup/slow")
    client = pulsar.Client(broker.url, operation_timeout_seconds=60)
    topic = "persistent://public/delivered/t"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5 * SENT)
    producer = client.create_producer(topic, batching_enabled=False)
    delivered = sent = 0
    while delivered == sent and sent < 4 * SENT:  # the group limits a moment after its first topic is loaded
        for number in range(SENT):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        sent += SENT
        delivered = broker.rest("GET", f"{TOPICS}/delivered/t/stats")["subscriptions"]["s"]["msgOutCounter"]
    assert delivered < sent
    broker.rest("DELETE", f"{space}/resourcegroup")
    for _ in range(sent):
        consumer.receive(60_000)
    client.close()


def test_ledgers_of_a_namespace_are_on_bookies_of_its_groups(broker: BrokerProcess) -> None:
    chosen, other = (one["bookieId"] for one in broker.rest("GET", "/admin/v2/bookies/all")["bookies"])
    for bookie, group in ((chosen, "fast"), (other, "slow")):
        broker.rest("POST", f"/admin/v2/bookies/racks-info/{bookie}?group={group}", {"rack": f"/{group}"})
    space = new_namespace(broker, "placed")
    quorums = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}
    broker.rest("POST", f"{space}/persistence", quorums)
    path = f"{space}/persistence/bookieAffinity"
    assert broker.rest("GET", path) is None
    groups = {"bookkeeperAffinityGroupPrimary": "fast", "bookkeeperAffinityGroupSecondary": None}
    broker.rest("POST", path, groups)
    assert broker.rest("GET", path) == groups
    assert broker.refused("POST", path, {"bookkeeperAffinityGroupPrimary": ""})[0] == 412
    client = pulsar.Client(broker.url, operation_timeout_seconds=60)
    for number in range(8):
        name = f"t{number}"
        producer = client.create_producer(f"persistent://public/placed/{name}")
        producer.send(b"m")
        (ledger,) = broker.rest("GET", f"{TOPICS}/placed/{name}/internalStats")["ledgers"]
        found = broker.rest("GET", f"/admin/quire/ledgers/{ledger['ledgerId']}")
        assert {bookie for segment in found["segments"] for bookie in segment["ensemble"]} == {chosen}
    client.close()
    broker.rest("DELETE", path)
    assert broker.rest("GET", path) is None


def test_a_topic_has_offload_policies_of_its_own(broker: BrokerProcess) -> None:
    space = new_namespace(broker, "offloaded")
    broker.rest("PUT", f"{TOPICS}/offloaded/t")
    path = f"{TOPICS}/offloaded/t/offloadPolicies"
    of_all = {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "all"}
    broker.rest("POST", f"{space}/offloadPolicies", of_all)
    assert broker.rest("GET", path) is None
    own = {**of_all, "managedLedgerOffloadBucket": "own", "managedLedgerOffloadThresholdInBytes": 100}
    broker.rest("POST", path, own)
    assert broker.rest("GET", path) == own
    assert broker.rest("GET", f"{path}?applied=true")["managedLedgerOffloadBucket"] == "own"
    code, reason = broker.refused("POST", path, {**own, "s3ManagedLedgerOffloadCredentialSecret": "x"})
    assert code == 412 and "policies hold no credentials" in reason
    assert broker.refused("POST", path, {"managedLedgerOffloadDriver": "tape"})[0] == 412
    broker.rest("DELETE", path)
    assert broker.rest("GET", path) is None
    assert broker.rest("GET", f"{path}?applied=true") == of_all


def test_a_pause_of_delivery_is_set_without_a_body(broker: BrokerProcess) -> None:
    space = new_namespace(broker, "paused")
    broker.rest("PUT", f"{TOPICS}/paused/t")
    for path, unset in ((space, False), (f"{TOPICS}/paused/t", None)):
        name = f"{path}/dispatcherPauseOnAckStatePersistent"
        assert broker.rest("GET", name) is unset
        broker.rest("POST", name)
        assert broker.rest("GET", name) is True
        broker.rest("DELETE", name)
        assert broker.rest("GET", name) is unset


def test_resource_quotas_are_kept_for_all_and_for_single_bundles(broker: BrokerProcess) -> None:
    space, root = new_namespace(broker, "quotas"), "/admin/v2/resource-quotas"
    first = broker.rest("GET", f"{space}/bundles")["boundaries"][:2]
    bundle = f"{root}/public/quotas/{'_'.join(first)}"
    assert broker.rest("GET", root)["msgRateIn"] == 40.0
    quota = {
        "msgRateIn": 10.0,
        "msgRateOut": 20.0,
        "bandwidthIn": 1e3,
        "bandwidthOut": 2e3,
        "memory": 1,
        "dynamic": True,
    }
    broker.rest("POST", root, quota)
    assert broker.rest("GET", root) == broker.rest("GET", bundle) == quota
    broker.rest("POST", bundle, {**quota, "msgRateIn": 99.0})
    assert broker.rest("GET", bundle)["msgRateIn"] == 99.0
    broker.rest("DELETE", bundle)
    assert broker.rest("GET", bundle) == quota
    code, reason = broker.refused("POST", root, {"msgRateIn": -5})
    assert code == 412 and "msgRateIn is a number from 0" in reason
    assert broker.refused("GET", f"{root}/public/quotas/0x00000000_0x00000001")[0] == 404
