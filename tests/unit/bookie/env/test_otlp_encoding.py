"""Spans encoded by hand, as the protocol's own classes decode it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as DecodedSpan

from quire_bookie.env.otlp_encoding import encode_request, encode_resource, encode_span
from quire_bookie.spans import Kind, Span, TraceContext

IDS = st.integers(1, 2**64 - 1)
TRACES = st.integers(1, 2**128 - 1)
VALUES = st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


def decoded(*spans: Span) -> ExportTraceServiceRequest:
    encoded = [(span.scope, encode_span(span)) for span in spans]
    return ExportTraceServiceRequest.FromString(encode_request(encode_resource({"service.name": "test"}), encoded))


def value_of(attribute: Any) -> Any:
    return getattr(attribute.value, attribute.value.WhichOneof("value"))


@settings(max_examples=40)
@given(
    TRACES,
    IDS,
    st.just(0) | IDS,
    st.sampled_from(Kind),
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.text(), VALUES, max_size=5),
    st.lists(st.tuples(TRACES, IDS), max_size=3),
    st.none() | st.text(max_size=200),
)
def test_each_field_of_a_span_arrives(
    trace: int,
    span_id: int,
    parent: int,
    kind: Kind,
    time_ns: int,
    attributes: dict[str, Any],
    links: list[tuple[int, int]],
    error: str | None,
) -> None:
    contexts = tuple(TraceContext(*each) for each in links)
    made = Span("scope", "a name", kind, trace, span_id, parent, 5, time_ns, attributes, contexts, error)
    (resource,) = decoded(made).resource_spans
    (scope,) = resource.scope_spans
    (span,) = scope.spans
    assert (scope.scope.name, span.name, int(span.kind)) == ("scope", "a name", int(kind))
    assert (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.span_id, "big")) == (trace, span_id)
    assert (len(span.trace_id), len(span.span_id)) == (16, 8)
    assert int.from_bytes(span.parent_span_id, "big") == parent and len(span.parent_span_id) in (0, 8)
    assert (span.start_time_unix_nano, span.end_time_unix_nano, span.flags) == (5, time_ns, 1)
    assert {each.key: value_of(each) for each in span.attributes} == attributes
    assert [(int.from_bytes(each.trace_id, "big"), int.from_bytes(each.span_id, "big")) for each in span.links] == links
    assert (span.status.code, span.status.message) == ((0, "") if error is None else (2, error))


def test_spans_of_several_scopes_share_the_resource() -> None:
    first = Span("broker", "one", Kind.SERVER, 1, 2, 0, 1, 2, {})
    request = decoded(first, first._replace(scope="bookie", name="two"), first._replace(name="three"))
    (resource,) = request.resource_spans
    assert [(each.key, value_of(each)) for each in resource.resource.attributes] == [("service.name", "test")]
    names = {scope.scope.name: [span.name for span in scope.spans] for scope in resource.scope_spans}
    assert names == {"broker": ["one", "three"], "bookie": ["two"]}


@pytest.mark.parametrize(("text", "arrives"), [("x" * 5000, "x" * 1024), ("half a \ud800 pair", "half a ? pair")])
def test_a_text_that_is_too_long_or_is_not_unicode_still_arrives(text: str, arrives: str) -> None:
    request = decoded(Span("s", text, Kind.INTERNAL, 1, 2, 0, 1, 2, {"a": text}, (), text))
    span: DecodedSpan = request.resource_spans[0].scope_spans[0].spans[0]
    assert (span.name, value_of(span.attributes[0]), span.status.message) == (arrives, arrives, arrives)
