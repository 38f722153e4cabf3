"""Permissions of roles, from a namespace's policies in Pulsar's format."""

import random
from typing import Any

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.errors import AuthorizationError
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.policies.store import Json, PolicyStore
from quire_broker.security.authorization import Action, Authorization, Rights
from tests.sim.metadata import SimMetadata, SimMetadataStore

NAMESPACE = NamespaceName("acme", "orders")
TOPIC, PARTITION, OTHER = (
    parse_topic(f"persistent://acme/orders/{name}") for name in ("one", "one-partition-3", "other")
)
GRANTS: dict[str, Any] = {
    "namespace_auth": {"writer": ["produce"], "reader": ["consume"], "none": []},
    "destination_auth": {str(TOPIC): {"app": ["produce", "consume"]}},
    "subscription_auth_roles": {"private": ["reader"], "free": []},
    "quire_admin_roles": ["keeper"],
}


async def authorization(grants: Json | None = None) -> tuple[Authorization, SimMetadataStore]:
    metadata = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    store = PolicyStore(metadata, "c1")
    await store.create_tenant("acme", {"adminRoles": ["boss"], "allowedClusters": ["c1"]})
    await store.create_namespace(NAMESPACE, {"auth_policies": GRANTS if grants is None else grants})
    return Authorization(store, frozenset({"root"})), metadata


@pytest.mark.parametrize(
    ("role", "produces", "consumes"),
    [
        ("root", True, True),
        ("boss", True, True),
        ("keeper", True, True),
        ("writer", True, False),
        ("reader", False, True),
        ("app", True, True),
        ("none", False, False),
        ("stranger", False, False),
        ("", False, False),
    ],
)
async def test_a_role_may_do_what_its_namespace_or_topic_grants(role: str, produces: bool, consumes: bool) -> None:
    found, _ = await authorization()
    for topic in (TOPIC, PARTITION):
        assert await found.may(role, Action.PRODUCE, topic) is produces
        assert await found.may(role, Action.CONSUME, topic) is consumes
        assert await found.may_look_up(role, topic) is (produces or consumes)


@pytest.mark.parametrize(
    "local",
    [
        "__change_events",
        "__change_events-partition-1",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
        "one-sub__transaction_pending_ack",
        "one-sub__transaction_pending_ack-partition-0",
        "__transaction_log_7",
        "transaction_coordinator_assign-partition-2",
    ],
)
async def test_topics_of_the_brokers_are_for_admins_of_the_namespace(local: str) -> None:
    topic = parse_topic(f"persistent://acme/orders/{local}")
    found, _ = await authorization(GRANTS | {"destination_auth": {str(topic): {"app": ["produce", "consume"]}}})
    for role in ("root", "boss", "keeper"):
        await Rights(found, role).require_produce(topic)
        await Rights(found, role).require_subscribe(topic, "s")
    for role in ("writer", "reader", "app"):
        with pytest.raises(AuthorizationError):
            await Rights(found, role).require_produce(topic)
        with pytest.raises(AuthorizationError):
            await Rights(found, role).require_subscribe(topic, "s")
        with pytest.raises(AuthorizationError):
            await Rights(found, role).require_look_up(topic)
    await Rights(None, "").require_produce(topic)


async def test_all_topics_of_the_system_namespace_are_for_its_admins() -> None:
    found, metadata = await authorization()
    store = PolicyStore(metadata, "c1")
    await store.create_tenant("pulsar", {"adminRoles": ["brokers"], "allowedClusters": ["c1"]})
    grants = {"namespace_auth": {"writer": ["produce"]}}
    await store.create_namespace(NamespaceName("pulsar", "system"), {"auth_policies": grants})
    topic = parse_topic("persistent://pulsar/system/anything")
    await Rights(found, "brokers").require_produce(topic)
    with pytest.raises(AuthorizationError):
        await Rights(found, "writer").require_produce(topic)


async def test_a_topic_that_only_looks_like_one_of_the_brokers_stays_open() -> None:
    found, _ = await authorization()
    for local in ("__consumer_offsets", "change_events", "x__change_events", "__transaction_pending_ack_x"):
        await Rights(found, "writer").require_produce(parse_topic(f"persistent://acme/orders/{local}"))


async def test_a_grant_on_a_topic_is_not_one_on_another_topic_or_the_namespace() -> None:
    found, _ = await authorization()
    assert not await found.may("app", Action.PRODUCE, OTHER)
    assert not await found.may_in_namespace("app", Action.CONSUME, NAMESPACE)
    assert await found.may_in_namespace("reader", Action.CONSUME, NAMESPACE)


async def test_an_admin_of_a_namespace_is_not_one_of_another_or_of_the_tenant() -> None:
    found, metadata = await authorization()
    other = NamespaceName("acme", "other")
    await PolicyStore(metadata, "c1").create_namespace(other, {"auth_policies": {"quire_admin_roles": "keeper"}})
    assert [await found.is_namespace_admin(role, NAMESPACE) for role in ("root", "boss", "keeper", "writer")] == [
        *(True, True, True, False)
    ]
    assert not await found.is_admin("keeper", "acme")
    assert not await found.is_namespace_admin("keeper", other), "a text is not a list of roles"
    assert await found.may_in_namespace("keeper", Action.CONSUME, NAMESPACE)
    assert not await found.may_in_namespace("keeper", Action.CONSUME, other)


async def test_a_subscription_with_roles_is_restricted_to_them_and_one_without_to_roles_that_consume() -> None:
    found, _ = await authorization()
    assert await found.may_subscribe("reader", TOPIC, "private")
    assert not await found.may_subscribe("app", TOPIC, "private")
    assert await found.may_subscribe("app", TOPIC, "free")
    assert await found.may_subscribe("app", TOPIC, "another")
    assert not await found.may_subscribe("writer", TOPIC, "free")
    assert await found.may_subscribe("boss", TOPIC, "private")
    assert await found.may_subscribe("keeper", TOPIC, "private")


async def test_a_subscription_may_have_to_begin_with_the_role() -> None:
    found, metadata = await authorization()
    rules = {"auth_policies": GRANTS, "subscription_auth_mode": "Prefix"}
    await PolicyStore(metadata, "c1").update_policies(NAMESPACE, lambda policies: policies.update(rules))
    assert await found.may_subscribe("reader", TOPIC, "reader-one")
    assert not await found.may_subscribe("reader", TOPIC, "one-reader")
    assert await found.may_subscribe("reader", TOPIC, ""), "a request that names no subscription"
    for admin in ("root", "boss", "keeper"):
        assert await found.may_subscribe(admin, TOPIC, "one")


@pytest.mark.parametrize("grants", [{}, {"namespace_auth": None, "destination_auth": None}])
async def test_policies_without_permissions_permit_nothing(grants: Json) -> None:
    found, _ = await authorization(grants)
    assert not await found.may("app", Action.PRODUCE, TOPIC)
    assert not await found.may_subscribe("app", TOPIC, "s")


async def test_a_missing_namespace_or_tenant_permits_nothing() -> None:
    found, _ = await authorization()
    assert not await found.may("writer", Action.PRODUCE, parse_topic("persistent://acme/nowhere/t"))
    assert not await found.may("boss", Action.PRODUCE, parse_topic("persistent://absent/nowhere/t"))


async def test_without_authorization_every_role_may_and_with_it_a_refusal_names_role_and_topic() -> None:
    await Rights(None, "").require_produce(TOPIC)
    found, _ = await authorization()
    await Rights(found, "writer").require_produce(TOPIC)
    for refused in (
        Rights(found, "reader").require_produce(TOPIC),
        Rights(found, "writer").require_subscribe(TOPIC, "s"),
        Rights(found, "stranger").require_look_up(TOPIC),
        Rights(found, "writer").require_list(NAMESPACE),
    ):
        with pytest.raises(AuthorizationError, match="not authorized"):
            await refused


async def test_while_policies_cannot_be_read_nothing_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    found, metadata = await authorization()

    async def away(key: str) -> None:
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(metadata, "get", away)
    with pytest.raises(MetadataUnavailableError):
        await found.may("writer", Action.PRODUCE, TOPIC)


async def test_names_that_are_not_a_list_grant_nothing_to_a_role_named_like_a_part_of_them() -> None:
    grants: Json = {
        "namespace_auth": {"app": "produce,consume", "reader": ["consume"], "read": ["consume"]},
        "destination_auth": {str(TOPIC): {"app": "consume"}},
        "subscription_auth_roles": {"private": "reader"},
    }
    found, metadata = await authorization(grants)
    store = PolicyStore(metadata, "c1")
    await store.update_tenant("acme", {"adminRoles": "administrator"})
    assert not await found.is_admin("admin", "acme")
    assert not await found.may("app", Action.PRODUCE, TOPIC)
    assert not await found.may("app", Action.CONSUME, TOPIC)
    assert not await found.may_in_namespace("app", Action.CONSUME, NAMESPACE)
    for role in ("read", "reader"):
        assert not await found.may_subscribe(role, TOPIC, "private")


async def test_a_proxy_and_its_client_must_both_have_a_right() -> None:
    found, _ = await authorization()
    for role, original, permitted in (
        ("keeper", "writer", True),
        ("writer", "writer", True),
        ("keeper", "reader", False),
        ("reader", "keeper", False),
        ("keeper", "stranger", False),
    ):
        rights = Rights(found, role, original)
        assert rights.role == original
        if permitted:
            await rights.require_produce(PARTITION)
            continue
        with pytest.raises(AuthorizationError):
            await rights.require_produce(PARTITION)
    with pytest.raises(AuthorizationError):
        await Rights(found, "keeper", "writer").require_subscribe(TOPIC, "s")
    with pytest.raises(AuthorizationError):
        await Rights(found, "keeper", "stranger").require_look_up(TOPIC)
    with pytest.raises(AuthorizationError):
        await Rights(found, "keeper", "writer").require_list(NAMESPACE)


def test_a_role_that_is_no_proxy_may_name_only_itself_and_only_in_a_request() -> None:
    found = Authorization(None, frozenset(), frozenset({"proxy"}))  # type: ignore[arg-type]  # names decide
    assert found.roles_of("app", "") == ("app",)
    assert found.roles_of("app", "app", may_repeat=True) == ("app",)
    assert found.roles_of("proxy", "app", may_repeat=True) == ("proxy", "app")
    for role, original in (("app", "boss"), ("proxy", ""), ("proxy", "proxy")):
        with pytest.raises(AuthorizationError):
            found.roles_of(role, original, may_repeat=True)
