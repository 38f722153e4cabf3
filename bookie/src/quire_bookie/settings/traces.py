"""Declares which operations are traced, and where their spans go."""

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import setting


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where spans go, and the bounds of their number. Without an endpoint nothing is traced."""

    endpoint: str = setting(
        "",
        "traceEndpoint",
        "URL to which spans go as OTLP over HTTP, such as http://collector:4318/v1/traces; empty: that of "
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, and without these nothing is traced",
        short="trace_endpoint",
    )
    ratio: float = setting(
        limits.TRACE_RATIO,
        "traceSampleRatio",
        "share of the entries that are traced, chosen by their ids; give brokers and bookies the same; 0: only "
        "messages whose client records them",
        short="trace_sample_ratio",
        ge=0,
        le=1,
    )
    per_s_max: int = setting(
        limits.TRACES_PER_S,
        "traceMaxPerSecond",
        "operations that begin or continue a trace in one second, at most",
        short="trace_max_per_second",
        ge=1,
        le=10_000,
    )
    looks_per_s_max: int = setting(
        limits.TRACE_LOOKS_PER_S,
        "traceLookMaxPerSecond",
        "messages in one second whose properties a broker reads for the trace of their client; 0: none but those "
        "that traceSampleRatio chooses",
        short="trace_look_max_per_second",
        ge=0,
        le=100_000,
    )
    queue_spans: int = setting(
        limits.TRACE_QUEUE_SPANS,
        "traceQueueSpans",
        "spans that wait until the collector takes them; further ones are lost and counted",
        short="trace_queue_spans",
        ge=64,
        le=1_000_000,
    )
