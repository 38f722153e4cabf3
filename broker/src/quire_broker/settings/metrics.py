"""Declares the settings of a broker's metrics, with Pulsar's names."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import setting


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The series that a broker shows."""

    of_topics: bool = setting(
        False,
        "exposeTopicLevelMetricsInPrometheus",
        "metrics of each topic and subscription, 18 series of a topic with one; false: sums of each namespace",
        short="topic_metrics",
    )
