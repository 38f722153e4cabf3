"""The sink's publisher with a broker that drops duplicates: each row once, after any earlier attempt."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar")

from quire_jobs.errors import JobOptionsError  # noqa: E402  after the check that the client is installed
from quire_jobs.sink.options import SinkOptions, parse_sink_options  # noqa: E402
from quire_jobs.sink.publishing import Publisher  # noqa: E402
from quire_jobs.sink.rows import Outgoing  # noqa: E402
from tests.support.broker_process import BrokerProcess  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
ROWS = 400
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("sink"))
    process.rest("PUT", "/admin/v2/namespaces/public/sink")
    process.rest("POST", "/admin/v2/namespaces/public/sink/deduplication", True)
    yield process
    process.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/sink/t{next(_names)}"


def options(broker: BrokerProcess, topic: str, **more: str) -> SinkOptions:
    return parse_sink_options({"serviceUrl": broker.url, "http": broker.http, "topic": topic, **more})


def messages(first: int, last: int, *, keys: bool = False) -> Iterator[Outgoing]:
    return (
        Outgoing(b"m%d" % number, f"k{number % 7}" if keys else None, None, None, None) for number in range(first, last)
    )


def contents(broker: BrokerProcess, topic: str, last: bytes) -> list[Any]:
    """Publish `last`, and return all messages of the topic before it."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        end = client.create_producer(topic)
        end.send(last)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while (message := reader.read_next(RECEIVE_MS)).data() != last:
            found.append(message)
        return found
    finally:
        client.close()


class Died(Exception):
    """Simulates the loss of an executor."""


@pytest.mark.parametrize("stopped_after", [1, 99, 100, 101, 250])
def test_a_task_that_dies_at_any_row_and_is_retried_writes_each_row_once(
    broker: BrokerProcess, topic: str, stopped_after: int
) -> None:
    wanted = options(broker, topic, batchRows="100")

    def until_it_dies() -> Iterator[Outgoing]:
        yield from messages(0, stopped_after)
        raise Died

    with pytest.raises(Died), Publisher(wanted, "task-0", None) as first:
        first.send(until_it_dies(), 1)
    with Publisher(wanted, "task-0", None) as second:
        assert second.send(messages(0, ROWS), 1) == ROWS + 1
    assert [each.data() for each in contents(broker, topic, b"end")] == [b"m%d" % number for number in range(ROWS)]


def test_rows_go_to_partitions_by_key_and_repetitions_are_dropped(broker: BrokerProcess, topic: str) -> None:
    broker.rest("PUT", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitions", 3)
    for _ in range(2):
        with Publisher(options(broker, topic, compression="zstd"), "task-0", None) as publisher:
            publisher.send(messages(0, ROWS, keys=True), 1)
    found = [contents(broker, f"{topic}-partition-{index}", b"end") for index in range(3)]
    assert sorted(each.data() for part in found for each in part) == sorted(b"m%d" % number for number in range(ROWS))
    keys = [{each.partition_key() for each in part} for part in found]
    assert sum(map(len, keys)) == 7
    assert sum(bool(part) for part in keys) > 1


def test_schemas_are_registered_and_incompatible_ones_are_refused(broker: BrokerProcess, topic: str) -> None:
    def definition(kind: str) -> dict[str, Any]:
        return {"type": "record", "name": "Row", "fields": [{"name": "a", "type": ["null", kind], "default": None}]}

    wanted = options(broker, topic, schema="avro")
    with Publisher(wanted, "task-0", definition("long")) as publisher:
        publisher.send([Outgoing(b"\x02\x08", None, None, None, None)], 1)
    shown = broker.rest("GET", f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema")
    assert (shown["type"], shown["version"]) == ("AVRO", 0)
    with (
        pytest.raises(JobOptionsError, match="are not compatible with the schema"),
        Publisher(wanted, "task-1", definition("string")),
    ):
        pass
