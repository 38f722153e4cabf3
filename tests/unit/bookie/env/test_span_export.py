import asyncio
import threading
from collections.abc import Sequence

from quire_bookie.env.span_export import _DEFERRED_MAX, SpanExport, open_span_export
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Kind, Span, TraceContext
from tests.support.otlp_receiver import otlp_receiver
from tests.support.polling import until

SPAN = Span("scope", "name", Kind.SERVER, 5, 6, 7, 1_000, 2_000, {"a": "b"}, (TraceContext(8, 9),), "it failed")


class Stuck:
    """A collector that does not answer."""

    def __init__(self) -> None:
        self.asked, self.ends = threading.Event(), threading.Event()

    def send(self, spans: Sequence[tuple[str, bytes]]) -> bool:
        self.asked.set()
        self.ends.wait()
        return False

    def stop(self) -> None:
        self.ends.set()


def test_a_span_reaches_the_collector_whole() -> None:
    with otlp_receiver() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url.removesuffix("/v1/traces")}
        export = open_span_export(TraceSettings(), "quire-test", environment)
        assert export is not None
        export.take(SPAN)
        export.close()
        (found,) = receiver.spans
    span = found.span
    assert (found.service, found.scope, found.name) == ("quire-test", "scope", "name")
    assert (span.trace_id[-1], span.span_id[-1], span.parent_span_id[-1]) == (5, 6, 7)
    assert (span.start_time_unix_nano, span.end_time_unix_nano, found.attributes) == (1_000, 2_000, {"a": "b"})
    assert (span.links[0].trace_id[-1], span.status.message, span.kind) == (8, "it failed", 2)
    assert (export.stats.exported, export.stats.lost_full, export.stats.lost_failed) == (1, 0, 0)


def test_spans_beyond_the_queue_are_lost_while_the_collector_does_not_answer() -> None:
    sender = Stuck()
    export = SpanExport(sender, 64, "http://stuck")
    export.take(SPAN)
    assert sender.asked.wait(60)
    for _ in range(100):
        export.take(SPAN)
    assert (export.waiting, export.stats.lost_full) == (64, 36)
    sender.stop()
    until(lambda: export.stats.lost_failed == 65, "what the collector refuses is lost")
    export.close()


def test_without_an_endpoint_there_is_no_export() -> None:
    assert open_span_export(TraceSettings(), "s", {}) is None


async def test_what_is_deferred_is_reported_when_enough_waits_or_the_time_is_over_or_at_the_end() -> None:
    sender = Stuck()
    export, made = SpanExport(sender, 64, "http://stuck"), list[int]()
    for number in range(_DEFERRED_MAX):
        assert made == []
        export.defer(made.append, number)
    assert made == list(range(_DEFERRED_MAX))
    reported = asyncio.Event()
    export.defer(reported.set)
    await asyncio.wait_for(reported.wait(), 60)
    export.defer(export.take, SPAN)
    sender.stop()
    export.close()
    assert export.waiting == 0 and export.stats.lost_failed == 1


def test_a_batch_is_encoded_in_pieces_and_sent_whole() -> None:
    with otlp_receiver() as receiver:
        export = open_span_export(TraceSettings(endpoint=receiver.url), "quire-test", {})
        assert export is not None
        for number in range(1000):
            export.take(SPAN._replace(name=f"span {number}"))
        export.close()
        assert [each.name for each in receiver.spans] == [f"span {number}" for number in range(1000)]
    assert receiver.requests <= 3 and export.stats.exported == 1000
