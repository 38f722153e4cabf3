"""The rates in the policies of namespaces and topics, and which of them is in force. Pure.

A policy of rates is a map by cluster, as in Pulsar; only the entry of the own cluster counts. A topic's rate goes
before its namespace's, which goes before the broker's. A rate that limits nothing counts as not set, as in Pulsar.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final

from quire_bookie.dataclass import dataclass
from quire_broker.policies.fields import FIELDS, flaw_of

PUBLISH: Final = "publishMaxMessageRate"
DISPATCH: Final = "topicDispatchRate"
SUBSCRIPTION_DISPATCH: Final = "subscriptionDispatchRate"
SUBSCRIBE: Final = "clusterSubscribeRate"
OF_SUBSCRIPTIONS: Final = "subscriptionPolicies"
"""In the policies of a topic: a map by the name of a subscription to `{"dispatchRate": rate}`."""
_PUBLISHED: Final = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1}
_DISPATCHED: Final = {
    "dispatchThrottlingRateInMsg": -1,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
_SUBSCRIBED: Final = {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30}
BY_CLUSTER: Final[Mapping[str, Mapping[str, Any]]] = {
    PUBLISH: _PUBLISHED,
    DISPATCH: _DISPATCHED,
    SUBSCRIPTION_DISPATCH: _DISPATCHED,
    SUBSCRIBE: _SUBSCRIBED,
}
"""Fields whose values are maps by cluster, and the value of a rate without any field."""


@dataclass(frozen=True, slots=True)
class PublishRate:
    """Messages and bytes that may be published in a second. 0: no limit."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DispatchRate:
    """Messages and bytes that may be delivered in a period. 0: no limit."""

    messages: int = 0
    size_bytes: int = 0
    period_s: int = 1
    relative: bool = False
    """Whether the numbers are added to the measured rate of publishing."""

    def above(self, messages_per_s: float, bytes_per_s: float) -> "DispatchRate":
        """Return the rate at this measured rate of publishing."""
        if not self.relative:
            return self
        messages = self.messages and self.messages + int(messages_per_s * self.period_s)
        size_bytes = self.size_bytes and self.size_bytes + int(bytes_per_s * self.period_s)
        return replace(self, messages=messages, size_bytes=size_bytes)


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """How often a consumer may subscribe in a period. 0: no limit."""

    times: int = 0
    period_s: int = 30


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The rates of one topic, or of topics without policies."""

    publish: PublishRate = PublishRate()
    dispatch: DispatchRate = DispatchRate()
    subscription: DispatchRate = DispatchRate()
    """Of each subscription that is not in `subscriptions`."""
    subscriptions: Mapping[str, DispatchRate] = field(default_factory=dict)
    subscribe: SubscribeRate = SubscribeRate()

    @property
    def relative(self) -> bool:
        """Whether one of them depends on the measured rate of publishing."""
        return any(rate.relative for rate in (self.dispatch, self.subscription, *self.subscriptions.values()))

    def of_subscription(self, name: str) -> DispatchRate:
        """Return the rate of delivery to one subscription."""
        return self.subscriptions.get(name, self.subscription)


def limits_nothing(rate: Any) -> bool:
    """Return whether the value of a policy is no rate, or one without a limit."""
    if not isinstance(rate, Mapping):
        return True
    numbers = [rate.get(name) for name in (*_PUBLISHED, *_DISPATCHED, *_SUBSCRIBED) if "Throttling" in name]
    return not any(type(number) is int and number > 0 for number in numbers)


def read_field(policies: Mapping[str, Any], field: str, cluster: str) -> Any:
    """Return the value of a field for the own cluster; None if it is not set."""
    found = policies.get(field)
    return (found or {}).get(cluster) if field in BY_CLUSTER else found


def schema_of(field: str) -> Mapping[str, Any]:
    """Return the OpenAPI schema of a field's value, of a rate that of one cluster."""
    schema = FIELDS[field].schema
    value: Mapping[str, Any] = schema["additionalProperties"] if field in BY_CLUSTER else schema
    return value


def completed(field: str, value: Any) -> Any:
    """Return a rate with the fields that it lacks; any other value unchanged."""
    return {**BY_CLUSTER[field], **value} if field in BY_CLUSTER and isinstance(value, dict) else value


def flaw_of_rate(field: str, value: Any) -> str | None:
    """Return why a value may not be stored in one of these fields; None: it may."""
    flaw = flaw_of(field, {"": value})
    if flaw is None and isinstance(value, dict):
        period = value.get("ratePeriodInSecond")
        if period is not None and period < 1:
            return f"ratePeriodInSecond is {period}; use a number of seconds from 1"
    return flaw


def write_field(policies: dict[str, Any], field: str, cluster: str, value: Any) -> None:
    """Set a field for the own cluster, or remove its value with None. Values of other clusters stay."""
    if field in BY_CLUSTER:
        others = {name: item for name, item in (policies.get(field) or {}).items() if name != cluster}
        value = others if value is None else others | {cluster: completed(field, value)}
    policies.pop(field, None)
    if value is not None:
        policies[field] = value


def write_of_subscription(own: dict[str, Any], subscription: str, rate: Any) -> None:
    """Set the rate of one subscription in the policies of a topic, or remove it with None."""
    others = {name: item for name, item in (own.get(OF_SUBSCRIPTIONS) or {}).items() if name != subscription}
    if rate is not None:
        others[subscription] = {"dispatchRate": completed(SUBSCRIPTION_DISPATCH, rate)}
    own.pop(OF_SUBSCRIPTIONS, None)
    if others:
        own[OF_SUBSCRIPTIONS] = others


def rates_of_subscriptions(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usable rates of single subscriptions in the policies of a topic."""
    found = own.get(OF_SUBSCRIPTIONS)
    each = found.items() if isinstance(found, Mapping) else ()
    rates = {name: item.get("dispatchRate") for name, item in each if isinstance(item, Mapping)}
    return {name: rate for name, rate in rates.items() if rate and flaw_of_rate(SUBSCRIPTION_DISPATCH, rate) is None}


def limits_in_force(policies: Mapping[str, Any], cluster: str, defaults: RateLimits) -> RateLimits:
    """Return the rates of a topic with these policies. `defaults` are those of the broker."""

    def found(field: str) -> Mapping[str, Any] | None:
        rate = read_field(policies, field, cluster)
        return None if limits_nothing(rate) else rate

    publish, dispatch = found(PUBLISH), found(DISPATCH)
    subscription, subscribe = found(SUBSCRIPTION_DISPATCH), found(SUBSCRIBE)
    single = rates_of_subscriptions(policies)
    return RateLimits(
        publish=defaults.publish if publish is None else PublishRate(*_numbers(publish, _PUBLISHED)),
        dispatch=defaults.dispatch if dispatch is None else _dispatch(dispatch),
        subscription=defaults.subscription if subscription is None else _dispatch(subscription),
        subscriptions={name: _dispatch(rate) for name, rate in single.items() if not limits_nothing(rate)},
        subscribe=defaults.subscribe if subscribe is None else SubscribeRate(*_numbers(subscribe, _SUBSCRIBED)),
    )


def _dispatch(rate: Mapping[str, Any]) -> DispatchRate:
    messages, size_bytes, relative, period_s = _numbers(rate, _DISPATCHED)
    return DispatchRate(messages, size_bytes, max(1, period_s), bool(relative))


def _numbers(rate: Mapping[str, Any], fields: Mapping[str, Any]) -> list[int]:
    """Return the values of a rate in the order of `fields`; 0 for those without a limit."""
    values = [fields[name] if rate.get(name) is None else rate[name] for name in fields]
    return [max(0, value) for value in values]


def default_values(defaults: RateLimits) -> dict[str, Any]:
    """Return the rates of a broker as values of the fields of policies."""

    def dispatch(rate: DispatchRate) -> Any:
        return dict(zip(_DISPATCHED, (rate.messages, rate.size_bytes, rate.relative, rate.period_s), strict=True))

    return {
        PUBLISH: dict(zip(_PUBLISHED, (defaults.publish.messages, defaults.publish.size_bytes), strict=True)),
        DISPATCH: dispatch(defaults.dispatch),
        SUBSCRIPTION_DISPATCH: dispatch(defaults.subscription),
        SUBSCRIBE: dict(zip(_SUBSCRIBED, (defaults.subscribe.times, defaults.subscribe.period_s), strict=True)),
    }
