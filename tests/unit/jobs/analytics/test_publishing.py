"""The metrics file of an analysis, for node exporter and the Pushgateway."""

from prometheus_client.parser import text_string_to_metric_families

from quire_jobs.analytics.publishing import Gauge, metrics_text


def test_the_file_is_classic_text_without_gauges_that_have_no_value() -> None:
    gauges = [
        Gauge("topic_bytes", "bytes of a topic", 5, {"topic": 'a"b'}),
        Gauge("unknown", "no value", None),
        Gauge("topic_bytes", "bytes of a topic", 2.5, {"topic": "c"}),
    ]
    text = metrics_text("retention-what-if", gauges, 1000.0)
    made, sizes = text_string_to_metric_families(text)
    assert (made.name, made.type) == ("quire_analytics_retention_what_if_made_seconds", "gauge")
    assert made.samples[0].value == 1000
    assert (sizes.name, sizes.documentation) == ("quire_analytics_retention_what_if_topic_bytes", "bytes of a topic")
    assert [(s.labels, s.value) for s in sizes.samples] == [({"topic": 'a"b'}, 5), ({"topic": "c"}, 2.5)]
