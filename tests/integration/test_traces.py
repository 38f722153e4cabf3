"""Traces of messages that the stock Python client publishes and consumes, as a collector receives them."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire_bookie.spans import TraceContext, entry_context
from tests.support.otlp_receiver import OtlpReceiver, Received, otlp_receiver
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.standalone import QUIRE, StandaloneProcess, environment

pytestmark = pytest.mark.timeout(400)
CLIENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
BOOKIES = 3


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def standalone(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """Three bookies and a broker that trace each entry."""
    settings = (f"traceEndpoint={receiver.url}", "traceSampleRatio=1", "traceMaxPerSecond=1000")
    process = StandaloneProcess(tmp_path_factory.mktemp("traced"), bookies=BOOKIES, settings=settings)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def client(standalone: StandaloneProcess) -> Iterator[Any]:
    client = pulsar.Client(standalone.url, operation_timeout_seconds=60, logger=QUIET)
    yield client
    client.close()


def exchange(client: Any, topic: str, properties: dict[str, str], **options: Any) -> tuple[int, int]:
    """Publish and acknowledge one message; return its ledger and entry."""
    consumer = client.subscribe(topic, "audit", consumer_name="reader")
    producer = client.create_producer(topic, **options)
    sent = producer.send(b"a message", properties=properties)
    consumer.acknowledge(consumer.receive(60_000))
    consumer.close()
    producer.close()
    return sent.ledger_id(), sent.entry_id()


def spans_of(receiver: OtlpReceiver, name: str, position: tuple[int, int], count: int = 1) -> list[Received]:
    """Return the spans of that name for an entry, as soon as there are `count`."""

    def found() -> list[Received]:
        return [
            each
            for each in receiver.named(name)
            if (each.attributes.get("quire.ledger"), each.attributes.get("quire.entry")) == position
        ]

    until(lambda: len(found()) >= count, lambda: f"{name}: {found()} of {[each.name for each in receiver.spans]}")
    assert len(found()) == count
    return found()


@pytest.mark.parametrize(
    "options",
    [{"batching_enabled": False}, {"batching_enabled": True}, {"compression_type": pulsar.CompressionType.ZSTD}],
    ids=["single", "batch", "compressed batch"],
)
def test_a_trace_of_a_client_continues_in_broker_and_bookies(
    client: Any, receiver: OtlpReceiver, options: dict[str, Any]
) -> None:
    topic = f"persistent://public/default/continued-{len(receiver.spans)}"
    position = exchange(client, topic, {"traceparent": CLIENT.traceparent}, **options)
    publish = spans_of(receiver, "publish", position)[0]
    assert publish.trace == CLIENT.trace_id.to_bytes(16, "big")
    assert publish.span.parent_span_id == CLIENT.span_id.to_bytes(8, "big")
    assert publish.attributes["messaging.destination.name"] == topic
    assert (publish.service, publish.scope) == ("quire-standalone", "quire.broker")

    store = next(each for each in spans_of(receiver, "store", position, 2) if each.trace == publish.trace)
    assert store.span.parent_span_id == publish.span.span_id
    responses = spans_of(receiver, "bookie response", position, BOOKIES)
    assert {each.span.parent_span_id for each in responses} == {store.span.span_id}
    assert len({each.attributes["quire.bookie"] for each in responses}) == BOOKIES

    deliver = spans_of(receiver, "deliver", position)[0]
    assert (deliver.trace, deliver.span.parent_span_id) == (publish.trace, publish.span.span_id)
    assert deliver.attributes["messaging.destination.subscription.name"] == "audit"
    acknowledge = spans_of(receiver, "acknowledge", position)[0]
    assert (acknowledge.trace, acknowledge.span.parent_span_id) == (publish.trace, deliver.span.span_id)
    assert publish.span.start_time_unix_nano < publish.span.end_time_unix_nano <= acknowledge.span.end_time_unix_nano

    # The bookies do not know the client's trace: theirs has the entry's own ids, and `publish` links to it.
    own = entry_context(*position)
    linked = [(link.trace_id, link.span_id) for link in publish.span.links]
    assert linked == [(own.trace_id.to_bytes(16, "big"), own.span_id.to_bytes(8, "big"))]
    adds = spans_of(receiver, "bookie add", position, BOOKIES)
    assert {(each.trace, each.span.parent_span_id) for each in adds} == set(linked)
    assert {each.scope for each in adds} == {"quire.bookie"}
    synced = [each.span.parent_span_id for each in receiver.of_trace(adds[0].trace) if each.name == "journal"]
    assert set(synced) <= {each.span.span_id for each in adds}  # a sync within the clock's resolution has no span


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "00-zz-00",
        CLIENT.traceparent.upper(),
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "x" * 100_000,
        CLIENT._replace(sampled=False).traceparent,
    ],
    ids=["none", "empty", "no ids", "upper case", "no trace", "long", "not recorded"],
)
def test_without_a_recorded_trace_of_the_client_all_is_in_the_trace_of_the_entry(
    client: Any, receiver: OtlpReceiver, traceparent: str | None
) -> None:
    topic = f"persistent://public/default/own-{len(receiver.spans)}"
    position = exchange(client, topic, {} if traceparent is None else {"traceparent": traceparent})
    publish = spans_of(receiver, "publish", position)[0]
    own = entry_context(*position).trace_id.to_bytes(16, "big")
    assert (publish.trace, publish.span.parent_span_id, len(publish.span.links)) == (own, b"", 0)
    store = spans_of(receiver, "store", position)[0]
    adds = spans_of(receiver, "bookie add", position, BOOKIES)
    assert {(each.trace, each.span.parent_span_id) for each in adds} == {(own, store.span.span_id)}


def quire(*words: str, broker: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    command = [QUIRE, *words, "--broker", broker]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment())


def test_the_command_line_begins_a_trace_and_shows_it(standalone: StandaloneProcess, receiver: OtlpReceiver) -> None:
    sent = quire("produce", "from-cli", "-", "--trace", broker=standalone.url, text="one\n")
    assert sent.returncode == 0, sent.stderr
    trace = re.search(r"stored in from-cli, trace ([0-9a-f]{32})$", sent.stderr.strip())
    assert trace, sent.stderr
    assert quire("produce", "from-cli", "-", broker=standalone.url, text="two\n").returncode == 0
    lines = quire("consume", "from-cli", "-o", "json", broker=standalone.url).stdout.splitlines()
    assert [json.loads(line).get("trace") for line in lines] == [trace[1], None]
    wide = quire("consume", "from-cli", "-o", "wide", broker=standalone.url).stdout.splitlines()
    assert [f"trace={trace[1]}  one" in wide[0], "trace=" in wide[1]] == [True, False]
    until(lambda: "publish" in {each.name for each in receiver.of_trace(bytes.fromhex(trace[1]))}, "no span of it")

    both = quire(
        "produce", "t", "-", "--trace", "--property", f"traceparent={CLIENT.traceparent}", broker=standalone.url
    )
    assert both.returncode != 0 and "give one of them" in both.stderr


def test_a_collector_that_is_down_loses_spans_which_are_counted(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = (f"traceEndpoint=http://127.0.0.1:{port}/v1/traces", "traceSampleRatio=1", "traceQueueSpans=64")
    process = StandaloneProcess(tmp_path, settings=settings)
    process.start()
    try:
        client = pulsar.Client(process.url, operation_timeout_seconds=60, logger=QUIET)
        producer = client.create_producer("t", batching_enabled=False)
        for _ in range(100):
            producer.send(b"a message")
        client.close()
        until(
            lambda: outcomes(process)["queue_full"] > 0 and outcomes(process)["collector_failed"] > 0, "no span is lost"
        )
        assert outcomes(process)["exported"] == 0
    finally:
        process.stop()
    assert process.tail().count("takes no spans") == 1


def outcomes(process: StandaloneProcess) -> dict[str, float]:
    with urllib.request.urlopen(process.http + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("quire_trace_spans_total{")]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in found}
