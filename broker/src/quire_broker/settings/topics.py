"""Declares the settings of loaded topics."""

from dataclasses import dataclass

from quire_bookie.settings.declared import setting
from quire_broker import limits


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
