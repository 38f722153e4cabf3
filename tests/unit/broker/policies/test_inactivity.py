"""Which policies delete inactive topics and subscriptions, and which are refused."""

from typing import Any

import pytest

from quire_broker.policies.fields import flaw_of
from quire_broker.policies.inactivity import (
    SUBSCRIPTIONS,
    TOPICS,
    DeleteMode,
    InactivityRules,
    default_value,
    flaw_of_inactivity,
    inactivity_rules,
)

NONE = InactivityRules()
ON = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 5,
    "deleteWhileInactive": True,
}
DEFAULTS = InactivityRules(DeleteMode.NO_SUBSCRIPTIONS, 7, 120)


def test_policies_go_before_the_settings_of_the_broker() -> None:
    assert inactivity_rules({}, DEFAULTS) == inactivity_rules({TOPICS: None, SUBSCRIPTIONS: None}, DEFAULTS) == DEFAULTS
    assert inactivity_rules({TOPICS: ON, SUBSCRIPTIONS: 3}, DEFAULTS) == InactivityRules(DeleteMode.CAUGHT_UP, 5, 180)
    assert inactivity_rules({SUBSCRIPTIONS: 0}, DEFAULTS).subscription_after_s == 0
    assert inactivity_rules({TOPICS: ON | {"deleteWhileInactive": False}}, DEFAULTS).mode is None
    assert (NONE.active, DEFAULTS.active, InactivityRules(subscription_after_s=1).active) == (False, True, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"inactiveTopicDeleteMode": "sometimes"},
        {"inactiveTopicDeleteMode": None},
        {"maxInactiveDurationSeconds": 0},
        {"maxInactiveDurationSeconds": None},
        {"maxInactiveDurationSeconds": True},
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_and_deletes_nothing(changes: dict[str, Any]) -> None:
    assert flaw_of_inactivity(ON | changes) is not None
    assert inactivity_rules({TOPICS: ON | changes}, DEFAULTS).mode is None
    assert flaw_of_inactivity(ON | changes | {"deleteWhileInactive": False}) is None


def test_only_an_object_is_a_policy_and_the_brokers_rules_are_shown_as_one() -> None:
    assert flaw_of_inactivity(5) == flaw_of_inactivity(None) == "inactiveTopicPolicies must be an object"
    for rules in (NONE, DEFAULTS):
        shown = dict(default_value(rules))
        assert flaw_of(TOPICS, shown) is None and flaw_of_inactivity(shown) is None
        assert inactivity_rules({TOPICS: shown}, NONE).mode == rules.mode
