"""Names and patterns of a job, each topic once."""

from random import Random
from typing import cast

import pytest

from quire_bookie.client import LedgerClient
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.names import parse_topic
from quire_broker.offload.tier import Tier
from quire_jobs.errors import JobOptionsError, NotFoundError
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.subjects import Subjects, find_topics, wanted
from tests.sim.metadata import SimMetadata, SimMetadataStore

TOPICS = ("logs-a", "logs-b", "orders")


@pytest.fixture
async def cluster() -> Cluster:
    """A cluster with TOPICS in public/default, without ledger client and buckets."""
    store = SimMetadataStore(SimMetadata(Random(1), delay_s=(0.0, 0.0)))
    for topic in TOPICS:
        await store.put(node_path(parse_topic(topic).ledger_name), b"")
    return Cluster(store, cast(LedgerClient, None), cast(Tier, None), b"")


async def named(cluster: Cluster, *names: str) -> Subjects:
    """Return the topics of these names."""
    return await find_topics(cluster, wanted("etcd://e:2379", names))


def test_patterns_and_names_are_distinguished() -> None:
    asked = wanted("etcd://e:2379", ["orders", "public/default/logs-*"])
    assert [(each.topic, each.topics) for each in asked.values()] == [
        ("persistent://public/default/orders", ""),
        ("", "public/default/logs-*"),
    ]
    with pytest.raises(JobOptionsError, match="topics = 'logs-\\*': not tenant/namespace/pattern"):
        wanted("etcd://e:2379", ["logs-*"])


async def test_names_without_common_topics_are_unchanged(cluster: Cluster) -> None:
    found = await named(cluster, "public/default/logs-*", "orders")
    assert found.disjoint == ("public/default/logs-*", "orders")
    assert sorted(map(str, found.topics)) == [f"persistent://public/default/{topic}" for topic in TOPICS]


@pytest.mark.parametrize("second", ["logs-b", "public/default/*-b", "persistent://public/default/logs-b"])
async def test_a_name_that_a_larger_one_covers_is_left_out(cluster: Cluster, second: str) -> None:
    for names in (["public/default/logs-*", second], [second, "public/default/logs-*"]):
        found = await named(cluster, *names)
        assert found.disjoint == ("public/default/logs-*",)
        assert len(found.topics) == 2


async def test_of_a_name_and_a_pattern_with_the_same_topics_the_pattern_stays(cluster: Cluster) -> None:
    for names in (["public/default/ord*", "orders"], ["orders", "public/default/ord*"]):
        assert (await named(cluster, *names)).disjoint == ("public/default/ord*",)


async def test_of_two_overlapping_names_one_is_replaced_by_its_other_topics(cluster: Cluster) -> None:
    await cluster.metadata.put(node_path(parse_topic("b-side").ledger_name), b"")
    found = await named(cluster, "orders", "public/default/logs-*", "public/default/*b*")
    assert found.disjoint == ("public/default/logs-*", "persistent://public/default/b-side", "orders")
    assert len(found.topics) == 4


async def test_a_pattern_may_have_no_topic_and_a_name_must_have_one(cluster: Cluster) -> None:
    found = await named(cluster, "public/later/*", "orders")
    assert (found.disjoint, found.unmatched) == (("orders",), ("public/later/*",))
    with pytest.raises(NotFoundError, match="there is no topic persistent://public/default/missing"):
        await named(cluster, "public/default/logs-*", "missing")
