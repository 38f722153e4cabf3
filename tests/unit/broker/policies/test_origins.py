"""Where the policies in force come from, compared with how they are merged for a topic."""

from typing import Any

import pytest

from quire_broker.policies.backlog_quota import QUOTA_KEY
from quire_broker.policies.defaults import OLD_STRATEGY, STRATEGY, with_defaults
from quire_broker.policies.fields import OFFLOAD
from quire_broker.policies.of_topics import merged
from quire_broker.policies.origins import origins, quota_origins
from quire_broker.policies.rates import PUBLISH, RateLimits, default_values, limits_in_force

RATE = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
NO_RATE = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1}
DEFAULTS: dict[str, Any] = {
    "message_ttl_in_seconds": 9,
    "subscription_types_enabled": ["Shared"],
    "schema_validation_enforced": True,
    STRATEGY: "FULL",
    OFFLOAD: {"a": 1, "b": 1, "c": 1},
}


def found(field: str, topic: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the origin of one policy."""
    defaults = DEFAULTS | default_values(RateLimits())
    return origins({"policy": field}, {"topic": topic, "namespace": namespace}, defaults, "c1")["policy"]


@pytest.mark.parametrize(
    ("field", "topic", "namespace", "level"),
    [
        ("message_ttl_in_seconds", {}, {}, "broker"),
        ("message_ttl_in_seconds", {}, {"message_ttl_in_seconds": None}, "broker"),
        ("message_ttl_in_seconds", {}, {"message_ttl_in_seconds": 0}, "namespace"),
        ("message_ttl_in_seconds", {"message_ttl_in_seconds": 0}, {"message_ttl_in_seconds": 3}, "topic"),
        ("subscription_types_enabled", {}, {"subscription_types_enabled": []}, "broker"),
        ("subscription_types_enabled", {"subscription_types_enabled": []}, {}, "topic"),
        ("schema_validation_enforced", {}, {"schema_validation_enforced": False}, "broker"),
        (STRATEGY, {}, {STRATEGY: "UNDEFINED"}, "broker"),
    ],
)
def test_the_value_is_the_one_in_force_and_its_level_is_named(
    field: str, topic: dict[str, Any], namespace: dict[str, Any], level: str
) -> None:
    one = found(field, topic, namespace)
    assert one["from"] == level
    assert one["value"] == merged(with_defaults(namespace, DEFAULTS), topic, "c1")[field]


@pytest.mark.parametrize(
    ("topic", "namespace", "level"),
    [(None, None, "broker"), (None, RATE, "namespace"), (RATE, None, "topic"), (NO_RATE, RATE, "namespace")],
)
def test_a_rate_that_limits_nothing_counts_as_not_set(topic: Any, namespace: Any, level: str) -> None:
    own, given = ({PUBLISH: {"c1": rate}} if rate else {} for rate in (topic, namespace))
    one = found(PUBLISH, own, given)
    assert one["from"] == level
    in_force = limits_in_force(merged(given, own, "c1"), "c1", RateLimits()).publish
    assert max(0, one["value"]["publishThrottlingRateInMsg"]) == in_force.messages


def test_only_the_rate_of_the_own_cluster_counts() -> None:
    assert found(PUBLISH, {}, {PUBLISH: {"c2": RATE}})["from"] == "broker"


def test_all_levels_that_set_a_policy_are_shown() -> None:
    one = found("message_ttl_in_seconds", {"message_ttl_in_seconds": 1}, {"message_ttl_in_seconds": 2})
    assert one == {"value": 1, "from": "topic", "set": {"topic": 1, "namespace": 2}}


def test_offloading_is_inherited_field_by_field() -> None:
    one = found(OFFLOAD, {OFFLOAD: {"a": 3}}, {OFFLOAD: {"a": 2, "b": 2}})
    assert (one["value"], one["from"]) == ({"a": 3, "b": 2, "c": 1}, "topic")


def test_the_old_strategy_of_a_namespace_counts_before_the_setting_of_the_broker() -> None:
    namespace = {STRATEGY: "UNDEFINED", OLD_STRATEGY: "Backward"}
    assert found(STRATEGY, {}, namespace) == {
        "value": "Backward",
        "from": "namespace",
        "set": {"namespace": "Backward"},
    }
    assert STRATEGY not in with_defaults(namespace, DEFAULTS)
    assert found(STRATEGY, {STRATEGY: "FULL"}, namespace)["from"] == "topic"


def test_each_kind_of_backlog_quota_has_its_own_origin() -> None:
    size, age = {"limitSize": 1, "policy": "producer_exception"}, {"limitTime": 2, "policy": "producer_exception"}
    levels: dict[str, dict[str, Any]] = {
        "topic": {QUOTA_KEY: {"message_age": age}},
        "namespace": {QUOTA_KEY: None},
    }
    shown = quota_origins(levels, {"destination_storage": size, "message_age": size})
    assert shown["backlogQuota?backlogQuotaType=destination_storage"] == {"value": size, "from": "broker", "set": {}}
    assert shown["backlogQuota?backlogQuotaType=message_age"]["from"] == "topic"
