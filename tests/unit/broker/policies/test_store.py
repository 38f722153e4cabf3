"""Clusters, tenants, namespaces and partitioned topics: Pulsar's JSON, and the outcome of races."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.errors import MetadataFormatError, MetadataUnavailableError
from quire_broker.errors import ConflictError, NotAllowedError, NotFoundError
from quire_broker.limits import NAMESPACE_BUNDLES_MAX
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.ownership.initialise import initialise_cluster
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.policies import store as store_module
from quire_broker.policies.bundles import Bundles
from quire_broker.policies.store import ANTI_AFFINITY, PolicyStore, encode_json
from tests.sim.metadata import SimMetadata, SimMetadataStore

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "etcd" / "pulsar-broker.txt"
NAMESPACE = NamespaceName("public", "default")


def golden(key: str) -> bytes:
    lines = GOLDEN.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"KEY {key} "))
    return lines[start + 1].removeprefix("  TEXT: ").encode()


def make() -> tuple[SimMetadata, SimMetadataStore, PolicyStore]:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    session = SimMetadataStore(server)
    return server, session, PolicyStore(session, "c1")


@pytest.mark.parametrize(
    "key",
    [
        "/admin/clusters/c1",
        "/admin/clusters/global",
        "/admin/policies/public",
        "/admin/policies/public/default",
        "/admin/policies/pulsar/system",
        "/admin/local-policies/public/default",
    ],
)
async def test_a_new_cluster_has_the_nodes_of_a_stock_one_byte_for_byte(key: str) -> None:
    server, _, store = make()
    await initialise_cluster(store, BrokerUrls("pulsar://127.0.0.1:6655", "http://127.0.0.1:8085"))
    await store.bundles(NAMESPACE)
    assert server.nodes[key].value == golden(key)


async def test_an_existing_cluster_is_not_changed() -> None:
    server, session, store = make()
    await session.put("/admin/clusters/c1", b"{}")
    await session.put("/admin/policies/public", encode_json({"allowedClusters": ["c1"]}))
    await session.put("/admin/policies/public/default", encode_json({"bundles": Bundles.even(2).to_json()}))
    before = {key: node.value for key, node in server.nodes.items()}
    await initialise_cluster(store, BrokerUrls("pulsar://h:2", "http://h:1"))
    assert {key: server.nodes[key].value for key in before} == before
    assert "/admin/clusters/global" not in server.nodes


@pytest.mark.parametrize("killed_after", range(1, 6))
async def test_a_start_that_is_killed_leaves_no_tenant_without_its_namespace(killed_after: int) -> None:
    server, _, store = make()
    starting = asyncio.ensure_future(initialise_cluster(store, BrokerUrls("pulsar://h:2", "http://h:1")))
    while len(server.nodes) < killed_after and not starting.done():  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    starting.cancel()
    assert len(server.nodes) >= killed_after
    for tenant, namespace in (("public", "public/default"), ("pulsar", "pulsar/system")):
        assert (f"/admin/policies/{tenant}" in server.nodes) == (f"/admin/policies/{namespace}" in server.nodes)


async def test_two_brokers_at_once_initialise_one_cluster() -> None:
    server, _, store = make()
    other = PolicyStore(SimMetadataStore(server), "c1")
    await initialise_cluster(store, BrokerUrls("pulsar://a:2", "http://a:1"))
    await initialise_cluster(other, BrokerUrls("pulsar://b:2", "http://b:1"))
    assert json.loads(server.nodes["/admin/clusters/c1"].value)["serviceUrl"] == "http://a:1"


async def test_a_namespace_needs_its_tenant_and_is_created_once() -> None:
    _, _, store = make()
    with pytest.raises(NotFoundError, match="Tenant"):
        await store.create_namespace(NAMESPACE)
    await store.create_tenant("public", {"adminRoles": [], "allowedClusters": ["c1"]})
    await store.create_namespace(NAMESPACE)
    with pytest.raises(ConflictError):
        await store.create_namespace(NAMESPACE)
    bundles = await store.bundles(NAMESPACE)
    assert bundles is not None
    assert len(bundles.names) == 4
    with pytest.raises(ConflictError, match="active namespaces"):
        await store.delete_tenant("public")
    await store.delete_namespace(NAMESPACE)
    assert await store.policies(NAMESPACE) is None
    await store.delete_tenant("public")


async def test_policies_of_a_namespace_may_name_the_number_of_bundles() -> None:
    _, _, store = make()
    await store.create_tenant("public", {})
    await store.create_namespace(NAMESPACE, {"bundles": {"numBundles": 7}, "message_ttl_in_seconds": 5})
    bundles = await store.bundles(NAMESPACE)
    policies = await store.policies(NAMESPACE)
    assert bundles is not None
    assert policies is not None
    assert len(bundles.names) == 7
    assert policies["message_ttl_in_seconds"] == 5


async def test_local_policies_of_another_broker_apply() -> None:
    _, session, store = make()
    await session.put("/admin/policies/public/default", encode_json({"bundles": Bundles.even(4).to_json()}))
    await session.put("/admin/local-policies/public/default", encode_json({"bundles": Bundles.even(8).to_json()}))
    bundles = await store.bundles(NAMESPACE)
    assert bundles is not None
    assert len(bundles.names) == 8


async def test_unknown_policies_survive_an_update() -> None:
    server, session, store = make()
    await session.put("/admin/policies/public/default", encode_json({"future": [1], "bundles": {}}))
    await store.update_policies(NAMESPACE, lambda value: value.update(deduplicationEnabled=True))
    value = json.loads(server.nodes["/admin/policies/public/default"].value)
    assert value == {"future": [1], "bundles": {}, "deduplicationEnabled": True}
    assert (await store.policies(NAMESPACE) or {})["deduplicationEnabled"] is True


async def test_cached_values_are_used_while_the_store_is_unreachable() -> None:
    server, _, store = make()
    await store.create_tenant("public", {})
    await store.create_namespace(NAMESPACE)
    before = await store.bundles(NAMESPACE)
    assert before is not None
    await store.policies(NAMESPACE)
    for cached in store._cache.values():
        cached.until = 0.0
    server.away = True
    assert await store.policies(NAMESPACE) is not None
    with pytest.raises(MetadataUnavailableError):
        await store.policies(NamespaceName("public", "never-read"))


async def test_a_change_of_another_broker_applies_at_once_and_an_outage_keeps_the_last_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "POLICIES_CACHE_S", 3600.0)
    server, session, store = make()
    other = PolicyStore(SimMetadataStore(server), "c1")
    await initialise_cluster(store, BrokerUrls("pulsar://a:1", "http://a:2"))
    following = asyncio.ensure_future(store.follow())
    assert "message_ttl_in_seconds" not in (await store.policies(NAMESPACE) or {})
    await other.update_policies(NAMESPACE, lambda policies: policies.update(message_ttl_in_seconds=7))
    while (await store.policies(NAMESPACE) or {}).get("message_ttl_in_seconds") != 7:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    for watch in server.watches:
        watch.lose_events()
    await asyncio.sleep(0.01)
    session.cut = True
    assert (await store.policies(NAMESPACE) or {})["message_ttl_in_seconds"] == 7
    following.cancel()


async def test_only_changes_of_local_policies_and_failure_domains_count_as_changes_of_rules() -> None:
    server, _, store = make()
    other = PolicyStore(SimMetadataStore(server), "c1")
    await initialise_cluster(store, BrokerUrls("pulsar://a:1", "http://a:2"))
    assert await store.bundles(NAMESPACE)
    following = asyncio.ensure_future(store.follow())
    while not server.watches:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    await other.create_tenant("shop", {})
    await other.create_namespace(NamespaceName("shop", "orders"))
    await other.create_partitions(parse_topic("persistent://public/default/many"), 3)
    await other.update_policies(NAMESPACE, lambda policies: policies.update(message_ttl_in_seconds=7))
    while (await store.policies(NAMESPACE) or {}).get("message_ttl_in_seconds") != 7:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    assert store.changes == 0
    await other.set_local(NAMESPACE, ANTI_AFFINITY, "apart")
    while store.changes != 1:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    await other.set_failure_domain("zone", ["a:2"])
    while store.changes != 2:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    for watch in server.watches:
        watch.lose_events()
    while store.changes != 3:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0)
    following.cancel()


async def test_a_node_that_is_not_json_is_an_error() -> None:
    _, session, store = make()
    await session.put("/admin/policies/public/default", b"\xff{")
    with pytest.raises(MetadataFormatError, match="/admin/policies/public/default"):
        await store.policies(NAMESPACE)


async def test_partitioned_topics_have_pulsars_nodes_and_only_grow() -> None:
    server, _, store = make()
    topic = parse_topic("persistent://public/default/a b")
    await store.create_partitions(topic, 3)
    node = server.nodes["/admin/partitioned-topics/public/default/persistent/a+b"]
    assert node.value == b'{"partitions":3,"deleted":false}'
    assert await store.partitions(topic) == 3
    with pytest.raises(ConflictError):
        await store.create_partitions(topic, 4)
    with pytest.raises(ConflictError, match="grow"):
        await store.grow_partitions(topic, 3)
    await store.grow_partitions(topic, 5)
    await store.grow_partitions(topic, 7)
    assert await store.partitions(topic) == 7
    assert [await store.was_added(topic.partition_of(index)) for index in (0, 2, 3, 6)] == [False, False, True, True]
    assert [str(name) async for name in store.partitioned_topics(NAMESPACE, "persistent")] == [str(topic)]
    await store.delete_partitions(topic)
    assert await store.partitions(topic) == 0
    with pytest.raises(NotFoundError):
        await store.grow_partitions(topic, 5)


@pytest.mark.parametrize(
    "asked",
    [
        {"numBundles": 10**9},
        {"numBundles": -1},
        {"numBundles": "4"},
        {"numBundles": True},
        {"boundaries": "0x0"},
        {"boundaries": ["0x0", "0x5"]},
        {"boundaries": ["0x0", "no", "0xffffffff"]},
        {"boundaries": [hex(place) for place in range(1000)] + ["0xffffffff"]},
    ],
)
async def test_a_namespace_with_invalid_bundles_is_refused(asked: dict[str, Any]) -> None:
    _, _, store = make()
    await store.create_tenant("public", {})
    with pytest.raises(NotAllowedError):
        await store.create_namespace(NAMESPACE, {"bundles": asked})
    assert await store.policies(NAMESPACE) is None


async def test_a_namespace_has_at_most_so_many_bundles() -> None:
    _, _, store = make()
    await store.create_tenant("public", {})
    await store.create_namespace(NAMESPACE, {"bundles": {"numBundles": NAMESPACE_BUNDLES_MAX}})
    bundles = await store.bundles(NAMESPACE)
    assert bundles is not None and bundles.to_json()["numBundles"] == NAMESPACE_BUNDLES_MAX
    other = NamespaceName("public", "other")
    with pytest.raises(NotAllowedError, match=rf"\(0, {NAMESPACE_BUNDLES_MAX}\]"):
        await store.create_namespace(other, {"bundles": {"numBundles": NAMESPACE_BUNDLES_MAX + 1}})
    assert await store.policies(other) is None
