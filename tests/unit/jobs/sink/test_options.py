"""Options of a write, and the requests to the brokers before the first row."""

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
        ({"serviceURI": "x"}, "unknown option serviceURI; did you mean serviceUrl"),
        ({"serviceUrl": "http://h"}, "serviceUrl = 'http://h': not a broker address"),
        ({"http": ""}, "deduplication needs http"),
        ({"schema": "xml"}, "schema = 'xml'"),
        ({"compression": "rar"}, "compression = 'rar': unknown codec"),
        ({"path": "a/b"}, "topic = 'a/b'"),
        ({"batchRows": "0"}, "batchRows = '0'"),
    ],
)
def test_a_wrong_option_is_named(changes: dict[str, str], text: str) -> None:
    with pytest.raises(JobOptionsError, match=text):
        parse_sink_options({**GOOD, **changes})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(JobOptionsError, match="serviceUrl is missing"):
        parse_sink_options({"topic": "t", "deduplication": "off"})


class Brokers:
    """Responds by path, and records changes."""

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


async def test_deduplication_that_is_off_is_an_error_or_turned_on() -> None:
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
    changed = brokers()
    await prepare(changed, options(deduplication="enable"))
    assert changed.changed == [f"POST {NAMESPACE}/deduplication True", f"PUT {NAMESPACE}/unload None"]


async def test_the_namespace_decides_for_a_topic_that_does_not_exist() -> None:
    await prepare(Brokers({f"{NAMESPACE}/deduplication": (200, True)}), options())
    with pytest.raises(JobOptionsError, match="does not drop duplicates"):
        await prepare(Brokers({f"{NAMESPACE}/deduplication": (200, None)}), options())


async def test_the_broker_s_refusal_is_quoted() -> None:
    with pytest.raises(QuireJobError, match="HTTP 403: not you"):
        await prepare(Brokers({f"{TOPIC}/stats": (403, {"reason": "not you"})}), options())
