"""Rates in policies: which one is in force, and how a field holds those of several clusters."""

from dataclasses import replace
from typing import Any

import pytest

from quire_broker.policies.bundles import Bundles
from quire_broker.policies.fields import flaw_of
from quire_broker.policies.rates import (
    BY_CLUSTER,
    DISPATCH,
    OF_SUBSCRIPTIONS,
    PUBLISH,
    SUBSCRIBE,
    SUBSCRIPTION_DISPATCH,
    DispatchRate,
    PublishRate,
    RateLimits,
    SubscribeRate,
    default_values,
    flaw_of_rate,
    limits_in_force,
    rates_of_subscriptions,
    read_field,
    write_field,
    write_of_subscription,
)
from quire_broker.policies.store import new_policies

DEFAULTS = RateLimits(PublishRate(7, 8), DispatchRate(9, 10), DispatchRate(11, 12), {}, SubscribeRate(13, 14))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (PUBLISH, {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 2}, {"publish": PublishRate(1, 2)}),
        (PUBLISH, {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 0}, {}),
        (PUBLISH, {"publishThrottlingRateInMsg": 1}, {"publish": PublishRate(1, 0)}),
        (PUBLISH, {"publishThrottlingRateInMsg": None}, {}),
        (DISPATCH, {"dispatchThrottlingRateInMsg": 1}, {"dispatch": DispatchRate(1)}),
        (DISPATCH, {"dispatchThrottlingRateInMsg": 0, "ratePeriodInSecond": 9}, {}),
        (
            DISPATCH,
            {"dispatchThrottlingRateInByte": 2, "ratePeriodInSecond": 3, "relativeToPublishRate": True},
            {"dispatch": DispatchRate(0, 2, 3, relative=True)},
        ),
        (
            DISPATCH,
            {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 0, "relativeToPublishRate": None},
            {"dispatch": DispatchRate(2, 0, 1)},
        ),
        (SUBSCRIPTION_DISPATCH, {"dispatchThrottlingRateInMsg": 1}, {"subscription": DispatchRate(1)}),
        (SUBSCRIBE, {"subscribeThrottlingRatePerConsumer": 1}, {"subscribe": SubscribeRate(1, 30)}),
        (SUBSCRIBE, {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 5}, {}),
    ],
)
def test_a_rate_of_the_policies_goes_before_the_brokers(field: str, value: Any, expected: dict[str, Any]) -> None:
    other = {"other": dict.fromkeys(BY_CLUSTER[field], 99)}
    assert limits_in_force({field: other | {"c": value}}, "c", DEFAULTS) == replace(DEFAULTS, **expected)
    assert limits_in_force({field: other}, "c", DEFAULTS) == limits_in_force({field: None}, "c", DEFAULTS) == DEFAULTS


def test_a_relative_rate_is_added_to_what_is_published() -> None:
    rate = DispatchRate(10, 100, 2, relative=True)
    assert rate.above(5.5, 50) == DispatchRate(21, 200, 2, relative=True)
    assert DispatchRate(10, relative=True).above(5, 50) == DispatchRate(15, 0, relative=True)
    assert DispatchRate(10).above(5, 50) == DispatchRate(10)
    assert RateLimits(subscriptions={"s": rate}).relative and not DEFAULTS.relative


def test_a_subscription_may_have_its_own_rate() -> None:
    own: dict[str, Any] = {}
    write_of_subscription(own, "s", {"dispatchThrottlingRateInMsg": 5})
    write_of_subscription(own, "off", {"dispatchThrottlingRateInMsg": -1})
    assert rates_of_subscriptions(own)["s"] == dict(BY_CLUSTER[SUBSCRIPTION_DISPATCH]) | {
        "dispatchThrottlingRateInMsg": 5
    }
    found = limits_in_force(own, "c", DEFAULTS)
    assert [found.of_subscription(name) for name in ("s", "off", "t")] == [
        DispatchRate(5),
        *[DEFAULTS.subscription] * 2,
    ]
    write_of_subscription(own, "s", None)
    write_of_subscription(own, "off", None)
    assert own == {}


@pytest.mark.parametrize("found", [5, {"s": 5}, {"s": {}}, {"s": {"dispatchRate": {"rate": 1}}}])
def test_unreadable_rates_of_subscriptions_are_omitted(found: Any) -> None:
    assert rates_of_subscriptions({OF_SUBSCRIPTIONS: found}) == {}


@pytest.mark.parametrize("field", BY_CLUSTER)
def test_the_rates_of_a_broker_are_shown_as_policies_that_mean_the_same(field: str) -> None:
    values = default_values(DEFAULTS)
    assert flaw_of_rate(field, values[field]) is None
    assert limits_in_force({name: {"c": value} for name, value in values.items()}, "c", RateLimits()) == DEFAULTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (DISPATCH, {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 0}),
        (SUBSCRIBE, {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": -1}),
        (PUBLISH, {"dispatchThrottlingRateInMsg": 1}),
        (PUBLISH, None),
    ],
)
def test_a_rate_is_refused_that_no_broker_could_keep(field: str, value: Any) -> None:
    assert flaw_of_rate(field, value) is not None


def test_a_rate_is_set_for_the_own_cluster_and_complete() -> None:
    policies: dict[str, Any] = {PUBLISH: {"other": {"publishThrottlingRateInMsg": 1}}}
    write_field(policies, PUBLISH, "c", {"publishThrottlingRateInMsg": 5})
    rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    assert read_field(policies, PUBLISH, "c") == rate
    assert policies == {PUBLISH: {"other": {"publishThrottlingRateInMsg": 1}, "c": rate}}
    write_field(policies, PUBLISH, "c", None)
    assert policies == {PUBLISH: {"other": {"publishThrottlingRateInMsg": 1}}}
    assert read_field(policies, PUBLISH, "c") is None


def test_other_fields_have_one_value() -> None:
    policies: dict[str, Any] = {}
    write_field(policies, "message_ttl_in_seconds", "c", 5)
    assert policies == {"message_ttl_in_seconds": 5}
    assert read_field(policies, "message_ttl_in_seconds", "c") == 5
    write_field(policies, "message_ttl_in_seconds", "c", None)
    assert policies == {}


@pytest.mark.parametrize("field", BY_CLUSTER)
def test_every_rate_is_a_field_of_new_policies_whose_empty_value_is_valid(field: str) -> None:
    assert new_policies("c", Bundles.even(1))[field] == {}
    assert flaw_of(field, {"c": dict(BY_CLUSTER[field])}) is None
    assert flaw_of(field, {"c": 5}) is not None
