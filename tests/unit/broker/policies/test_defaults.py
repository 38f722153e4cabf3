"""Policies of the broker's settings below those of a namespace."""

from typing import Any

import pytest

from quire_broker.policies.bundles import Bundles
from quire_broker.policies.defaults import OLD_STRATEGY, STRATEGY, UNSET, with_defaults
from quire_broker.policies.store import new_policies

DEFAULTS: dict[str, Any] = {
    "max_producers_per_topic": 3,
    STRATEGY: "BACKWARD",
    "encryption_required": True,
    "subscription_types_enabled": ["Shared"],
}


def test_a_new_namespace_has_all_of_them() -> None:
    found = with_defaults(new_policies("c", Bundles.even(1)), DEFAULTS)
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS


def test_a_new_namespace_sets_none_of_the_fields() -> None:
    new = new_policies("c", Bundles.even(1))
    assert {name: new[name] for name in UNSET} == UNSET


@pytest.mark.parametrize(
    ("own", "field", "expected"),
    [
        ({"max_producers_per_topic": 0}, "max_producers_per_topic", 0),
        ({"max_producers_per_topic": None}, "max_producers_per_topic", 3),
        ({STRATEGY: "FULL"}, STRATEGY, "FULL"),
        ({STRATEGY: "UNDEFINED"}, STRATEGY, "BACKWARD"),
        ({STRATEGY: "UNDEFINED", OLD_STRATEGY: "Forward"}, STRATEGY, None),
        ({"encryption_required": False}, "encryption_required", True),
        ({"subscription_types_enabled": ["Failover"]}, "subscription_types_enabled", ["Failover"]),
        ({"subscription_types_enabled": []}, "subscription_types_enabled", ["Shared"]),
    ],
)
def test_what_a_namespace_sets_goes_before_them(own: dict[str, Any], field: str, expected: Any) -> None:
    assert with_defaults(own, DEFAULTS).get(field) == expected


def test_without_any_the_policies_stay_as_they_are() -> None:
    own = {"encryption_required": False, "unknown": 1}
    assert with_defaults(own, {}) is own
