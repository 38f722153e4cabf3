"""Namespace isolation policies: which brokers may serve a namespace, and where clients are redirected."""

import random
import re
from typing import Any

import pytest

from quire_broker.errors import NotFoundError, ServiceNotReadyError
from quire_broker.names import parse_namespace, parse_topic
from quire_broker.ownership.isolation import Isolation, IsolationPolicy, policy_for, policy_of
from quire_broker.ownership.lookup import Lookups
from quire_broker.ownership.owners import BrokerUrls, Owners
from quire_broker.ownership.registration import Registration
from quire_broker.policies.store import PolicyStore
from tests.sim.metadata import SimMetadata, SimMetadataStore

ORDERS = {"namespaces": ["shop/orders"], "primary": [r"orders-[0-9]+\.shop"], "secondary": []}
TOPIC = parse_topic("persistent://shop/orders/placed")


class Clock:
    def now_ms(self) -> int:
        return 1


class Broker:
    """The parts of a broker that concern ownership."""

    def __init__(self, server: SimMetadata, host: str) -> None:
        session = SimMetadataStore(server)
        self.policies = PolicyStore(session, "c1")
        self.owners = Owners(session, self.policies, BrokerUrls(f"pulsar://{host}:1", f"http://{host}:2"))
        self.lookups = Lookups(self.owners, Isolation(session, self.policies, host))
        self.registration = Registration(session, f"{host}:2", self.owners.urls, "0.1", Clock())


@pytest.fixture
async def brokers() -> tuple[Broker, Broker]:
    """Return a broker that may serve the orders, and another."""
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    ours, other = Broker(server, "orders-0.shop"), Broker(server, "audit-0.shop")
    for broker in (ours, other):
        await broker.registration.register()
    await ours.policies.create_tenant("shop", {})
    await ours.policies.create_namespace(parse_namespace("shop/orders"))
    await ours.policies.set_isolation("orders", ORDERS)
    return ours, other


async def test_a_broker_that_may_not_serve_a_namespace_names_one_that_may(brokers: tuple[Broker, Broker]) -> None:
    ours, other = brokers
    found = await other.lookups.find(TOPIC)
    assert found is not None
    assert (found.ours, found.urls) == (False, ours.owners.urls)
    assert other.owners.held == frozenset()
    taken = await ours.lookups.find(TOPIC)
    assert taken is not None
    assert taken.ours


def test_a_pattern_cannot_keep_the_broker_busy() -> None:
    policies = {"slow": ORDERS | {"namespaces": ["(a+)+"]}}
    assert policy_for("a" * 200 + "!", policies) is None
    assert policy_for("a" * 200, policies) is not None


def test_a_skipped_stored_policy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    policies = {"of another broker": ORDERS | {"namespaces": ["(?!x).*"]}, "usual": ORDERS}
    for _ in range(3):
        assert policy_for("shop/orders", policies) == policy_of(ORDERS)
    assert caplog.text.count("'(?!x).*' is not a supported regular expression") == 1


@pytest.mark.parametrize("host", ["Orders-0.Shop", "::1", "10.0.0.7"])
async def test_a_broker_recognises_itself_by_any_advertised_host(host: str) -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    broker = Broker(server, host)
    await broker.registration.register()
    await broker.policies.create_tenant("shop", {})
    await broker.policies.create_namespace(parse_namespace("shop/orders"))
    await broker.policies.set_isolation("orders", ORDERS | {"primary": [re.escape(host)]})
    found = await broker.lookups.find(TOPIC)
    assert found is not None
    assert found.ours, "otherwise clients are redirected to the same broker"


async def test_brokers_that_read_policies_at_different_times_do_not_redirect_clients_in_a_circle(
    brokers: tuple[Broker, Broker],
) -> None:
    ours, other = brokers
    await other.lookups.find(TOPIC)
    await ours.policies.set_isolation("orders", ORDERS | {"primary": ["audit-.*"]})
    sent = await ours.lookups.find(TOPIC)
    assert sent is not None
    assert sent.urls == other.owners.urls
    found = await other.lookups.find(TOPIC)
    assert found is not None
    assert found.ours


async def test_without_a_permitted_broker_no_broker_takes_the_bundle(brokers: tuple[Broker, Broker]) -> None:
    ours, other = brokers
    await ours.registration.close()
    with pytest.raises(ServiceNotReadyError, match="no broker that may own bundles"):
        await other.lookups.find(TOPIC)
    await other.policies.set_isolation("orders", ORDERS | {"secondary": ["audit-.*"]})
    found = await other.lookups.find(TOPIC)
    assert found is not None
    assert found.ours, "a secondary one may, while no primary one is up"


async def test_an_owner_stays_owner_when_policies_change(brokers: tuple[Broker, Broker]) -> None:
    ours, other = brokers
    await ours.policies.set_isolation("orders", None)
    await other.lookups.find(TOPIC)
    await ours.policies.set_isolation("orders", ORDERS)
    found = await ours.lookups.find(TOPIC)
    assert found is not None
    assert (found.ours, found.urls) == (False, other.owners.urls)


async def test_policies_are_added_replaced_and_deleted(brokers: tuple[Broker, Broker]) -> None:
    policies = brokers[0].policies
    await policies.set_isolation("more", ORDERS)
    await policies.set_isolation("orders", None)
    assert set(await policies.isolation()) == {"more"}
    with pytest.raises(NotFoundError):
        await policies.set_isolation("orders", None)


@pytest.mark.parametrize(
    ("hosts", "allowed"), [({"p1", "s1", "x"}, {"p1", "s1"}), ({"p1", "p2", "s1"}, {"p1", "p2"}), ({"x", "p1x"}, set())]
)
def test_secondary_brokers_count_while_too_few_primary_ones_are_up(hosts: set[str], allowed: set[str]) -> None:
    assert IsolationPolicy(("a/b",), ("p[0-9]",), ("s[0-9]",), min_limit=2).allowed(hosts) == allowed


def test_the_first_policy_by_name_applies_and_invalid_ones_are_skipped() -> None:
    policies: dict[str, Any] = {"b": ORDERS, "a": {"namespaces": ["("]}, "c": ORDERS | {"primary": ["x"]}}
    found = policy_for("shop/orders", policies)
    assert found is not None
    assert found.primary == (r"orders-[0-9]+\.shop",)
    assert policy_for("shop/orders2", policies) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "object"),
        ({"namespaces": ["a"]}, "must not be empty"),
        (ORDERS | {"primary": ["("]}, "not a supported regular expression"),
        (ORDERS | {"secondary": "x"}, "list"),
        (ORDERS | {"auto_failover_policy": {"parameters": {"min_limit": "many"}}}, "an integer"),
    ],
)
def test_the_error_of_an_invalid_policy_names_the_reason(wrong: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy_of(wrong)
