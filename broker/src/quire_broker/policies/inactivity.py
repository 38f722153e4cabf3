"""When topics and subscriptions without clients are deleted, by the policies of a namespace or a topic. Pure.

    inactive_topic_policies   {"inactiveTopicDeleteMode", "maxInactiveDurationSeconds", "deleteWhileInactive"}
    subscription_expiration_time_minutes   a number, 0: never; only of namespaces

Source: Pulsar's policies. A value that this broker cannot use deletes nothing.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from quire_bookie.dataclass import dataclass

TOPICS: Final = "inactive_topic_policies"
SUBSCRIPTIONS: Final = "subscription_expiration_time_minutes"


class DeleteMode(StrEnum):
    """Which topics without clients are inactive."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"


@dataclass(frozen=True, slots=True)
class InactivityRules:
    """What happens to a topic that no client uses. `mode` None: it is not deleted."""

    mode: DeleteMode | None = None
    topic_after_s: int = 60
    subscription_after_s: int = 0
    """Time after which a subscription without consumers is deleted, also with a backlog. 0: never."""

    @property
    def active(self) -> bool:
        """Whether anything may be deleted."""
        return self.mode is not None or self.subscription_after_s > 0


def inactivity_rules(policies: Mapping[str, Any], default: InactivityRules) -> InactivityRules:
    """Return the rules in force."""
    mode, after_s = default.mode, default.topic_after_s
    found = policies.get(TOPICS)
    if found is not None:
        usable = found.get("deleteWhileInactive") is True and flaw_of_inactivity(found) is None
        mode = DeleteMode(found["inactiveTopicDeleteMode"]) if usable else None
        after_s = found["maxInactiveDurationSeconds"] if usable else after_s
    minutes = policies.get(SUBSCRIPTIONS)
    subscription_after_s = default.subscription_after_s if minutes is None else minutes * 60
    return InactivityRules(mode, after_s, subscription_after_s)


def flaw_of_inactivity(value: Any) -> str | None:
    """Return why a policy of inactive topics may not be stored, if it deletes topics; None: it may."""
    if not isinstance(value, Mapping):
        return "inactiveTopicPolicies must be an object"
    if value.get("deleteWhileInactive") is not True:
        return None
    if value.get("inactiveTopicDeleteMode") not in list(DeleteMode):
        return f"inactiveTopicDeleteMode must be one of {', '.join(DeleteMode)}"
    after_s = value.get("maxInactiveDurationSeconds")
    if type(after_s) is not int or after_s < 1:
        return f"maxInactiveDurationSeconds is {str(after_s)[:100]}; use a number of seconds from 1"
    return None


def default_value(default: InactivityRules) -> Mapping[str, Any]:
    """Return a broker's rules for inactive topics as a policy."""
    return {
        "inactiveTopicDeleteMode": str(default.mode or DeleteMode.NO_SUBSCRIPTIONS),
        "maxInactiveDurationSeconds": default.topic_after_s,
        "deleteWhileInactive": default.mode is not None,
    }
