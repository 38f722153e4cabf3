"""Rates in policies: which one is in force, and how a field holds those of several clusters."""

from typing import Any

import pytest

from quire_broker.policies.bundles import Bundles
from quire_broker.policies.fields import flaw_of
from quire_broker.policies.rates import BY_CLUSTER, PUBLISH, PublishRate, publish_rate, read_field, write_field
from quire_broker.policies.store import new_policies

DEFAULT = PublishRate(7, 8)


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        (None, DEFAULT),
        ({"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 20}, PublishRate(10, 20)),
        ({"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 0}, PublishRate()),
        ({"publishThrottlingRateInMsg": 10}, PublishRate(10, 0)),
        ({"publishThrottlingRateInMsg": None}, PublishRate()),
    ],
)
def test_the_publish_rate_of_the_policies_goes_before_the_brokers(value: Any, rate: PublishRate) -> None:
    policies = {PUBLISH: {"other": {"publishThrottlingRateInMsg": 1}} | ({} if value is None else {"c": value})}
    assert publish_rate(policies, "c", DEFAULT) == rate
    assert publish_rate({}, "c", DEFAULT) == publish_rate({PUBLISH: None}, "c", DEFAULT) == DEFAULT


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
