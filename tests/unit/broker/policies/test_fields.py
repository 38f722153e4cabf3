"""Values that the fields of a namespace's policies may hold, against the policies that a stock broker writes."""

import asyncio
import json
import logging
import random
from typing import Any

import pytest

from quire_broker.errors import NotAllowedError
from quire_broker.limits import POLICIES_CACHE_S
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.policies.bundles import Bundles
from quire_broker.policies.fields import FIELDS, TENANT, flaw_of, usable
from quire_broker.policies.store import POLICIES, PolicyStore, new_policies
from quire_broker.security.authorization import Action, Authorization
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.policies.test_store import golden

HUGE = 10**400
NAMESPACE = NamespaceName("t", "n")


@pytest.mark.parametrize("key", ["/admin/policies/public/default", "/admin/policies/pulsar/system"])
def test_values_of_a_stock_broker_are_valid(key: str) -> None:
    stored = json.loads(golden(key))
    assert usable(stored) == (stored, ())


def test_values_that_we_store_are_valid() -> None:
    stored = new_policies("c", Bundles.even(4))
    assert usable(stored) == (stored, ())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("auth_policies", [], "an object with the fields namespace_auth"),
        ("auth_policies", {"destination_auth": []}, "destination_auth"),
        ("auth_policies", {"destination_auth": {"topic": ["produce"]}}, "destination_auth"),
        ("auth_policies", {"namespace_auth": {"role": "produce"}}, "a list"),
        ("auth_policies", {"namespace_authority": {}}, "without the field 'namespace_authority'"),
        ("retention_policies", {"retentionTimeInMinutes": HUGE, "retentionSizeInMB": 1}, "retentionTimeInMinutes"),
        ("retention_policies", {"retentionTimeInMinutes": 1}, "with the field retentionSizeInMB"),
        ("retention_policies", {"retentionTimeInMinutes": True, "retentionSizeInMB": 1}, "an integer"),
        ("retention_policies", {"retentionSizeInMB": "all"}, "field retentionSizeInMB is an integer"),
        ("message_ttl_in_seconds", 2**31, "from 0 to 2147483647"),
        ("offload_threshold", HUGE, "an integer"),
        ("properties", {"a": 1}, "each value a text"),
        ("replication_clusters", "c1", "a list"),
        ("replication_clusters", ["c"] * 10_001, "at most 10000"),
        ("persistence", {"managedLedgerMaxMarkDeleteRate": HUGE}, "a number"),
        ("deduplicationEnabled", 1, "true or false"),
        ("bundles", {"numBundles": "4"}, "numBundles"),
        ("offload_policies", {"managedLedgerOffloadBucket": ["b"]}, "each value"),
        ("subscription_types_enabled", [1], "a text"),
        ("schema_compatibility_strategy", "x" * 1025, "at most 1024 characters"),
    ],
)
def test_a_wrong_value_is_named_by_its_field(name: str, value: Any, expected: str) -> None:
    flaw = flaw_of(name, value)
    assert flaw is not None
    assert flaw.startswith(name)
    assert expected in flaw


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_null_counts_as_not_set_and_deep_values_do_not_break_a_check(name: str) -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert flaw_of(name, None) is None
    assert flaw_of(name, deep) is not None


def test_an_unknown_field_is_refused_but_kept_when_read() -> None:
    assert flaw_of("retention", {}) == "policies have no field 'retention'"
    assert usable({"of_a_newer_broker": [1]}) == ({"of_a_newer_broker": [1]}, ())


def test_a_tenant_has_lists_of_names() -> None:
    assert TENANT({"adminRoles": ["a"], "allowedClusters": ["c"]}) is None
    assert "adminRoles" in str(TENANT({"adminRoles": "a"}))
    assert "without the field" in str(TENANT({"roles": []}))


def test_stored_permissions_of_a_wrong_type_grant_nothing_and_break_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: SimLoop) -> None:
        session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
        good: dict[str, Any] = {"namespace_auth": {"role": ["produce"]}}
        for name, auth in (("n", good | {"destination_auth": [1]}), ("m", good)):
            policies = {"auth_policies": auth, "message_ttl_in_seconds": 7}
            await session.put(f"{POLICIES}/t/{name}", json.dumps(policies).encode())
        await session.put(f"{POLICIES}/t", b"{}")
        store = PolicyStore(session, "c1")
        authorization = Authorization(store, frozenset())
        for _ in range(3):
            assert not await authorization.may("role", Action.PRODUCE, parse_topic("t/n/x"))
            assert await authorization.may("role", Action.PRODUCE, parse_topic("t/m/x"))
            assert (await store.policies(NAMESPACE) or {})["message_ttl_in_seconds"] == 7
            await asyncio.sleep(2 * POLICIES_CACHE_S)

    with caplog.at_level(logging.WARNING, "quire.broker.policies"):
        simulate(scenario, seed=1)
    assert [record.getMessage().count("destination_auth") for record in caplog.records] == [1], "once, not each time"


QUOTA = {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backlog_quota_map", {"destination_storage": QUOTA | {"limitSize": HUGE}}),
        ("offload_threshold", 2**63),
        ("offload_threshold_in_seconds", HUGE),
        ("offload_deletion_lag_ms", -HUGE),
        ("auth_policies", {"namespace_auth": {"r" * 2000: ["produce"]}}),
    ],
)
def test_no_change_stores_an_invalid_value(field: str, value: Any) -> None:
    async def scenario(_: SimLoop) -> None:
        store = PolicyStore(SimMetadataStore(SimMetadata(random.Random(1))), "c1")
        await store.create_tenant("t", {"adminRoles": [], "allowedClusters": ["c1"]})
        await store.create_namespace(NAMESPACE, {})
        with pytest.raises(NotAllowedError, match=f"^{field}: expected "):
            await store.update_policies(NAMESPACE, lambda policies: policies.update({field: value}))
        assert (await store.policies(NAMESPACE) or {}).get(field) != value

    simulate(scenario, seed=1)


def test_an_invalid_stored_field_does_not_block_changes_of_others() -> None:
    async def scenario(_: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        store, metadata = PolicyStore(SimMetadataStore(server), "c1"), SimMetadataStore(server)
        await store.create_tenant("t", {"adminRoles": [], "allowedClusters": ["c1"]})
        await metadata.put(f"{POLICIES}/t/n", json.dumps({"offload_threshold": "much"}).encode())
        await store.update_policies(NAMESPACE, lambda policies: policies.update(message_ttl_in_seconds=7))
        assert (await store.policies(NAMESPACE) or {}) == {"message_ttl_in_seconds": 7}
        with pytest.raises(NotAllowedError, match="message_ttl_in_seconds"):
            await store.update_policies(NAMESPACE, lambda policies: policies.update(message_ttl_in_seconds=HUGE))

    simulate(scenario, seed=1)
