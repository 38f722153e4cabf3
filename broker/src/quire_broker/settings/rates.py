"""Declares the rates of topics without a policy, and of a broker as a whole."""

from dataclasses import dataclass

from quire_bookie.settings.declared import setting
from quire_broker.policies.rates import PublishRate


@dataclass(frozen=True, slots=True)
class RateSettings:
    """How much may be published in a second. 0: no limit."""

    publish_messages: int = setting(
        0,
        "maxPublishRatePerTopicInMessages",
        "messages that may be published to a topic in a second, unless a policy says otherwise; 0: no limit",
        short="publish_rate_per_topic_messages",
        ge=0,
    )
    publish_bytes: int = setting(
        0,
        "maxPublishRatePerTopicInBytes",
        "bytes that may be published to a topic in a second, unless a policy says otherwise; 0: no limit",
        short="publish_rate_per_topic_bytes",
        ge=0,
    )
    broker_publish_messages: int = setting(
        0,
        "brokerPublisherThrottlingMaxMessageRate",
        "messages that may be published to all topics of a broker in a second; 0: no limit",
        short="publish_rate_messages",
        ge=0,
    )
    broker_publish_bytes: int = setting(
        0,
        "brokerPublisherThrottlingMaxByteRate",
        "bytes that may be published to all topics of a broker in a second; 0: no limit",
        short="publish_rate_bytes",
        ge=0,
    )

    @property
    def publish(self) -> PublishRate:
        """The rate of a topic without a policy."""
        return PublishRate(self.publish_messages, self.publish_bytes)

    @property
    def broker_publish(self) -> PublishRate:
        """The rate of all topics together."""
        return PublishRate(self.broker_publish_messages, self.broker_publish_bytes)
