"""Options of a write, and what is asked of the brokers before the first row."""

from typing import Any

import pytest

from quire_jobs.errors import JobOptionsError, QuireJobError
from quire_jobs.sink.options import Deduplication, PayloadSchema, SinkOptions, parse_sink_options
from quire_jobs.sink.preparation import prepare

GOOD = {"serviceUrl": "pulsar://h:6650", "path": "t", "http": "http://h:8080"}


def test_names_are_without_case_and_the_path_is_the_topic() -> None:
    options = parse_sink_options({**GOOD, "SCHEMA": "avro", "checkpointLocation": "/x"})
    assert (options.topic, options.schema_type) == ("persistent://public/default/t", PayloadSchema.AVRO)
    assert options.deduplication is Deduplication.REQUIRE


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"serviceURI": "x"}, "no option serviceURI; did you mean serviceUrl"),
        ({"serviceUrl": "http://h"}, "serviceUrl = 'http://h': expected pulsar://"),
        ({"http": ""}, "deduplication needs http"),
        ({"schema": "xml"}, "schema = 'xml'"),
        ({"compression": "rar"}, "compression = 'rar': expected none, lz4"),
        ({"path": "a/b"}, "topic = 'a/b'"),
        ({"batchRows": "0"}, "batchRows = '0'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, str], text: str) -> None:
    with pytest.raises(JobOptionsError, match=text):
        parse_sink_options({**GOOD, **changes})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(JobOptionsError, match="serviceUrl is missing"):
        parse_sink_options({"topic": "t", "deduplication": "off"})


class Brokers:
    """Answers by method and path; remembers what was changed."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self.answers = answers
        self.changed: list[str] = []

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        if method != "GET":
            self.changed.append(f"{method} {path} {body}")
            self.answers |= {key: (200, {"deduplicationStatus": "Enabled"}) for key in self.answers if "stats" in key}
            return 204, None
        return self.answers.get(path, (404, {"reason": "no"}))


TOPIC = "/admin/v2/persistent/public/default/t"
NAMESPACE = "/admin/v2/namespaces/public/default"


def options(**changes: str) -> SinkOptions:
    return parse_sink_options({**GOOD, **changes})


async def test_a_topic_without_deduplication_is_refused_or_mended() -> None:
    def brokers() -> Brokers:
        answers: dict[str, tuple[int, Any]] = {
            f"{TOPIC}/partitions": (200, {"partitions": 2}),
            f"{TOPIC}-partition-0/stats": (200, {"deduplicationStatus": "Enabled"}),
            f"{TOPIC}-partition-1/stats": (200, {"deduplicationStatus": "Disabled"}),
        }
        return Brokers(answers)

    refused = brokers()
    with pytest.raises(JobOptionsError, match="a retried task would write its rows twice"):
        await prepare(refused, options())
    assert refused.changed == []
    mended = brokers()
    await prepare(mended, options(deduplication="enable"))
    assert mended.changed == [f"POST {NAMESPACE}/deduplication True", f"PUT {NAMESPACE}/unload None"]


async def test_a_topic_that_is_not_there_yet_does_as_its_namespace_says() -> None:
    await prepare(Brokers({f"{NAMESPACE}/deduplication": (200, True)}), options())
    with pytest.raises(JobOptionsError, match="does not drop duplicates"):
        await prepare(Brokers({f"{NAMESPACE}/deduplication": (200, None)}), options())


async def test_a_refusal_of_the_broker_is_said_as_it_is() -> None:
    with pytest.raises(QuireJobError, match="HTTP 403: not you"):
        await prepare(Brokers({f"{TOPIC}/stats": (403, {"reason": "not you"})}), options())
