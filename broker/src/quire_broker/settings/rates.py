"""Declares the rates of topics without a policy, and of a broker as a whole."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import setting
from quire_broker.policies.rates import DispatchRate, PublishRate, RateLimits, SubscribeRate


@dataclass(frozen=True, slots=True)
class RateSettings:
    """How much may be published and delivered in a second, and how often consumers may subscribe. 0: no limit."""

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

    dispatch_messages: int = setting(
        0,
        "dispatchThrottlingRatePerTopicInMsg",
        "messages that a topic delivers in a second, unless a policy says otherwise; 0: no limit",
        short="dispatch_rate_per_topic_messages",
        ge=0,
    )
    dispatch_bytes: int = setting(
        0,
        "dispatchThrottlingRatePerTopicInByte",
        "bytes that a topic delivers in a second, unless a policy says otherwise; 0: no limit",
        short="dispatch_rate_per_topic_bytes",
        ge=0,
    )
    subscription_messages: int = setting(
        0,
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "messages that a subscription delivers in a second, unless a policy says otherwise; 0: no limit",
        short="dispatch_rate_per_subscription_messages",
        ge=0,
    )
    subscription_bytes: int = setting(
        0,
        "dispatchThrottlingRatePerSubscriptionInByte",
        "bytes that a subscription delivers in a second, unless a policy says otherwise; 0: no limit",
        short="dispatch_rate_per_subscription_bytes",
        ge=0,
    )
    broker_dispatch_messages: int = setting(
        0,
        "dispatchThrottlingRateInMsg",
        "messages that a broker delivers in a second, of all topics; 0: no limit",
        short="dispatch_rate_messages",
        ge=0,
    )
    broker_dispatch_bytes: int = setting(
        0,
        "dispatchThrottlingRateInByte",
        "bytes that a broker delivers in a second, of all topics; 0: no limit",
        short="dispatch_rate_bytes",
        ge=0,
    )
    subscribe_times: int = setting(
        0,
        "subscribeThrottlingRatePerConsumer",
        "how often one consumer may subscribe to a topic in a period, unless a policy says otherwise; 0: no limit",
        short="subscribe_rate_per_consumer",
        ge=0,
    )
    subscribe_period_s: int = setting(
        30,
        "subscribeRatePeriodPerConsumerInSecond",
        "that period, in s",
        short="subscribe_rate_period_s",
        ge=1,
    )

    @property
    def of_topics(self) -> RateLimits:
        """The rates of a topic without policies."""
        return RateLimits(
            publish=PublishRate(self.publish_messages, self.publish_bytes),
            dispatch=DispatchRate(self.dispatch_messages, self.dispatch_bytes),
            subscription=DispatchRate(self.subscription_messages, self.subscription_bytes),
            subscribe=SubscribeRate(self.subscribe_times, self.subscribe_period_s),
        )

    @property
    def broker_publish(self) -> PublishRate:
        """The rate of publishing to all topics together."""
        return PublishRate(self.broker_publish_messages, self.broker_publish_bytes)

    @property
    def broker_dispatch(self) -> DispatchRate:
        """The rate of delivery of all topics together."""
        return DispatchRate(self.broker_dispatch_messages, self.broker_dispatch_bytes)
