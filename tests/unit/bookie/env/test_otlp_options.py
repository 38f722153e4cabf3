import pytest

from quire_bookie.env.otlp_options import endpoint_of, otlp_options
from quire_bookie.errors import ConfigError
from quire_bookie.settings.traces import TraceSettings

ENDPOINT = "http://collector:4318/v1/traces"


def test_the_endpoint_is_the_setting_before_the_environment() -> None:
    both = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b/"}
    assert endpoint_of(TraceSettings("http://s"), both) == "http://s"
    assert endpoint_of(TraceSettings(), both) == "http://t/x"
    del both["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
    assert endpoint_of(TraceSettings(), both) == "http://b/v1/traces"
    assert endpoint_of(TraceSettings("http://s"), {"OTEL_SDK_DISABLED": "true"}) == ""
    assert endpoint_of(TraceSettings(), {}) == ""


@pytest.mark.parametrize("endpoint", ["collector:4317", "http://", "http://h:port/x", "http://[h/x", "ftp://h/x"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="collector:4318/v1/traces"):
        endpoint_of(TraceSettings(endpoint), {})


@pytest.mark.parametrize("endpoint", ["http://user:hidden@h/v1/traces", "https://hidden@h:port", "x://hidden@h"])
def test_credentials_in_an_endpoint_are_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        endpoint_of(TraceSettings(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})
    assert "hidden" not in str(refused.value)


def test_the_standard_variables_of_traces_come_before_those_of_all_signals() -> None:
    options = otlp_options(
        ENDPOINT,
        "quire-broker",
        {
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc, x-tenant = a",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
            "OTEL_SERVICE_NAME": "log-store",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment.name=test",
        },
    )
    assert options.headers == {"authorization": "Basic abc", "x-tenant": "a"}
    assert (options.timeout_s, options.compresses, options.trusted_file) == (2.5, True, "/ca.pem")
    assert (options.resource["service.name"], options.resource["deployment.environment.name"]) == ("log-store", "test")


def test_without_variables_the_service_has_its_own_name_and_10_seconds() -> None:
    options = otlp_options(ENDPOINT, "quire-broker", {})
    assert (options.timeout_s, options.compresses, options.headers) == (10.0, False, {})
    assert options.resource["service.name"] == "quire-broker" and options.resource["host.name"]


@pytest.mark.parametrize(
    ("variable", "text", "remedy"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "name=value"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=1", "letters"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=1%0d%0ab", "line breaks"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip or none"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=x", "name=value"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused(variable: str, text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as refused:
        otlp_options(ENDPOINT, "s", {variable: text})
    assert variable in str(refused.value) and "secret" not in str(refused.value)
