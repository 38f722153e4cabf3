"""Declares the settings of loaded topics."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MINUTES, setting
from quire_broker import limits
from quire_broker.policies.inactivity import DeleteMode, InactivityRules


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How topics are opened."""

    at_once_max: int = setting(
        limits.TOPIC_LOADS_MAX,
        "maxConcurrentTopicLoadRequest",
        "topics that are opened at once; others wait for their turn",
        short="max_concurrent_topic_loads",
        ge=1,
        le=10_000,
    )
    timeout_s: float = setting(
        limits.TOPIC_LOAD_S,
        "topicLoadTimeoutSeconds",
        "the opening of a topic that takes longer fails and is tried again at its next use, in s",
        short="topic_load_timeout_s",
        kind=int,
        ge=1,
        le=3600,
    )


@dataclass(frozen=True, slots=True)
class UnusedTopicSettings:
    """When a topic that nothing uses is closed."""

    close_after_s: float = setting(
        limits.UNUSED_TOPIC_S,
        "closeUnusedTopicsAfterSeconds",
        "a topic without clients and requests for this time is closed until the next one, in s; 0: never",
        short="close_unused_topics_after_s",
        kind=int,
        ge=0,
        le=limits.UNUSED_TOPIC_MAX_S,
    )


@dataclass(frozen=True, slots=True)
class InactivitySettings:
    """When topics and subscriptions without clients are deleted, unless policies say otherwise."""

    delete_topics: bool = setting(
        False,
        "brokerDeleteInactiveTopicsEnabled",
        "delete topics that are inactive; stock brokers do so unless it is turned off",
        short="delete_inactive_topics",
    )
    delete_mode: DeleteMode = setting(
        DeleteMode.NO_SUBSCRIPTIONS,
        "brokerDeleteInactiveTopicsMode",
        "inactive topics: without clients, and without subscriptions (delete_when_no_subscriptions) or without a "
        "backlog (delete_when_subscriptions_caught_up)",
        short="delete_inactive_topics_mode",
    )
    topic_after_s: int = setting(
        60,
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "time after which such a topic is deleted, in s",
        short="delete_inactive_topics_after_s",
        ge=1,
    )
    check_interval_s: float = setting(
        60.0,
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "pause between two checks for inactive topics and expired subscriptions, in s",
        short="delete_inactive_topics_interval_s",
        kind=int,
        ge=1,
    )
    subscription_after_s: int = setting(
        0,
        "subscriptionExpirationTimeMinutes",
        "a subscription without consumers for this time is deleted, also with a backlog, in min; 0: never",
        short="subscription_expiration_minutes",
        unit=MINUTES,
        ge=0,
    )

    @property
    def rules(self) -> InactivityRules:
        """The rules of a topic without policies."""
        mode = self.delete_mode if self.delete_topics else None
        return InactivityRules(mode, self.topic_after_s, self.subscription_after_s)
