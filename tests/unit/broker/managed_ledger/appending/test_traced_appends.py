"""The spans of appends: which ones there are, below which parent, and the trace in the line of a slow publish."""

import asyncio
from typing import Any

import pytest

from quire_bookie.env.tracing import Tracing
from quire_bookie.errors import BookieUnavailableError
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Span, TraceContext, entry_context
from quire_broker.managed_ledger import ManagedLedger
from quire_broker.traced_entries import Traces
from quire_broker.wire.entry import seal
from quire_broker.wire.proto.pulsar_pb2 import KeyValue, MessageMetadata
from tests.support.kept_spans import KeptSpans
from tests.unit.broker.managed_ledger.world import Answers, Process, SeededChance, VirtualClock, World, run

CLIENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)


async def opened(process: Process, **settings: Any) -> tuple[ManagedLedger, KeptSpans]:
    """Return a managed ledger whose appends are traced."""
    spans = KeptSpans()

    async def open_ledger() -> ManagedLedger:
        tracing = Tracing(TraceSettings(**settings), spans, "test", VirtualClock(), SeededChance(1))
        process.factory.traces = Traces(tracing)
        return await process.factory.open("public/default/persistent/topic")

    return await process.run(open_ledger()), spans


def message(context: TraceContext | None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if context is not None:
        metadata.properties.append(KeyValue(key="traceparent", value=context.traceparent))
    return seal(metadata, b"x")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["event"] for record in caplog.records if record.name == "quire.slow"]


@pytest.mark.parametrize("client", [None, CLIENT])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_line_of_a_slow_publish_names_its_trace(
    client: TraceContext | None, ratio: float, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Span] = []

    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger, spans = await opened(process, ratio=ratio, looks_per_s_max=0)
        process.client.tail().held = True
        ledger.append(message(client), answers(b"slow"))
        await asyncio.sleep(2.0)
        process.client.tail().release()
        await asyncio.sleep(0.01)
        made.extend(spans.named("publish"))

    run(scenario)
    (line,), (publish,) = lines(caplog), made
    expected = entry_context(line["ledger"], 0) if client is None else client
    assert line["trace"] == expected.trace_text == f"{publish.trace_id:032x}"
    assert publish.parent == (0 if client is None else client.span_id)
    assert publish.end_ns - publish.start_ns == pytest.approx(2e9, abs=1e7)


def test_without_an_operation_to_spare_a_slow_publish_has_a_line_without_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger, spans = await opened(process, ratio=0.0, per_s_max=1)
        assert process.factory.traces is not None and process.factory.traces.tracing.admit()
        process.client.tail().held = True
        ledger.append(message(None), answers(b"slow"))
        process.factory.traces.tracing._admitted.reserve(1000)
        await asyncio.sleep(2.0)
        process.client.tail().release()
        await asyncio.sleep(0.01)
        assert spans.taken == []

    run(scenario)
    assert "trace" not in lines(caplog)[0]


def test_a_chosen_publish_that_fails_has_a_span_with_the_error() -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger, spans = await opened(process, ratio=1.0)
        process.client.tail().held = True
        ledger.append(message(CLIENT), answers(b"x"))
        await asyncio.sleep(0.01)
        world.away(True)
        process.client.tail().fail(BookieUnavailableError("gone"))
        await asyncio.sleep(120.0)
        (publish,) = spans.taken
        assert (publish.name, publish.trace_id, publish.parent) == ("publish", CLIENT.trace_id, CLIENT.span_id)
        assert publish.error == str(answers.failed[b"x"])

    run(scenario)


@pytest.mark.parametrize("count", [1, 3])
def test_one_append_of_a_batch_is_traced_with_its_parts(count: int) -> None:
    async def scenario(world: World) -> None:
        process, answers = world.process(), Answers()
        ledger, spans = await opened(process, ratio=1.0)
        for number in range(count):
            ledger.append(message(CLIENT), answers(b"%d" % number))
        await asyncio.sleep(0.1)
        (publish,) = spans.named("publish")
        below = [span for span in spans.named("store") if span.parent == publish.span_id]
        assert (publish.trace_id, publish.parent, len(below)) == (CLIENT.trace_id, CLIENT.span_id, 1)
        assert publish.attributes["messaging.destination.name"] == "persistent://public/default/topic"
        stored = entry_context(int(publish.attributes["quire.ledger"]), int(publish.attributes["quire.entry"]))
        assert [(link.trace_id, link.span_id) for link in publish.links] == [(stored.trace_id, stored.span_id)]

    run(scenario)
